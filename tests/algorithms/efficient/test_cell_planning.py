"""Planning on cells against value iteration and enumeration written out; the strata of the data."""

from dataclasses import replace
from itertools import permutations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from briee.algorithms.efficient.cell_planning import (
    CellPolicy,
    count_cells,
    discovery_curve,
    plan_cells,
    trial_values,
)
from briee.algorithms.efficient.config import ExploreConfig
from briee.algorithms.efficient.state_decoder import StateDecoder, unfitted
from briee.algorithms.efficient.strata import (
    Strata,
    balanced,
    choose_slots,
    empty_strata,
    insert,
    rank_in_group,
)

H, L, A = 4, 3, 2
RULES = ("discovery", "tries", "bonus")


def random_counts(seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    counts = rng.integers(0, 4, size=(H, L, A, L)) * (rng.random((H, L, A, 1)) < 0.7)
    return counts.astype(np.float32), rng.normal(size=(H, L, A)).astype(np.float32) * (counts.sum(-1) > 0)


@given(st.integers(0, 10**6))
def test_plans_are_value_iteration_on_the_counted_model(seed):
    counts, rewards = random_counts(seed)
    curve = np.array([1.0, 0.3, 0.1], np.float32)
    plan = plan_cells(jnp.array(counts), jnp.array(rewards), jnp.array(curve))
    explore, exploit = np.zeros(L), np.zeros(L)
    for h in reversed(range(H)):
        U, Q = np.zeros((L, A)), np.full((L, A), -np.inf)
        for c in range(L):
            for a in range(A):
                n = counts[h, c, a].sum()
                u = curve[min(int(n), 2)]
                if n == 0:
                    U[c, a] = u
                    continue
                p = counts[h, c, a] / n
                U[c, a] = max(u, p @ explore)
                Q[c, a] = rewards[h, c, a] / n + p @ exploit
        np.testing.assert_allclose(plan.discovery[h], U, atol=1e-5)
        tried = counts[h].sum(-1) > 0
        np.testing.assert_allclose(np.asarray(plan.reward[h])[tried], Q[tried], atol=1e-4)
        assert (np.asarray(plan.reward[h])[~tried] < -1e5).all()
        explore, exploit = U.max(1), np.where(np.isfinite(Q.max(1)), Q.max(1), 0.0)
    first = counts[0].sum((1, 2))
    np.testing.assert_allclose(plan.chance, first @ explore / max(first.sum(), 1), atol=1e-5)


@given(st.lists(st.integers(0, 2), min_size=2, max_size=5), st.integers(1, 4))
def test_the_discovery_curve_counts_new_successors_over_all_orders(successors, n):
    """Rarefaction in closed form against every order in which the tries could have come."""
    counts = jnp.array([np.bincount(successors, minlength=3)], jnp.float32)
    curve = discovery_curve(counts, 4, prior_cells=1e-9)
    if n >= len(successors):
        return
    orders = list(permutations(successors))
    exact = [np.mean([order[k] not in order[:k] for order in orders]) for k in range(len(successors))]
    np.testing.assert_allclose(curve[n], min(exact[1 : n + 1]), atol=1e-5)
    assert curve[0] == 1


def test_deterministic_worlds_are_known_sooner_than_stochastic_ones():
    deterministic = discovery_curve(jnp.tile(jnp.array([[10.0, 0.0]]), (50, 1)), 8, 2.0)
    coin = discovery_curve(jnp.tile(jnp.array([[5.0, 5.0]]), (50, 1)), 8, 2.0)
    assert deterministic[1] < 0.03
    assert coin[1] > 0.5
    assert coin[5] < 0.1
    np.testing.assert_allclose(
        discovery_curve(jnp.zeros((5, 2)), 3, 2.0), [1, 1 / 2, 1 / 3, 1 / 4], rtol=1e-6
    )


def test_cells_are_counted_where_rows_are_filled():
    rng = np.random.default_rng(0)
    R = 30
    action, label, following = (rng.integers(0, n, (H, R)) for n in (A, L, L))
    action[:, 20:] = -1
    reward = rng.normal(size=(H, R))
    base = empty_strata(H, R, 1)
    strata = Strata(
        base.observation, base.observation, jnp.array(action), jnp.array(reward, jnp.float32), base.reward,
        jnp.array(label), jnp.array(following),
    )  # fmt: skip
    counts, rewards = count_cells(strata, L, A)
    for h, c, a in np.ndindex(H, L, A):
        here = (action[h] == a) & (label[h] == c)
        np.testing.assert_array_equal(counts[h, c, a], np.bincount(following[h][here], minlength=L))
        np.testing.assert_allclose(rewards[h, c, a], reward[h][here].sum(), atol=1e-5)


def line_decoder() -> StateDecoder:
    """Two states on a line, at -1 and 1; further than 2 from both is neither."""
    decoder = jax.tree.map(lambda leaf: leaf[0], unfitted(1, 2, 1))
    centre = jnp.array([[-1.0], [1.0]])
    return replace(decoder, weight=centre, centre=centre, radius=jnp.float32(4), fitted=jnp.array(True))


@pytest.mark.parametrize(("x", "label", "nearest"), [(-1.2, 0, 0), (0.5, 1, 1), (7.0, 2, 1)])
def test_a_policy_acts_on_the_decoded_state(x, label, nearest):
    value = jnp.array([[[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]])
    stacked = jax.tree.map(lambda leaf: leaf[None], line_decoder())
    for known_only, expected in ((False, label), (True, nearest)):
        policy = CellPolicy(stacked, value, jnp.float32(0.8), jnp.array(known_only))
        assert int(policy(jnp.int32(0), jnp.array([x]), jax.random.key(0))) == expected


@pytest.mark.parametrize(
    ("value", "tolerance", "allowed"),
    [([1.0, 0.85, 0.5], 0.8, {0, 1}), ([1.0, 0.85, 1.0], 1.0, {0, 2}), ([-1.0, -1.1, -2.0], 0.8, {0, 1})],
)
def test_a_policy_draws_among_nearly_equal_actions(value, tolerance, allowed):
    stacked = jax.tree.map(lambda leaf: leaf[None], line_decoder())
    policy = CellPolicy(stacked, jnp.array([[value] * 3]), jnp.float32(tolerance), jnp.array(False))
    keys = jax.random.split(jax.random.key(0), 200)
    actions = jax.vmap(lambda key: policy(jnp.int32(0), jnp.array([1.0]), key))(keys)
    assert set(np.asarray(actions).tolist()) == allowed


def test_values_of_a_further_try_by_each_rule():
    counts = jnp.array([[3.0, 0.0], [1.0, 1.0], [0.0, 0.0]])
    values = {rule: trial_values(counts, ExploreConfig(rule=rule, max_tries=4)) for rule in RULES}
    np.testing.assert_array_equal(values["tries"], [1, 1, 0, 0, 0])
    np.testing.assert_allclose(values["bonus"], [1, 2**-0.5, 3**-0.5, 1 / 2, 5**-0.5], rtol=1e-6)
    np.testing.assert_array_equal(values["discovery"], discovery_curve(counts, 4, 2.0))


GROUPS = 4
rows = st.lists(st.tuples(st.integers(0, GROUPS - 1), st.integers(0, 999)), min_size=0, max_size=12)


def slow_insert(stored: list, new: list, capacity: int) -> list:
    """Rows (group, priority, name) after offering new ones to a level, one by one."""
    for row in new:
        stored = [*stored, row]
        if len(stored) > capacity:
            sizes = [sum(group == g for group, _, _ in stored) for g in range(GROUPS)]
            largest = sizes.index(max(sizes))
            crowd = [r for r in stored if r[0] == largest]
            stored.remove(max(crowd, key=lambda r: r[1]))
    return stored


@given(rows, rows, st.integers(1, 10))
def test_slots_are_those_of_a_slow_reference(old, new, capacity):
    unique = {priority: (group, priority / 1000) for group, priority in old + new}  # no ties in priority
    old = [unique[p] for p in dict.fromkeys(p for _, p in old)][:capacity]
    new = [unique[p] for p in dict.fromkeys(p for _, p in new) if unique[p] not in old]
    if not new:
        return
    padding = [(-1, 0.0)] * (capacity - len(old))
    group, priority = (jnp.array(column) for column in zip(*(old + padding), strict=True))
    new_group, new_priority = (jnp.array(column) for column in zip(*new, strict=True))
    slot, tries = choose_slots(group, priority, new_group, new_priority, GROUPS)
    after = dict(enumerate(old))
    after |= {int(s): row for s, row in zip(slot, new, strict=True) if s < capacity}
    expected = slow_insert([(*row, row) for row in old], [(*row, row) for row in new], capacity)
    assert sorted(after.values()) == sorted(row for _, _, row in expected)
    assert int(tries[0]) == sum(g == new[0][0] for g, _ in old)


def episodes(key, E: int, H: int, D: int, K: int, A: int):
    keys = jax.random.split(key, 4)
    return (
        jax.random.normal(keys[0], (E, H + 1, D)),
        jax.random.randint(keys[1], (E, H), 0, A),
        jax.random.normal(keys[2], (E, H)),
        jax.random.randint(keys[3], (E, H + 1), 0, K),
    )


def test_a_level_keeps_every_transition_until_it_is_full():
    H, D, E, A, K = 3, 2, 5, 2, 2
    x, a, r, c = episodes(jax.random.key(0), E, H, D, K, A)
    strata, tries = insert(empty_strata(H, 8, D), x, a, r, c, jax.random.key(1), K * A, A)
    for h in range(H):
        np.testing.assert_array_equal(strata.observation[h, :E], x[:, h])
        np.testing.assert_array_equal(strata.next_observation[h, :E], x[:, h + 1])
        np.testing.assert_array_equal(strata.next_label[h, :E], c[:, h + 1])
        np.testing.assert_array_equal(strata.action[h], [*a[:, h], -1, -1, -1])
        np.testing.assert_array_equal(strata.group(A)[h, :E], c[:, h] * A + a[:, h])
        group = np.asarray(c[:, h] * A + a[:, h]).tolist()
        np.testing.assert_array_equal(tries[h], [group[:i].count(g) for i, g in enumerate(group)])


def test_rare_groups_survive_a_flood_of_common_ones():
    x, a, r, c = episodes(jax.random.key(0), 4, 1, 2, 1, 1)
    strata, _ = insert(empty_strata(1, 16, 2), x, a, r, c + 1, jax.random.key(1), 2, 1)
    for i in range(10):
        x, a, r, c = episodes(jax.random.key(i), 30, 1, 2, 1, 1)
        strata, tries = insert(strata, x, a, r, c, jax.random.key(i), 2, 1)
    np.testing.assert_array_equal(np.bincount(strata.label[0]), [12, 4])
    np.testing.assert_array_equal(tries, 12)


def test_a_full_stratum_is_a_uniform_sample_of_all_that_was_offered():
    def survivors(key):
        zero = jnp.zeros((40, 1), jnp.int32)
        x = jnp.broadcast_to(jnp.arange(40.0)[:, None, None], (40, 2, 1))
        strata, _ = insert(
            empty_strata(1, 10, 1), x, zero, zero + 0.0, jnp.zeros((40, 2), jnp.int32), key, 1, 1
        )
        return strata.observation[0, :, 0]

    kept = jax.vmap(survivors)(jax.random.split(jax.random.key(0), 2000)).astype(int)
    share = np.bincount(np.asarray(kept).ravel(), minlength=40) / 2000
    np.testing.assert_allclose(share, 0.25, atol=5 * np.sqrt(0.25 * 0.75 / 2000))


@given(rows)
def test_ranks_and_balanced_samples(table):
    if not table:
        return
    group = np.array([g for g, _ in table]) - 1  # -1: empty
    priority = np.array([p / 1000 for _, p in table]) + np.arange(len(table)) * 1e-5
    rank = np.array([sum((group == g) & (priority < p)) for g, p in zip(group, priority, strict=True)])
    np.testing.assert_array_equal(rank_in_group(jnp.array(group), jnp.array(priority)), rank)
    chosen, weight = balanced(jnp.array(group), jnp.array(priority), len(table) // 2 + 1)
    np.testing.assert_array_equal(weight, group[chosen] >= 0)
    assert weight.sum() == min(len(chosen), (group >= 0).sum())
    left_out = np.setdiff1d(np.flatnonzero(group >= 0), chosen)
    kept = np.asarray(chosen)[np.asarray(weight) > 0]
    if len(left_out) and len(kept):
        assert rank[kept].max() <= rank[left_out].min()


def test_without_strata_a_flood_drowns_what_is_rare():
    """The same rows with and without strata: 4 rare ones, then 400 common ones."""
    kept = {}
    for stratified in (True, False):
        strata = empty_strata(1, 16, 1)
        for i, (label, n) in enumerate([(1, 4), *[(0, 40)] * 10]):
            x, a, r = jnp.zeros((n, 2, 1)), jnp.zeros((n, 1), int), jnp.zeros((n, 1))
            c = jnp.full((n, 2), label)
            strata, _ = insert(strata, x, a, r, c, jax.random.key(i), 2, 1, stratified)
        kept[stratified] = int((strata.label == 1).sum())
    assert kept[True] == 4
    assert kept[False] <= 1
