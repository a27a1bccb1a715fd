"""LSVI and the bonus against the dense computation and value iteration written out; the replay buffers."""

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from briee.algorithms.bonus import upper_bound
from briee.algorithms.paper.buffers import Transitions, empty_buffers, insert
from briee.algorithms.paper.config import BonusConfig
from briee.algorithms.paper.lsvi import QFunction, lsvi
from briee.numerics.linalg import at_level
from briee.rollout.policies import GreedyPolicy
from small_runs import bonus_of

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


def value_iteration(problem, lam, bonus=None, prior="zero"):
    """Q [H, Z, A] of the empirical model with lam further rows in each cell, as ridge regression has them:
    rows without a reward that lead to a state of value zero, or to the worst next state of the level."""
    _, z, a, z_next, reward, _, valid = problem
    Q, V = np.zeros((H, Z, A)), np.zeros(Z)
    for h in reversed(range(H)):
        worst = V[z_next[h][valid[h]]].min() if prior == "least" else 0.0
        for state in range(Z):
            for action in range(A):
                cell = valid[h] & (z[h] == state) & (a[h] == action)
                total = (reward[h][cell] + V[z_next[h][cell]]).sum()
                Q[h, state, action] = (total + lam * worst) / (cell.sum() + lam)
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


def test_the_ridge_shrinks_to_the_least_value_of_a_next_state(problem):
    for lam in (0.01, 5.0):
        bonus = bonus_of(problem[0], DECODER, BonusConfig(1.0), lam, A)
        values = np.array([[bonus(jnp.int32(h), jnp.eye(Z)[z]) for z in range(Z)] for h in range(H)])
        q = table(lsvi(problem[0], DECODER, lam, A, bonus=bonus, prior="least"))
        expected = value_iteration(problem, lam, values, prior="least")
        np.testing.assert_allclose(q, expected, rtol=2e-4, atol=2e-4)
    assert (q > table(lsvi(problem[0], DECODER, lam, A, bonus=bonus))[0].min()).any()


def test_a_level_without_data_has_no_least_value(problem):
    empty = problem[0].valid.at[1].set(False)
    q = table(lsvi(replace(problem[0], valid=empty), DECODER, 1.0, A, prior="least"))
    np.testing.assert_array_equal(q[1], 0)
    assert np.isfinite(q).all()


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
