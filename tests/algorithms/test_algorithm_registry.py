"""Presets by name: what they take from the environment."""

import shlex
from typing import Any

import gymnasium as gym
import pytest

from briee.agent.agent import Agent
from briee.algorithms import registry as algorithms
from briee.cli.train import parse_train
from briee.envs.lock import CombinationLock
from briee.envs.registry import SHORT_NAMES, make
from briee.rollout.samplers import adapt

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
