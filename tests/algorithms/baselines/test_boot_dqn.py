"""Bootstrapped DQN: its loss on a known case, its memory, and a small lock."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from briee.agent.agent import Agent
from briee.algorithms.baselines.boot_dqn import BootDqn, Ensemble, Replay, dqn_loss
from briee.algorithms.baselines.fitting import Layers
from briee.algorithms.baselines.rival_config import BootDqnConfig
from briee.envs.lock import CombinationLock
from briee.rollout.samplers import ScanSampler

SMALL = replace(BootDqnConfig.bsuite(3), heads=5, batch=64, steps_per_episode=5)


def constant(values) -> Layers:
    """Networks [N] of x and two levels whose outputs are these numbers [N, A]."""
    return Layers((jnp.zeros((len(values), 3, 2)),), (jnp.asarray(values, jnp.float32),), "relu")


def test_the_loss_bootstraps_before_the_last_level_and_respects_masks():
    nets, priors = constant([[1.0, 0.0], [0.0, 0.0]]), constant([[0.0, 0.5], [0.0, 0.0]])
    ensemble = Ensemble(nets, priors, 2.0, 2)  # Q = [[1, 1], [0, 0]]
    rows = Replay(
        x=jnp.zeros((2, 1)),
        level=jnp.array([0, 1]),
        action=jnp.array([0, 0]),
        reward=jnp.array([0.5, 0.5]),
        next_x=jnp.zeros((2, 1)),
        seen_by=jnp.array([[True, False], [True, True]]),
    )
    target = constant([[3.0, 0.0], [0.0, 0.0]])  # with the prior, max Q is 3 for the first network
    first, second = 0.5 + 0.9 * 3.0, 0.5
    expected = ((1 - first) ** 2 + (1 - second) ** 2 + (0 - second) ** 2) / 2
    assert float(dqn_loss(nets, target, ensemble, rows, 0.9)) == pytest.approx(expected)


def test_priors_never_learn_and_the_oldest_transitions_are_replaced():
    lock = CombinationLock(horizon=2, num_actions=3)
    config = replace(SMALL, replay_size=30, rounds=2, steps_per_episode=1)
    algorithm = BootDqn(ScanSampler(lock), config)
    before = algorithm.init(jax.random.key(0))
    after = algorithm.update(before)
    np.testing.assert_array_equal(after.ensemble.priors.weights[0], before.ensemble.priors.weights[0])
    assert int(after.inserted) == 40
    assert not np.array_equal(after.replay.x[:10], jnp.zeros((10, after.replay.x.shape[1])))
    assert set(np.asarray(after.replay.level)) == {0, 1}


@pytest.mark.slow
def test_it_opens_a_small_lock():
    lock = CombinationLock(horizon=2, num_actions=4, instance_seed=5)
    agent = Agent(lock, algo="boot-dqn", config=SMALL, seed=7).learn(episodes=2000, progress=False)
    assert agent.solved


def test_a_memory_smaller_than_a_round_is_refused():
    with pytest.raises(ValueError, match="replay_size must hold 10 episodes of 2 steps, got 5: enlarge it"):
        BootDqn(ScanSampler(CombinationLock(horizon=2)), replace(SMALL, replay_size=5))
