"""Stratified buffers: against a slow reference, and what a full level keeps."""

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from briee.algorithms.efficient.strata import balanced, choose_slots, empty_strata, insert, rank_in_group

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
