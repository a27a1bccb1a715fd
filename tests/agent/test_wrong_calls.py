"""Wrong calls of the Python API: each gets one sentence, and the agent is as it was."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import briee
from briee.agent.agent import BRIEE, Agent
from briee.agent.files import load
from briee.configuration import EvaluationConfig
from countdown import Countdown
from small_runs import QUIET, H, make_env, tiny

NOTHING: Any = None
LOCK: Any = make_env()
WRONG: Any = {"episodes": 2.5}
SEEN = np.zeros(8, np.float32)


@pytest.fixture(scope="module")
def learned() -> Agent:
    return BRIEE(make_env(), config=tiny()).learn(iterations=1, **QUIET)


WRONG_QUESTIONS = [
    (lambda a: a.predict(SEEN, H), r"step must be in 0..1, for episodes have 2 steps, got 2"),
    (lambda a: a.predict(SEEN, -1), r"step must be in 0..1, for episodes have 2 steps, got -1"),
    (lambda a: a.predict(SEEN), r"predict needs the step, .* predict\(observation, step=0\), or act\("),
    (lambda a: a.predict(SEEN, "first"), "step must be a whole number, got 'first'"),
    (lambda a: a.predict(SEEN, 0.5), "step must be a whole number, got 0.5"),
    (lambda a: a.predict(np.zeros(7), 0), r"observation has shape \(7,\), expected \(8,\) or \(N, 8,\)"),
    (lambda a: a.predict(np.full((2, 8), np.nan), 0), r"observation has NaN entries in rows \[0, 1\]"),
    (lambda a: a.predict("nonsense", 0), "observation must be an array of numbers, got str"),
    (lambda a: a.predict((SEEN, {}), 0), "observation must be an array of numbers, got tuple"),
    (lambda a: a.latent_states(SEEN, 5), "step must be in 0..1"),
    (lambda a: a.decode(SEEN, "0"), "step must be a whole number, got '0'"),
    (lambda a: a.evaluate(0), "episodes must be >= 1, got 0"),
    (lambda a: a.evaluate("ten"), "episodes must be a whole number, got 'ten'"),
    (lambda a: a.evaluate(2.5), "episodes must be a whole number, got 2.5"),
    (lambda a: a.evaluate(policy="best"), "unknown policy 'best': known are greedy, optimistic, mixture"),
    (lambda a: a.evaluate(policy="mixture"), "no past policy was kept: train with mixture_size"),
    (lambda a: a.evaluate(seed=-1), "seed must be a whole number from 0"),
    (lambda a: a.learn(), "learn needs a budget"),
    (lambda a: a.learn(episodes=0), "episodes must be >= 1, got 0"),
    (lambda a: a.learn(episodes=1.5), "episodes must be a whole number, got 1.5"),
    (lambda a: a.learn(episodes="many"), "episodes must be a whole number, got 'many'"),
    (lambda a: a.learn(episodes=True), "episodes must be a whole number, got True"),
    (lambda a: a.learn(iterations=-1), "iterations must be >= 1, got -1"),
    (lambda a: a.learn(total_timesteps=0), "total_timesteps must be >= 1, got 0"),
    (lambda a: a.learn(5, callback=print), r"no argument 'callback': functions .* are callbacks="),
    (lambda a: a.learn(5, verbose=1), r"no argument 'verbose': progress=False is silent"),
    (lambda a: a.learn(n_episodes=5), r"no argument 'n_episodes': a budget in episodes is episodes="),
    (lambda a: a.learn(timesteps=5), r"no argument 'timesteps': .* is total_timesteps="),
    (lambda a: a.learn(5, progres=False), "no argument 'progres': did you mean progress"),
    (lambda a: a.learn(5, callbacks=3), "callbacks must be a function of an update's metrics.*, got int"),
    (lambda a: a.learn(5, callbacks=[print, "x"]), "callbacks must be a function .*, got str"),
    (lambda a: a.plan("goal"), "a reward must be a function, got str"),
    (lambda a: a.plan(lambda s, x: 1.0), "briee explores for the environment's reward alone: train with"),
    (lambda a: a.plot("curve"), "there is no figure 'curve': known are return, "),
    (lambda a: a.plot("maps"), "there is no figure 'maps': did you mean map"),
    (lambda a: a.report(None), "path must be the name of a file, got None"),
    (lambda a: a.report("."), "a report is a file, but . is a directory"),
    (lambda a: a.save(""), "path must be the name of a file, got ''"),
    (lambda a: a.save("no/such/folder.briee"), "cannot write no/such/folder.briee"),
]  # fmt: skip
WRONG_AGENTS = [
    ({"preset": "papre"}, "unknown preset of briee 'papre': did you mean paper"),
    ({"algorithm": "brie"}, "unknown algorithm 'brie': did you mean briee"),
    ({"algorithm": "PPO"}, "unknown algorithm 'PPO': did you mean ppo or ppe or sb3:PPO"),
    ({"algo": 3}, "algo must be a name or a class, got 3"),
    ({"algorithm": dict}, "an algorithm given as a class needs config=..., got dict"),
    ({"num_latents": 0}, "num_latents must be >= 1, got 0"),
    ({"num_latents": 2.5}, "num_latents must be a whole number, got 2.5"),
    ({"num_latents": "three"}, "num_latents must be a whole number, got 'three'"),
    ({"algo": "efficient", "decoder": "mlp"}, "has no decoder, so it cannot be 'mlp'"),
    ({"decoder": "transformer"}, "decoder must be one of linear, mlp, cnn, custom, got 'transformer'"),
    ({"decoder": "mlp"}, "needs features.decoder='linear' with a bias, not 'mlp': choose"),
    ({"decoder": 64}, "decoder must be linear, mlp, cnn or an Equinox module, got 64"),
    ({"horizon": 0}, "horizon must be >= 1, got 0"),
    ({"horizon": 2.5}, "horizon must be a whole number, got 2.5"),
    ({"horizon": "six"}, "horizon must be a whole number, got 'six'"),
    ({"seed": -1}, "seed must be a whole number from 0 to 4294967295, got -1"),
    ({"seed": 1.5}, "seed must be a whole number .* got 1.5"),
    ({"seed": "one"}, "seed must be a whole number .* got 'one'"),
    ({"target_return": "best"}, "target_return must be a number .* got 'best'"),
    ({"target_return": float("nan")}, "target_return must be .* got nan"),
    ({"config": {"num_latents": 3}}, "config must be a configuration, made by briee.preset.* got dict"),
    ({"preset": make_env}, "preset must be a name, got function: the environment comes first"),
    ({"verbose": 1}, r"no argument 'verbose': learn\(progress=False\) is silent"),
    ({"K": 3}, "no argument 'K': the number of latent states is num_latents="),
    ({"learning_rate": 1e-3}, "no argument 'learning_rate': such settings are fields of config="),
    ({"total_timesteps": 9}, r"no argument 'total_timesteps': a budget belongs to learn\("),
    ({"num_latent": 3}, "no argument 'num_latent': did you mean num_latents"),
]
WRONG_ENVIRONMENTS = [
    (lambda: BRIEE(gym.make("Pendulum-v1")), r"Pendulum.* has continuous actions, .*discretise"),
    (lambda: BRIEE(3), r"env must be an environment of gym.make .*, got int"),
    (lambda: BRIEE(None), r"env must be an environment of gym.make .*, got NoneType"),
    (lambda: BRIEE(Countdown), r"got the class Countdown: call it, Countdown\(...\)"),
    (lambda: BRIEE(Countdown()), "horizon is missing: Countdown has no time limit"),
    (lambda: BRIEE("lokc", horizon=3), "unknown environment 'lokc': did you mean lock"),
    (lambda: BRIEE("MlpPolicy", LOCK), "preset must be a name, got PureVectorEnv: the env"),
    (lambda: load(NOTHING), "path must be the name of a file, got None"),
    (lambda: load("nowhere.briee"), "there is no such file"),
    (lambda: BRIEE.load(__file__), "cannot load"),
    (lambda: briee.preset("briee", "papr", 6), "unknown preset of briee 'papr': did you mean paper"),
    (lambda: EvaluationConfig(**WRONG), "episodes must be a whole number >= 1, got 2.5"),
]


def check_sentence(call, sentence: str) -> None:
    """The call raises a `ValueError` whose text is one sentence."""
    with pytest.raises(ValueError, match=sentence) as caught:
        call()
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(("question", "sentence"), WRONG_QUESTIONS)
def test_wrong_questions_get_one_sentence(learned, question, sentence, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    history = learned.history
    check_sentence(lambda: question(learned), sentence)
    assert learned.history is history
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("arguments", "sentence"), WRONG_AGENTS)
def test_wrong_settings_get_one_sentence(arguments, sentence):
    check_sentence(lambda: BRIEE(make_env(), **arguments), sentence)


@pytest.mark.parametrize(("call", "sentence"), WRONG_ENVIRONMENTS)
def test_wrong_environments_and_files_get_one_sentence(call, sentence):
    check_sentence(call, sentence)


class Faulty(Countdown):
    """Says something wrong at its second step."""

    def __init__(self, told):
        super().__init__(length=4)
        self.told = told

    def step(self, action):
        observation, _, over, cut, info = super().step(action)
        if self.count < 2:
            return observation, 0.0, over, cut, info
        return self.told(observation, over, info)


def leave(*_):
    raise SystemExit(3)


@pytest.mark.parametrize(
    ("told", "sentence"),
    [
        (lambda o, over, i: (o, "1.5", over, False, i), "a reward must be one number, got '1.5'"),
        (lambda o, over, i: (o, None, over, False, i), "a reward must be one number, got None"),
        (lambda o, over, i: (o, float("nan"), over, False, i), "a reward must be finite, got nan"),
        (lambda o, over, i: (o, np.zeros(3), over, False, i), "a reward must be one number, got array"),
        (lambda o, over, i: (o, 0.0, over, i), "step must return .*, got 4 values, ndarray, float, bool, di"),
        (lambda o, over, i: None, "step must return .*, got NoneType"),
        (leave, "SystemExit: 3"),
    ],
)
def test_an_environment_that_says_something_wrong_is_named_with_its_step(told, sentence):
    copies = gym.vector.SyncVectorEnv([lambda: Faulty(told)] * 3)
    agent = BRIEE(copies, horizon=4, config=tiny(4))
    where = r"environment Faulty \(copy 0 of 3\) failed at step 2: "
    with pytest.raises(RuntimeError, match=where + ".*" + sentence) as caught:
        agent.learn(episodes=10, **QUIET)
    assert len(str(caught.value)) < 200
    assert agent.iterations == 0


def test_a_reset_that_says_something_wrong_is_named():
    class Old(Countdown):
        def reset(self, *, seed=None, options=None):
            return super().reset(seed=seed)[0]

    with pytest.raises(RuntimeError, match=r"failed at reset: .* must return \(observation, info\), got nda"):
        BRIEE(Old(), horizon=4, config=tiny(4)).learn(episodes=10, **QUIET)
