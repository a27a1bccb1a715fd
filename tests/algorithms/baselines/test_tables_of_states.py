"""PCID and PPE: states decoded from the past, plans in their tables. Bootstrapped DQN: loss and memory."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from briee.agent.agent import Agent
from briee.algorithms.baselines.boot_dqn import BootDqn, Ensemble, Replay, dqn_loss
from briee.algorithms.baselines.fitting import Layers
from briee.algorithms.baselines.latent_models import dynamic_programming, homing_tables, occupancy
from briee.algorithms.baselines.pcid import k_means
from briee.algorithms.baselines.ppe import eliminate
from briee.algorithms.baselines.rival_config import BootDqnConfig, PcidConfig, PpeConfig
from briee.envs.block import LatentModel
from briee.envs.lock import CombinationLock
from briee.rollout.samplers import ScanSampler


def random_tables(rng: np.random.Generator) -> LatentModel:
    return LatentModel(
        rng.dirichlet(np.ones(3)), rng.dirichlet(np.ones(3), size=(3, 3, 2)), rng.uniform(size=(3, 3, 2))
    )


def test_plans_in_tables_are_those_of_the_latent_model():
    model = random_tables(np.random.default_rng(0))
    p, r = jnp.asarray(model.transition), jnp.asarray(model.reward)
    q = dynamic_programming(p, r)
    np.testing.assert_allclose(q, model.q_values(), atol=1e-5)
    visits = occupancy(jnp.asarray(model.initial), p, q)
    np.testing.assert_allclose((visits * r).sum(), model.optimal_return(), atol=1e-5)
    target = 1
    reached = LatentModel(model.initial, model.transition[:2], np.zeros((2, 3, 2)))
    reached.reward[1] = model.transition[1, :, :, target]
    np.testing.assert_allclose(homing_tables(p, 2)[target, 0], reached.q_values()[0], atol=1e-5)


def test_k_means_finds_separate_clusters():
    rng = np.random.default_rng(1)
    label = rng.integers(3, size=300)
    points = jnp.asarray(5 * np.eye(3)[label] + rng.normal(size=(300, 3)) * 0.1, jnp.float32)
    centres, sizes = k_means(points, 3, 4, jax.random.key(0), 5)
    nearest = np.abs(np.asarray(centres)[:3, None] - 5 * np.eye(3)).sum(axis=-1)
    np.testing.assert_array_equal(np.sort(nearest.argmin(axis=1)), [0, 1, 2])
    assert nearest.min(axis=1).max() < 0.2
    assert sorted(np.asarray(sizes)) == sorted([0, *np.bincount(label)])


def test_pcid_opens_a_lock_whose_lanes_mix_unevenly():
    lock = CombinationLock(horizon=3, num_actions=4, switch_probability=0.1, instance_seed=5)
    config = replace(PcidConfig.paper(3), episodes_per_level=800)
    agent = Agent(lock, algo="pcid", config=config, seed=7).learn(episodes=5000, progress=False)
    assert agent.solved
    assert agent.summary()["episodes_to_solve"] == 3 * 800 + 4 * 20
    assert agent.history[-1]["decoder_accuracy"] == 1.0


def test_elimination_keeps_one_path_per_state():
    """Candidates 0 and 2 end alike, so do 1 and 3; the fifth is no candidate."""
    gaps = np.full((5, 5), 0.9)
    gaps[0, 2] = gaps[2, 0] = gaps[1, 3] = gaps[3, 1] = 0.01
    merged, kept = eliminate(gaps, 4, 0.1, room=3)
    assert (merged.tolist(), kept) == ([0, 1, 0, 1, -1], [0, 1])
    merged, kept = eliminate(gaps, 4, 0.1, room=1)
    assert (merged.tolist(), kept) == ([0, 0, 0, 0, -1], [0])


def test_ppe_opens_a_deterministic_lock_behind_distractors():
    lock = CombinationLock(horizon=3, num_actions=4, num_good=1, distractors=8, instance_seed=5)
    config = replace(PpeConfig.paper(3), episodes_per_level=800)
    agent = Agent(lock, algo="ppe", config=config, seed=7).learn(episodes=5000, progress=False)
    assert agent.solved
    assert agent.summary()["episodes_to_solve"] == 3 * 800 + 4 * 20


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
