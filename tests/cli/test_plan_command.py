"""`briee train --reward-free` and `briee plan`, the same in Python, and mixtures of past policies."""

import json
import shlex
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import briee
from briee.agent.agent import Agent
from briee.agent.prediction import NotRewardFreeError
from briee.cli.main import main
from briee.envs.lock import CombinationLock
from briee.errors import RunError
from briee.training.directory import read_json
from briee.training.loop import policy_of_kind
from briee.training.spec import load_spec
from toy_run import make_toy

TRAIN = shlex.split(
    "train lock --horizon 2 --env.num_actions 3 --replearn.rounds 8 --replearn.hidden_sizes 32"
    " --collect.buffer-size 600 --episodes 300 --evaluation.streak 2 --seed 2 --workers 1 --mixture-size 3"
)
REWARDS = """
import jax.numpy as jnp

def second(step, observation, action):
    return (step == 1) * (action == 2) * 0.5

def every(step, observation):
    return jnp.array([0, 1, 0])

def seen(step, latent, action):
    return latent.max()

def nan(step, observation, action):
    return jnp.nan

def shape(step, observation, action):
    return observation

def branch(step, observation, action):
    return 1.0 if step > 0 else 0.0

def one(observation):
    return 0.0
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A folder with rewards, a reward-free run, and one of Algorithm 1."""
    path = tmp_path_factory.mktemp("plan")
    (path / "mine.py").write_text(REWARDS)
    assert main([*TRAIN, "--algo", "reward-free", "--run-dir", str(path / "free")]) == 0
    assert main([*TRAIN, "--preset", "paper", "--episodes", "100", "--run-dir", str(path / "bound")]) == 0
    return path


@pytest.fixture(autouse=True)
def in_the_folder(folder, monkeypatch):
    monkeypatch.chdir(folder)


def outcome(capsys, *argv: str) -> dict:
    assert main([*argv, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def refusal(capsys, *argv: str) -> str:
    assert main(argv) == 2
    error = capsys.readouterr().err
    assert error.startswith("briee: ")
    assert error.count("\n") == 1
    return error


def test_a_reward_free_run_is_a_run_that_no_reward_ends(folder):
    spec, summary = load_spec(folder / "free"), read_json(folder / "free" / "summary.json")
    assert summary is not None
    assert spec.algorithm == summary["algorithm"] == "reward-free"
    assert summary["finished"]
    assert summary["episodes"] == 300, "the whole budget, although the recorded reward was soon solved"
    assert summary["solved"]


@pytest.mark.parametrize(
    ("name", "optimum"), [("second", 0.5), ("every", 2.0)], ids=["of an action", "of all actions"]
)
def test_a_later_reward_is_planned_without_an_episode(capsys, name, optimum):
    found = outcome(capsys, "plan", "free", "--reward", f"mine.py:{name}")
    assert found["mean"] == pytest.approx(optimum)
    assert found["planned_value"] == pytest.approx(optimum, rel=0.05)
    assert found["plan_seconds"] < 1.0
    assert found["training_episodes"] == 300
    assert found["episodes"] == 100


def test_rewards_of_the_decoded_state_and_the_bonus(capsys):
    found = outcome(capsys, "plan", "free", "--reward", "mine.py:seen", "--episodes", "10")
    assert 2 / 3 < found["mean"] <= 2.0
    more = outcome(capsys, "plan", "free", "--reward", "mine.py:every", "--bonus", "--episodes", "10")
    assert more["planned_value"] > 2.0


def test_in_words(capsys):
    assert main(["plan", "free", "--reward", "mine.py:every"]) == 0
    words = capsys.readouterr().out
    assert "planned value" in words
    assert "mean return 2.0000 ± 0.0000" in words


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        ("free --reward mine.py:nothing", "has no function 'nothing': it has second"),
        ("free --reward absent.py:go", "with a file that exists"),
        ("free --reward mine.py", "FILE.py:function"),
        ("free --reward mine.py:one", "not 1 arguments"),
        ("free --reward mine.py:shape", "must return one number"),
        ("free --reward mine.py:branch", "jnp.where"),
        ("free --reward mine.py:nan", "not a finite number"),
        ("free --reward mine.py:second --episodes 0", "episodes must be >= 1"),
        ("bound --reward mine.py:second", "a run of briee, not a reward-free one"),
        ("nowhere --reward mine.py:second", "not a run directory"),
        ("free", "reward"),
    ],
)
def test_what_is_wrong_is_one_sentence(capsys, argv, sentence):
    assert sentence in refusal(capsys, "plan", *shlex.split(argv))


def test_reward_free_is_no_other_algorithm(capsys):
    assert "leave out --algo ppo" in refusal(capsys, "train", "lock", "--reward-free", "--algo", "ppo")


def test_the_help_says_whose_code_is_run(capsys):
    with pytest.raises(SystemExit):
        main(["plan", "--help"])
    assert "whose code you trust" in " ".join(capsys.readouterr().out.replace("│", " ").split())


def test_the_mixture_is_saved_and_evaluated(capsys):
    found = outcome(capsys, "evaluate", "free", "--policy", "mixture")
    assert 0.0 <= found["mean"] <= 1.0
    greedy = outcome(capsys, "evaluate", "free")
    assert greedy["mean"] == pytest.approx(1.0)
    assert "mixture_size" in refusal_without_members(capsys)


def test_who_keeps_no_past_policies_has_no_mixture():
    algorithm, _ = make_toy()
    with pytest.raises(RunError, match="toy keeps no past policies"):
        policy_of_kind(algorithm, algorithm.init(jax.random.key(0)), "mixture")


def refusal_without_members(capsys) -> str:
    assert (
        main([*TRAIN, "--preset", "paper", "--mixture-size", "0", "--episodes", "100", "--run-dir", "alone"])
        == 0
    )
    capsys.readouterr()
    return refusal(capsys, "evaluate", "alone", "--policy", "mixture")


def test_the_same_in_python(folder):
    config = load_spec(folder / "free").config
    env = CombinationLock(2, num_actions=3, instance_seed=2)
    agent = Agent(env, algorithm="reward-free", config=config)
    agent.learn(iterations=4, progress=False)
    plan = agent.plan(lambda step, s, action: (action == 1) * 1.0)
    assert plan.value == pytest.approx(2.0, rel=0.1)
    assert plan.evaluate(20).mean == pytest.approx(2.0)
    observations = np.zeros((3, *env.observation_shape), np.float32)
    assert plan.predict(observations, 0).tolist() == [1, 1, 1]
    assert plan.predict(observations[0], 1) == 1
    with pytest.raises(ValueError, match=r"step must be in 0\.\.1"):
        plan.predict(observations, 2)


def test_an_agent_that_explored_for_one_reward_cannot_plan_for_another(folder):
    config = load_spec(folder / "bound").config
    agent = briee.BRIEE(CombinationLock(2, num_actions=3), config=config, preset="paper")
    agent.learn(iterations=1, progress=False)
    with pytest.raises(NotRewardFreeError, match="reward-free"):
        agent.plan(lambda step, s: jnp.zeros(3))
