"""Transitions, and the replay buffers that hold D_h and D'_h of each level.

One ring buffer per level holds D_h and D'_h together, first in, first out, as in the released code. The flag
`on_policy` tells them apart (D_h: one uniform action after rolling in; D'_h: two). The flag `roll_in` marks
transitions of neither.

Whole episodes have one row at every level, in the same slot. So the next observation of a level is the
observation of the next level, and both share memory.
"""

from dataclasses import replace
from math import prod
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

Rows = Literal["on_policy", "deviations", "all"]
"""D_h; D_h and D'_h; these and the transitions of the roll-in."""


class Transitions(eqx.Module):
    """Transitions (s, a, r, s') of one level, or of every level with a leading axis H."""

    observation: Float[Array, "..."]
    action: Int[Array, "*levels n"]
    reward: Float[Array, "*levels n"]
    next_observation: Float[Array, "..."]
    on_policy: Bool[Array, "*levels n"]
    valid: Bool[Array, "*levels n"]
    roll_in: Bool[Array, "*levels n"] | None = None
    """Transitions of neither D_h nor D'_h, whose action is the policy's; None if there are none."""

    def counted(self, rows: Rows) -> Bool[Array, "*levels n"]:
        """The valid rows of D_h alone (Alg. 1, l. 6), of D_h and D'_h, or of all data."""
        if rows == "on_policy":
            return self.valid & self.on_policy
        return self.valid if rows == "all" or self.roll_in is None else self.valid & ~self.roll_in

    def only(self, rows: Rows) -> "Transitions":
        """The same transitions, of which no others are valid."""
        return replace(self, valid=self.counted(rows))

    def first_valid(self) -> "Transitions":
        """The transitions of one level, the valid ones first, in their order."""
        order = jnp.argsort(~self.valid, stable=True)
        return jax.tree.map(lambda leaf: leaf[order], self)

    @property
    def size(self) -> Int[Array, "*levels"]:
        """Number of valid rows; in buffers they come first."""
        return self.valid.sum(-1)


class Buffers(eqx.Module):
    """Ring buffers of all levels; `inserted` counts the rows ever written to each."""

    rows: Transitions
    inserted: Int[Array, " H"]

    def ranks(self) -> Int[np.ndarray, "H n"]:
        """Number of rows of a level before each one: slot s holds the newest rank congruent to s."""
        capacity, newest = self.rows.action.shape[1], np.asarray(self.inserted)[:, None] - 1
        return newest - (newest - np.arange(capacity)) % capacity

    def with_rows(self, new: Transitions) -> "Buffers":
        """Append the rows [H, m, ...] of deviations, or of whole episodes if the buffers are for these."""
        return insert(self, new) if self.rows.roll_in is None else insert_episodes(self, new)


def empty_buffers(
    horizon: int, capacity: int, observation_shape: tuple[int, ...], whole: bool = False
) -> Buffers:
    """Buffers without a valid row, for the rows of deviations or for those of whole episodes."""
    shape = horizon, capacity
    observation, no = jnp.zeros((*shape, *observation_shape)), jnp.zeros(shape, bool)
    rows = Transitions(observation, jnp.zeros(shape, jnp.int32), jnp.zeros(shape), observation, no, no)
    if whole:
        rows = replace(rows, roll_in=no)
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


def insert_episodes(buffers: Buffers, new: Transitions) -> Buffers:
    """`insert` for whole episodes [H, m, ...], all of them valid: each observation is copied once."""
    old, (horizon, capacity) = buffers.rows, buffers.rows.action.shape
    seen = aligned((horizon + 1, *old.observation.shape[1:]))
    seen[:-1], seen[-1] = old.observation, old.next_observation[-1]
    kept = min(new.action.shape[1], capacity)
    slot = (int(buffers.inserted[0]) + np.arange(new.action.shape[1])[-kept:]) % capacity
    seen[:-1, slot], seen[-1, slot] = new.observation[:, -kept:], new.next_observation[-1, -kept:]
    others = insert(replace(buffers, rows=_without_observations(old)), _without_observations(new))
    before, after = (jax.device_put(view, may_alias=True) for view in (seen[:-1], seen[1:]))
    return replace(others, rows=replace(others.rows, observation=before, next_observation=after))


def aligned(shape: tuple[int, ...]) -> Float[np.ndarray, "..."]:
    """An array whose memory JAX uses as it is, without a copy: it begins at a multiple of 64 bytes."""
    size = 4 * prod(shape)
    memory = np.empty(size + 64, np.uint8)
    start = -memory.ctypes.data % 64
    return memory[start : start + size].view(np.float32).reshape(shape)


def _without_observations(rows: Transitions) -> Transitions:
    nothing = jnp.zeros((*rows.action.shape, 0))
    return eqx.tree_at(lambda rows: (rows.observation, rows.next_observation), rows, (nothing, nothing))
