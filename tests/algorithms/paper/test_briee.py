"""Algorithm 1: the parts of an update, its purity, and that it opens a lock."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from briee.algorithms.paper.briee import BrieeAlgorithm
from briee.algorithms.paper.config import BrieeConfig
from briee.diagnose.latent_map import level_history, stored_visits
from briee.envs.lock import CombinationLock
from briee.rollout.samplers import ScanSampler, evaluate

H = 3


def small(horizon: int = H, **changes) -> BrieeConfig:
    """The paper's preset with small networks and buffers, for speed."""
    config = BrieeConfig.paper(horizon)
    return replace(
        config,
        collect=replace(config.collect, buffer_size=2000, **changes),
        replearn=replace(config.replearn, hidden_sizes=(64,), rounds=15),
    )


@pytest.fixture(scope="module")
def algorithm():
    return BrieeAlgorithm(ScanSampler(CombinationLock(horizon=H, instance_seed=2)), small())


@pytest.fixture(scope="module")
def updated(algorithm):
    return algorithm.update(algorithm.init(jax.random.key(0)))


def same(one, two) -> bool:
    def equal(a, b):
        if jnp.issubdtype(a.dtype, jax.dtypes.prng_key):
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        return np.array_equal(a, b, equal_nan=a.dtype.kind == "f")

    return jax.tree.all(jax.tree.map(equal, one, two))


def test_one_update_counts_and_stores_what_it_collects(algorithm, updated):
    m = algorithm.config.collect.episodes_per_level
    assert int(updated.iteration) == 1
    assert int(updated.episodes) == m * H
    assert int(updated.env_steps) == m * (2 + 3 + 3)
    np.testing.assert_array_equal(updated.buffers.inserted, [m, 2 * m, 2 * m])
    assert updated.decoder.network.A.shape == (H, 3, 8)
    np.testing.assert_allclose(updated.decoder.temperature, [0.1, 1.0, 1.0])


def test_every_leaf_of_the_state_is_an_array_and_keeps_its_shape(algorithm, updated):
    before = algorithm.init(jax.random.key(0))
    shapes = lambda state: [(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(state)]  # noqa: E731
    assert shapes(before) == shapes(updated)
    assert jax.tree.structure(before) == jax.tree.structure(updated)


def test_an_update_is_a_pure_function_of_the_state(algorithm, updated):
    again = algorithm.update(algorithm.init(jax.random.key(0)))
    assert same(updated, again)
    other = algorithm.update(algorithm.init(jax.random.key(1)))
    assert not np.array_equal(updated.buffers.rows.observation, other.buffers.rows.observation)


def test_workers_change_nothing(algorithm, updated):
    alone = BrieeAlgorithm(algorithm.sampler, replace(algorithm.config, workers=1))
    assert same(updated, alone.update(alone.init(jax.random.key(0))))


def test_the_first_policy_is_uniform(algorithm):
    state = algorithm.init(jax.random.key(0))
    actions = algorithm.sampler.rollout(algorithm.policy(state, "optimistic"), jax.random.key(1), 1000).action
    share = np.bincount(np.asarray(actions).ravel(), minlength=10) / (1000 * H)
    np.testing.assert_allclose(share, 0.1, atol=0.025)


def test_warm_up_is_counted_and_stored():
    algorithm = BrieeAlgorithm(ScanSampler(CombinationLock(horizon=H)), small(warmup_episodes=1200))
    state = algorithm.collect(algorithm.init(jax.random.key(0)))
    assert int(state.episodes) == 1200 + 50 * H
    assert int(state.env_steps) == 1200 * H + 50 * (2 + 3 + 3)
    np.testing.assert_array_equal(state.buffers.inserted, [1250, 1300, 1300])


def test_optimistic_values_are_above_the_greedy_ones(algorithm, updated):
    observations = updated.buffers.rows.observation[1, :20]
    q = [
        jax.vmap(lambda s, q=q: q(jnp.int32(1), s))(observations)
        for q in (updated.optimistic, updated.greedy)
    ]
    assert bool((q[0] >= q[1] - 1e-5).all())


def test_briee_opens_a_lock_of_horizon_three(algorithm):
    state = algorithm.init(jax.random.key(7))
    for _ in range(25):
        state = algorithm.update(state)
        returns = evaluate(algorithm.sampler, algorithm.policy(state), jax.random.key(99), 100)
        if returns.mean() == 1.0:
            break
    assert returns.mean() == 1.0, f"after {int(state.episodes)} episodes the return is {returns.mean()}"
    emit = jax.vmap(algorithm.sampler.pure.emit, (0, None, 0))
    latent = np.repeat(np.arange(3), 50)
    keys = jax.random.split(jax.random.key(5), 150)
    decoded = np.argmax(np.asarray(algorithm.decode(state, 1, emit(jnp.asarray(latent), 1, keys))), axis=1)
    names = [np.bincount(decoded[latent == z], minlength=3).argmax() for z in range(3)]
    assert len(set(names)) == 3, "level 1 tells its three latent states apart"


def test_the_mixture_keeps_every_policy_that_collected_data():
    sampler = ScanSampler(CombinationLock(horizon=2))
    algorithm = BrieeAlgorithm(sampler, replace(small(2), mixture_size=2))
    first = algorithm.init(jax.random.key(0))
    with pytest.raises(ValueError, match="mixture_size"):
        algorithm.policy(first, "mixture")
    second = algorithm.update(first)
    third = algorithm.update(second)
    np.testing.assert_array_equal(
        third.members.weights, [first.optimistic.weights, second.optimistic.weights]
    )
    fourth = algorithm.update(third)
    assert all(
        any(np.array_equal(m, s.optimistic.weights) for s in (first, second, third))
        for m in fourth.members.weights
    )
    assert evaluate(sampler, algorithm.policy(fourth, "mixture"), jax.random.key(1), 10).shape == (10,)


@pytest.mark.parametrize("covariance", ["on_policy", "all"])
def test_the_map_of_a_run_shows_the_bonus_of_line_six(algorithm, updated, covariance):
    config = replace(algorithm.config, bonus=replace(algorithm.config.bonus, covariance=covariance, cap=None))
    own = BrieeAlgorithm(algorithm.sampler, config)
    visits, bonus, rows = stored_visits(own, updated), own.bonus(updated), updated.buffers.rows
    assert visits is not None
    _, shown = level_history(visits, np.array([1.0]), 0.0)
    assert shown is not None
    for h in range(H):
        psi = own.decode(updated, h, rows.observation[h][rows.valid[h]])
        mean = jax.vmap(lambda psi, h=h: bonus(jnp.int32(h), psi))(psi).mean()
        np.testing.assert_allclose(shown[h, 0], mean, rtol=1e-5)
