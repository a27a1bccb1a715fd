"""Every baseline keeps the contract that BRIEE's agent keeps."""

import importlib.util
from dataclasses import replace
from typing import Any

import pytest

from briee.agent.agent import Agent
from briee.algorithms import registry as algorithms
from briee.algorithms.registry import BASELINES, RIVALS
from briee.envs.lock import CombinationLock
from briee.testing import check_agent
from field_reads import FieldReads

HORIZON = 2
SMALL: dict[str, dict[str, Any]] = {
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
    assert set(SMALL) | set(RIVALS) == set(BASELINES)  # rivals have a file of their own


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=LIBRARY if name.startswith("sb3") else ()) for name in SMALL]
)
def test_baselines_keep_the_contract_and_read_every_field(name):
    reads = FieldReads()
    config = reads.watch(replace(algorithms.preset(name, "paper", HORIZON), **SMALL[name]))
    lock = CombinationLock(horizon=HORIZON, num_actions=3, instance_seed=3)
    agent = check_agent(lambda seed: Agent(lock, algorithm=name, config=config, seed=seed), iterations=1)
    assert agent.iterations == 2
    assert reads.unread(config) == READ_BY_OTHERS.get(name, set())
    assert 0 < int(agent.state.env_steps) <= HORIZON * agent.episodes  # A2C pauses within an episode
