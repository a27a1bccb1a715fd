"""Algorithms 1 and 3: the parts of an update, a lock opened; LSVI, bonus and buffers against dense sums."""

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from briee.algorithms.bonus import upper_bound
from briee.algorithms.paper.briee import BrieeAlgorithm
from briee.algorithms.paper.buffers import Transitions, empty_buffers, insert
from briee.algorithms.paper.config import BonusConfig, BrieeConfig
from briee.algorithms.paper.lsvi import QFunction, lsvi
from briee.diagnose.latent_map import level_history, stored_visits
from briee.envs.lock import CombinationLock
from briee.numerics.linalg import at_level
from briee.rollout.policies import GreedyPolicy
from briee.rollout.samplers import ScanSampler, evaluate
from small_runs import bonus_of

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


H, Z, A, N = 3, 3, 2, 200


class OneHot(eqx.Module):
    """The observation is the latent state itself, as a one-hot vector."""

    scale: jax.Array

    def __call__(self, observation):
        return self.scale * observation


DECODER = OneHot(jnp.ones(H))


@pytest.fixture(scope="module")
def problem():
    """A random tabular problem: data by level, and its empirical model."""
    rng = np.random.default_rng(0)
    P = rng.dirichlet(np.ones(Z) * 0.5, size=(H, Z, A))
    R = rng.uniform(size=(H, Z, A))
    z = rng.integers(Z, size=(H, N))
    a = rng.integers(A, size=(H, N))
    level = np.arange(H)[:, None]
    z_next = (rng.uniform(size=(H, N, 1)) > P[level, z, a].cumsum(-1)).sum(-1)
    reward = R[level, z, a] + rng.normal(0, 0.1, size=(H, N))
    on_policy = rng.uniform(size=(H, N)) < 0.5
    valid = rng.uniform(size=(H, N)) < 0.9
    data = Transitions(
        observation=jnp.eye(Z)[z],
        action=jnp.asarray(a, jnp.int32),
        reward=jnp.asarray(reward, jnp.float32),
        next_observation=jnp.eye(Z)[z_next],
        on_policy=jnp.asarray(on_policy),
        valid=jnp.asarray(valid),
    )
    return data, z, a, z_next, reward, on_policy, valid


def value_iteration(problem, lam, bonus=None):
    """Q [H, Z, A] of the empirical model whose counts are damped by lam, as ridge regression damps them."""
    _, z, a, z_next, reward, _, valid = problem
    Q, V = np.zeros((H, Z, A)), np.zeros(Z)
    for h in reversed(range(H)):
        for state in range(Z):
            for action in range(A):
                cell = valid[h] & (z[h] == state) & (a[h] == action)
                total = (reward[h][cell] + V[z_next[h][cell]]).sum()
                Q[h, state, action] = total / (cell.sum() + lam)
        if bonus is not None:
            Q[h] += bonus[h]
        V = Q[h].max(axis=1)
    return Q


def counts(problem, keep):
    _, z, a, *_ = problem
    N_h = np.zeros((H, Z, A))
    np.add.at(N_h, (np.nonzero(keep)[0], z[keep], a[keep]), 1)
    return N_h


def table(q: QFunction) -> np.ndarray:
    return np.array([[q(jnp.int32(h), jnp.eye(Z)[state]) for state in range(Z)] for h in range(H)])


