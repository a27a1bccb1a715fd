"""Load, evaluate and learn equals learn, bit by bit, with a learned policy that depends on observations."""

import gymnasium as gym
import numpy as np

from briee.agent.agent import Agent
from briee.agent.loading import load
from briee.algorithms.efficient.config import EfficientConfig, StrataConfig
from briee.testing import QUIET, equal, some_observations, untimed

UPDATES = 2


def new_agent() -> Agent:
    env = gym.make("briee/CombinationLock-v0", horizon=2, num_actions=3, instance_seed=2)
    return Agent(env, algo="efficient", config=EfficientConfig(strata=StrataConfig(rows=64, fit_rows=48)))


def test_load_evaluate_learn_equals_learn(tmp_path):
    at_once = new_agent().learn(iterations=2 * UPDATES, **QUIET)
    new_agent().learn(iterations=UPDATES, **QUIET).save(tmp_path / "half.briee")
    loaded = load(tmp_path / "half.briee")
    actions = loaded.predict(some_observations(loaded, 50)[1], 1)
    assert len(np.unique(actions)) > 1, "the policy must depend on the observation to show anything"
    for episodes in (7, 20, 100):
        loaded.evaluate(episodes)
    loaded.learn(iterations=UPDATES, **QUIET)
    assert equal(loaded.state, at_once.state)
    assert untimed(loaded) == untimed(at_once)
