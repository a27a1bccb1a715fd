"""Ring buffers against a slow reference."""

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from briee.algorithms.paper.buffers import Transitions, empty_buffers, insert
from briee.numerics.linalg import at_level

H, CAPACITY, BATCH = 2, 5, 4


def rows(numbers: np.ndarray, valid: np.ndarray) -> Transitions:
    """Rows [H, BATCH] whose every field tells the tag."""
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
@given(st.lists(st.lists(st.booleans(), min_size=H * BATCH, max_size=H * BATCH), max_size=6))
def test_buffers_keep_the_newest_rows(masks):
    buffers, reference = empty_buffers(H, CAPACITY, (2,)), [[] for _ in range(H)]
    tag = 0
    for mask in masks:
        valid = np.array(mask).reshape(H, BATCH)
        tags = tag + np.arange(H * BATCH).reshape(H, BATCH)
        tag += H * BATCH
        buffers = insert(buffers, rows(tags, valid))
        for h in range(H):
            reference[h] += list(tags[h][valid[h]])
    for h in range(H):
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


def test_insert_leaves_the_old_buffers_alone():
    old = empty_buffers(H, CAPACITY, (2,))
    insert(old, rows(np.ones((H, BATCH), int), np.ones((H, BATCH), bool)))
    assert not bool(old.rows.valid.any())
    assert jax.tree.all(jax.tree.map(lambda x: not x.any(), old.rows))
