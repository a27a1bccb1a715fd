"""Presets by name: what they take from the environment; every baseline keeps the contract."""

import importlib.util
import shlex
from dataclasses import replace
from typing import Any

import gymnasium as gym
import pytest

from briee.agent.agent import Agent
from briee.algorithms import registry as algorithms
from briee.algorithms.registry import BASELINES, RIVALS
from briee.cli.train import parse_train
from briee.configuration import changed
from briee.envs.lock import CombinationLock
from briee.envs.registry import SHORT_NAMES, make
from briee.rollout.samplers import adapt
from briee.testing import check_agent
from reads import FieldReads

H = 30
DENSE_ID = "briee/CombinationLockDense-v0"


class Condensed(gym.Env):
    """Somebody's environment, whose name says nothing about its rewards."""

    observation_space = gym.spaces.Discrete(2)
    action_space = gym.spaces.Discrete(2)


def alpha(env: Any) -> float:
    """alpha of the preset `paper`, as an agent on `env` has it."""
    return Agent(env, "paper", horizon=None if isinstance(env, CombinationLock) else H).config.bonus.alpha


@pytest.mark.parametrize(
    "env",
    [
        "lock-dense",
        DENSE_ID,
        lambda: make("lock-dense", horizon=H),
        lambda: gym.make(DENSE_ID, horizon=H),
        lambda: gym.make_vec(DENSE_ID, num_envs=2, horizon=H),
        lambda: gym.make(DENSE_ID, horizon=H + 1),  # cut short, so that it is stepped on the host
        lambda: gym.make("briee/CombinationLock-v0", horizon=H, step_reward=0.1),
    ],
)
def test_dense_rewards_are_found_however_the_environment_is_given(env):
    assert alpha(env() if callable(env) else env) == pytest.approx(H / 50)


@pytest.mark.parametrize(
    "env",
    [
        "lock",
        "lock-homer",
        lambda: make("lock", horizon=H),
        lambda: gym.make(DENSE_ID, horizon=H, step_reward=0.0),
        Condensed,
    ],
)
def test_other_rewards_are_not_dense(env):
    assert alpha(env() if callable(env) else env) == pytest.approx(H / 5)


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        ("lock-dense", H / 50),
        (DENSE_ID, H / 50),
        ("lock-dense --env.step_reward 0", H / 5),
        ("lock --env.step_reward 0.1", H / 50),
        ("lock", H / 5),
        ("condense.py:Env", H / 5),
    ],
)
def test_the_command_line_agrees(request_, expected):
    argv = [*shlex.split(request_), "--horizon", str(H)]
    paper: Any = parse_train([*argv, "--preset", "paper"])[1].config
    baseline: Any = parse_train([*argv, "--algo", "lsvi-ucb"])[1].config
    assert (paper.bonus.alpha, baseline.beta) == (pytest.approx(expected), pytest.approx(expected))


def test_a_name_means_what_the_environment_of_that_name_means():
    for name in SHORT_NAMES:
        env = adapt(name).sampler.pure
        by_name, by_object = (algorithms.preset("briee", "paper", H, known) for known in (name, env))
        assert by_name == by_object, name


HORIZON = 2
SMALL_BASELINES: dict[str, dict[str, Any]] = {
    "lsvi-ucb": {"episodes_per_update": 20},
    "lsvi-ucb-rff": {"episodes_per_update": 20, "dimension": 20, "buffer_size": 400},
    "ppo": {"workers": 20, "minibatch": 20},
    "ppo-rnd": {"workers": 20, "minibatch": 20},
    "sb3:PPO": {"episodes_per_update": 20},
    "sb3:A2C": {"episodes_per_update": 20},
    "sb3:DQN": {"episodes_per_update": 100, "replay_size": 300},
}
"""Changes of the preset that make a baseline fast. DQN begins to learn after 100 steps, and its memory here
overflows in the second update."""
READ_BY_OTHERS = {"lsvi-ucb": {"buffer_size"}, "sb3:PPO": {"replay_size"}, "sb3:A2C": {"replay_size"}}
"""Fields that one algorithm of a configuration class reads and another does not: features that are not
one-hot need a buffer, and only DQN replays."""
LIBRARY = pytest.mark.skipif(
    importlib.util.find_spec("stable_baselines3") is None, reason="Stable-Baselines3 is not installed"
)


def test_every_baseline_is_checked():
    assert set(SMALL_BASELINES) | set(RIVALS) == set(BASELINES)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=LIBRARY if name.startswith("sb3") else ()) for name in SMALL_BASELINES]
)
def test_baselines_keep_the_contract_and_read_every_field(name):
    reads = FieldReads()
    config = reads.watch(replace(algorithms.preset(name, "paper", HORIZON), **SMALL_BASELINES[name]))
    lock = CombinationLock(horizon=HORIZON, num_actions=3, instance_seed=3)
    agent = check_agent(lambda seed: Agent(lock, algorithm=name, config=config, seed=seed), iterations=1)
    assert agent.iterations == 2
    assert reads.unread(config) == READ_BY_OTHERS.get(name, set())
    assert 0 < int(agent.state.env_steps) <= HORIZON * agent.episodes  # A2C pauses within an episode


SMALL_RIVALS: dict[str, dict[str, Any]] = {
    "boot-dqn": {
        "heads": 3, "hidden_size": 8, "batch": 8, "workers": 5, "steps_per_episode": 1, "rounds": 2,
        "replay_size": 15,
    },
    "flambe": {"episodes_per_level": 60},
    "homer": {"episodes_per_level": 40, "epochs": 2, "restarts": 1, "psdp.episodes": 20},
    "musik": {
        "episodes_per_level": 40, "hidden_size": 8, "steps": 4, "psdp.episodes": 20,
        "psdp.regression.hidden_size": 8, "psdp.regression.steps": 4,
    },
    "moffle": {"episodes_per_level": 40, "features.rounds": 2, "features.steps": 2, "members": 2},
    "olive": {"estimate_episodes": 50, "eliminate_episodes": 200},
    "pcid": {"episodes_per_level": 100},
    "ppe": {"episodes_per_level": 60, "steps": 4},
    "rep-ucb": {"episodes_per_level": 20, "buffer_size": 60},
    "vox": {
        "episodes_per_level": 40, "features.rounds": 2, "features.steps": 2, "estimate_episodes": 10,
        "psdp.episodes": 20, "swaps": 0,
    },
}  # fmt: skip
"""Changes of the first preset that make a rival fast."""
WORLDS: dict[str, tuple[str, dict[str, Any]]] = {"olive": ("finite-lock", {"num_actions": 3})}
"""Worlds of the rivals that cannot handle a small lock."""


def small(name: str) -> Any:
    """The first preset of a rival, made small."""
    config = algorithms.preset(name, algorithms.default_preset(name), HORIZON)
    for field, value in SMALL_RIVALS[name].items():
        config = changed(config, field, value)
    return config


def world(name: str) -> Any:
    """The world of a rival."""
    env, arguments = WORLDS.get(name, ("lock", {"num_actions": 3}))
    return make(env, horizon=HORIZON, instance_seed=3, **arguments)


def test_every_rival_is_checked():
    assert set(SMALL_RIVALS) == set(RIVALS)


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL_RIVALS)
def test_rivals_keep_the_contract(name):
    config, env = small(name), world(name)
    agent = check_agent(lambda seed: Agent(env, algorithm=name, config=config, seed=seed), iterations=2)
    assert agent.iterations == 4
    assert 0 < int(agent.state.env_steps) <= HORIZON * agent.episodes
