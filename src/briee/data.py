"""Transitions, and the ring buffers that hold D_h and D'_h of every level.

One ring per level holds D_h and D'_h together, first in, first out, as the paper's implementation does; the
flag `on_policy` tells them apart (D_h: one uniform action after rolling in; D'_h: two).
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int


class Transitions(eqx.Module):
    """Transitions (s, a, r, s') of one level, or of every level with a leading axis H."""

    observation: Float[Array, "..."]
    action: Int[Array, "*levels n"]
    reward: Float[Array, "*levels n"]
    next_observation: Float[Array, "..."]
    on_policy: Bool[Array, "*levels n"]
    valid: Bool[Array, "*levels n"]

    @property
    def size(self) -> Int[Array, "*levels"]:
        """How many rows are filled. Valid rows come first."""
        return self.valid.sum(-1)


class Buffers(eqx.Module):
    """Ring buffers of every level; `inserted` counts all rows ever written to each."""

    rows: Transitions
    inserted: Int[Array, " H"]

    def level(self, h: int) -> Transitions:
        """The transitions of level h."""
        return jax.tree.map(lambda leaf: leaf[h], self.rows)


def empty_buffers(horizon: int, capacity: int, observation_shape: tuple[int, ...]) -> Buffers:
    """Buffers without a valid row."""
    observation = jnp.zeros((horizon, capacity, *observation_shape))
    rows = Transitions(
        observation=observation,
        action=jnp.zeros((horizon, capacity), jnp.int32),
        reward=jnp.zeros((horizon, capacity)),
        next_observation=observation,
        on_policy=jnp.zeros((horizon, capacity), bool),
        valid=jnp.zeros((horizon, capacity), bool),
    )
    return Buffers(rows, jnp.zeros(horizon, jnp.int32))


@jax.jit
def insert(buffers: Buffers, new: Transitions) -> Buffers:
    """Append the valid rows of `new` [H, m, ...] to every level; the oldest rows make room."""
    capacity = buffers.rows.action.shape[1]

    def one_level(ring: Transitions, inserted, rows: Transitions):
        rank = inserted + jnp.cumsum(rows.valid) - 1
        total = inserted + rows.valid.sum()
        keep = rows.valid & (rank >= total - capacity)  # a batch larger than the ring: its newest rows only
        slot = jnp.where(keep, rank % capacity, capacity)
        return jax.tree.map(lambda old, fresh: old.at[slot].set(fresh, mode="drop"), ring, rows), total

    rows, inserted = jax.vmap(one_level)(buffers.rows, buffers.inserted, new)
    return Buffers(rows, inserted)
