"""Transitions, and the replay buffers that hold D_h and D'_h of each level.

One ring buffer per level holds D_h and D'_h together, first in, first out, as in the released code. The flag
`on_policy` tells them apart (D_h: one uniform action after rolling in; D'_h: two).
"""

from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int


class Transitions(eqx.Module):
    """Transitions (s, a, r, s') of one level, or of every level with a leading axis H."""

    observation: Float[Array, "..."]
    action: Int[Array, "*levels n"]
    reward: Float[Array, "*levels n"]
    next_observation: Float[Array, "..."]
    on_policy: Bool[Array, "*levels n"]
    valid: Bool[Array, "*levels n"]

    def counted(self, covariance: Literal["on_policy", "all"]) -> Bool[Array, "*levels n"]:
        """The rows of Sigma_h: D_h alone (Alg. 1, l. 6), or all data."""
        return self.valid & self.on_policy if covariance == "on_policy" else self.valid

    @property
    def size(self) -> Int[Array, "*levels"]:
        """Number of filled rows; they come first."""
        return self.valid.sum(-1)


class Buffers(eqx.Module):
    """Ring buffers of all levels; `inserted` counts the rows ever written to each."""

    rows: Transitions
    inserted: Int[Array, " H"]

    def ranks(self) -> Int[np.ndarray, "H n"]:
        """Number of rows of a level before each one: slot s holds the newest rank congruent to s."""
        capacity, newest = self.rows.action.shape[1], np.asarray(self.inserted)[:, None] - 1
        return newest - (newest - np.arange(capacity)) % capacity


def empty_buffers(horizon: int, capacity: int, observation_shape: tuple[int, ...]) -> Buffers:
    """Buffers without a valid row."""
    shape = horizon, capacity
    observation, no = jnp.zeros((*shape, *observation_shape)), jnp.zeros(shape, bool)
    rows = Transitions(observation, jnp.zeros(shape, jnp.int32), jnp.zeros(shape), observation, no, no)
    return Buffers(rows, jnp.zeros(horizon, jnp.int32))


@jax.jit
def insert(buffers: Buffers, new: Transitions) -> Buffers:
    """Append the valid rows of `new` [H, m, ...] at each level; they replace the oldest rows."""
    capacity = buffers.rows.action.shape[1]

    def one_level(ring: Transitions, inserted, rows: Transitions):
        rank = inserted + jnp.cumsum(rows.valid) - 1
        total = inserted + rows.valid.sum()
        keep = rows.valid & (rank >= total - capacity)  # of a batch larger than the ring, the newest
        slot = jnp.where(keep, rank % capacity, capacity)
        return jax.tree.map(lambda old, fresh: old.at[slot].set(fresh, mode="drop"), ring, rows), total

    rows, inserted = jax.vmap(one_level)(buffers.rows, buffers.inserted, new)
    return Buffers(rows, inserted)