def test_lsvi_without_bonus_is_value_iteration_on_the_empirical_model(problem):
    for lam in (1e-3, 1.0):
        q = lsvi(problem[0], DECODER, lam, A)
        np.testing.assert_allclose(table(q), value_iteration(problem, lam), rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("covariance", ["on_policy", "all"])
@pytest.mark.parametrize("cap", [None, 0.3])
def test_the_bonus_is_alpha_over_root_count(problem, covariance, cap):
    alpha, lam = 1.5, 1.0
    bonus = bonus_of(problem[0], DECODER, BonusConfig(alpha, cap, covariance), lam, A)
    keep = problem[6] & (problem[5] | (covariance == "all"))
    expected = np.minimum(alpha / np.sqrt(counts(problem, keep) + lam), np.inf if cap is None else cap)
    values = np.array([[bonus(jnp.int32(h), jnp.eye(Z)[z]) for z in range(Z)] for h in range(H)])
    np.testing.assert_allclose(values, expected, rtol=1e-4)


def test_lsvi_with_bonus_is_value_iteration_with_bonus_and_optimistic(problem):
    lam = 1.0
    bonus = bonus_of(problem[0], DECODER, BonusConfig(1.0), lam, A)
    values = np.array([[bonus(jnp.int32(h), jnp.eye(Z)[z]) for z in range(Z)] for h in range(H)])
    q = table(lsvi(problem[0], DECODER, lam, A, bonus=bonus))
    np.testing.assert_allclose(q, value_iteration(problem, lam, values), rtol=2e-4, atol=2e-4)
    assert (q >= table(lsvi(problem[0], DECODER, lam, A)) - 1e-5).all()


def test_a_known_reward_replaces_the_sampled_one(problem):
    R = np.random.default_rng(1).uniform(size=(H, Z, A)).astype(np.float32)

    def reward(level, observation):
        return jnp.asarray(R)[level].T @ observation

    q = table(lsvi(problem[0], DECODER, 1e-3, A, reward=reward))
    silent = (*problem[:4], np.zeros_like(problem[4]), *problem[5:])
    np.testing.assert_allclose(q, value_iteration(silent, 1e-3, bonus=R), rtol=2e-3, atol=2e-3)


def test_values_are_clipped(problem):
    q = lsvi(problem[0], DECODER, 1.0, A, clip=0.5)
    assert table(q).max() <= 0.5
    assert table(lsvi(problem[0], DECODER, 1.0, A)).max() > 0.5


def test_greedy_policy_takes_the_best_action_and_breaks_ties_at_random():
    weights = jnp.zeros((1, 3, 2)).at[0, 2, 0].set(1.0)
    policy = GreedyPolicy(QFunction(OneHot(jnp.ones(1)), weights, upper_bound(None)))
    keys = jax.random.split(jax.random.key(0), 300)
    best = jax.vmap(lambda k: policy(jnp.int32(0), jnp.array([1.0, 0.0]), k))(keys)
    tied = jax.vmap(lambda k: policy(jnp.int32(0), jnp.array([0.0, 1.0]), k))(keys)
    assert (np.asarray(best) == 2).all()
    assert np.bincount(np.asarray(tied), minlength=3).min() > 60


LEVELS, CAPACITY, BATCH = 2, 5, 4


def rows(numbers: np.ndarray, valid: np.ndarray) -> Transitions:
    """Rows [LEVELS, BATCH] whose every field tells the tag."""
    tags = jnp.asarray(numbers)
    return Transitions(
        observation=jnp.stack([tags, -tags], axis=-1).astype(float),
        action=tags.astype(jnp.int32),
        reward=tags / 2,
        next_observation=jnp.stack([tags + 1, tags], axis=-1).astype(float),
        on_policy=tags % 2 == 0,
        valid=jnp.asarray(valid),
    )


@settings(max_examples=40, deadline=None)
@given(st.lists(st.lists(st.booleans(), min_size=LEVELS * BATCH, max_size=LEVELS * BATCH), max_size=6))
def test_buffers_keep_the_newest_rows(masks):
    buffers, reference = empty_buffers(LEVELS, CAPACITY, (2,)), [[] for _ in range(LEVELS)]
    tag = 0
    for mask in masks:
        valid = np.array(mask).reshape(LEVELS, BATCH)
        tags = tag + np.arange(LEVELS * BATCH).reshape(LEVELS, BATCH)
        tag += LEVELS * BATCH
        buffers = insert(buffers, rows(tags, valid))
        for h in range(LEVELS):
            reference[h] += list(tags[h][valid[h]])
    for h in range(LEVELS):
        level = at_level(buffers.rows, h)
        size = int(level.size)
        expected = reference[h][-CAPACITY:]
        assert int(buffers.inserted[h]) == len(reference[h])
        assert size == len(expected)
        assert bool(level.valid[:size].all()), "valid rows come first"
        assert sorted(np.asarray(level.action[:size])) == sorted(expected)
        np.testing.assert_array_equal(level.observation[:size, 0], level.action[:size])
        np.testing.assert_array_equal(level.reward[:size] * 2, level.action[:size])
        np.testing.assert_array_equal(level.next_observation[:size, 1], level.action[:size])
        np.testing.assert_array_equal(level.on_policy[:size], level.action[:size] % 2 == 0)


def test_a_batch_larger_than_the_ring_leaves_its_newest_rows():
    tags = np.arange(2 * 12).reshape(2, 12)
    buffers = insert(empty_buffers(2, CAPACITY, (2,)), rows(tags, np.ones((2, 12), bool)))
    assert sorted(np.asarray(at_level(buffers.rows, 1).action)) == list(range(19, 24))


def test_whole_episodes_are_kept_once():
    """Rows of an episode share their slot, so `insert_episodes` keeps what `insert` keeps, in half the
    memory, also if a batch is larger than the ring."""
    shared = plain = empty_buffers(LEVELS, 16, (2,), whole=True)
    for start, batch in ((0, 5), (5, 16), (21, 40)):
        numbers = np.arange(start, start + batch) + 100 * np.arange(LEVELS + 1)[:, None]
        seen, yes = jnp.stack([numbers, -numbers], axis=-1).astype(float), jnp.ones((LEVELS, batch), bool)
        new = replace(
            rows(numbers[:-1], np.asarray(yes)),
            observation=seen[:-1],
            next_observation=seen[1:],
            roll_in=~yes,
        )
        shared, plain = shared.with_rows(new), insert(plain, new)
        jax.tree.map(np.testing.assert_array_equal, shared, plain)
        before, after = (
            x.unsafe_buffer_pointer() for x in (shared.rows.observation, shared.rows.next_observation)
        )
        assert after - before == shared.rows.observation[0].nbytes, "one array holds both"


def test_insert_leaves_the_old_buffers_alone():
    old = empty_buffers(LEVELS, CAPACITY, (2,))
    insert(old, rows(np.ones((LEVELS, BATCH), int), np.ones((LEVELS, BATCH), bool)))
    assert not bool(old.rows.valid.any())
    assert jax.tree.all(jax.tree.map(lambda x: not x.any(), old.rows))
