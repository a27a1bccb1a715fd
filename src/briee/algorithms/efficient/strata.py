"""The data of every level, stratified so that common (latent state, action) pairs do not displace rare ones.

A stratum is the group g = label * A + action of a row. A level keeps every transition until it is full; then
each new row replaces a random row of the largest stratum. Labels 0 .. K - 1 are latent states; label K marks
an observation unlike all of them.
"""

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

BELOW_ONE = 0.999  # scales priorities from [0, 1), so that rounding never lifts one to the next whole number


class Strata(eqx.Module):
    """R rows for each of H levels, filled from the front; empty rows have action -1. `priority` is uniform in
    [0, 1), drawn once per row."""

    observation: Float[Array, "*H R D"]
    next_observation: Float[Array, "*H R D"]
    action: Int[Array, "*H R"]
    reward: Float[Array, "*H R"]
    priority: Float[Array, "*H R"]
    label: Int[Array, "*H R"]
    next_label: Int[Array, "*H R"]

    @property
    def weight(self) -> Float[Array, "*H R"]:
        """1 for filled rows, 0 for empty ones."""
        return (self.action >= 0).astype(jnp.float32)

    def group(self, num_actions: int, stratified: bool = True) -> Int[Array, "*H R"]:
        """The stratum of each row, always 0 if not `stratified`; -1 for empty rows."""
        if not stratified:
            return jnp.minimum(self.action, 0)
        return jnp.where(self.action >= 0, self.label * num_actions + self.action, -1)


def empty_strata(horizon: int, rows: int, dimension: int) -> Strata:
    """Levels without data."""
    real, whole = jnp.zeros((horizon, rows)), jnp.zeros((horizon, rows), jnp.int32)
    observation = jnp.zeros((horizon, rows, dimension))
    return Strata(observation, observation, whole - 1, real, real, whole, whole)


def arrivals(rows: Strata) -> Strata:
    """The observations that these rows lead to, as rows after which nothing happens."""
    rows = replace(rows, observation=rows.next_observation, label=rows.next_label)
    nothing, reward = jnp.zeros_like(rows.observation), jnp.zeros_like(rows.reward)
    return replace(rows, next_observation=nothing, reward=reward)


def choose_slots(
    group: Int[Array, " R"],
    priority: Float[Array, " R"],
    new_group: Int[Array, " E"],
    new_priority: Float[Array, " E"],
    num_groups: int,
) -> tuple[Int[Array, " E"], Int[Array, " E"]]:
    """Slots for new rows, one after the other, and the size of each row's stratum just before it came.

    A row gets a free slot, or else the one of highest priority in the largest stratum. Slot R means that the
    row is dropped or that a later one took its place.
    """
    R, E = group.shape[0], new_group.shape[0]
    rows = jnp.arange(R)

    def place(carry, new):
        group, priority, size, filled, owner = carry
        g, p, index = new
        tries, grown = size[g], size + (jnp.arange(num_groups) == g)
        largest = jnp.argmax(grown)
        full = filled == R
        crowd = jnp.where(group == largest, priority, -1.0)
        victim = jnp.argmax(crowd)
        drop = full & (largest == g) & (crowd[victim] <= p)
        slot = jnp.where(full, victim, filled)
        here = (rows == slot) & ~drop
        size = grown - (full & (jnp.arange(num_groups) == largest))
        group, priority = jnp.where(here, g, group), jnp.where(here, p, priority)
        owner = jnp.where(here, index, owner)
        return (group, priority, size, jnp.minimum(filled + 1, R), owner), (slot, tries)

    size = (group[:, None] == jnp.arange(num_groups)).sum(0)
    carry = (group, priority, size, (group >= 0).sum(), jnp.full(R, -1))
    (*_, owner), (slot, tries) = jax.lax.scan(place, carry, (new_group, new_priority, jnp.arange(E)))
    return jnp.where(owner[slot] == jnp.arange(E), slot, R), tries


def insert(
    strata: Strata,
    observation: Float[Array, "E levels D"],
    action: Int[Array, "E H"],
    reward: Float[Array, "E H"],
    label: Int[Array, "E levels"],
    key: PRNGKeyArray,
    num_groups: int,
    num_actions: int,
    stratified: bool = True,
) -> tuple[Strata, Int[Array, "H E"]]:
    """Offer every transition of E episodes to its level; also returns the size of its stratum just before.

    There are observations and labels of H + 1 levels.
    """
    priority = jax.random.uniform(key, action.shape)
    rows = (observation[:, :-1], observation[:, 1:], action, reward, priority, label[:, :-1], label[:, 1:])
    new = Strata(*(jnp.swapaxes(x, 0, 1) for x in rows))
    slot, tries = jax.vmap(choose_slots, (0, 0, 0, 0, None))(
        strata.group(num_actions, stratified),
        strata.priority,
        new.group(num_actions, stratified),
        new.priority,
        num_groups,
    )
    levels = jnp.arange(action.shape[1])[:, None]
    put = lambda old, rows: old.at[levels, slot].set(rows, mode="drop")  # noqa: E731
    return jax.tree.map(put, strata, new), tries


def balanced(
    group: Int[Array, " R"], priority: Float[Array, " R"], size: int
) -> tuple[Int[Array, " size"], Float[Array, " size"]]:
    """Indices of `size` rows, taken evenly from all groups, and weights: 0 if a row is empty (group -1)."""
    rank = jnp.where(group >= 0, rank_in_group(group, priority), group.shape[0])
    chosen = jnp.argsort(rank + BELOW_ONE * priority)[:size]
    return chosen, (group[chosen] >= 0).astype(jnp.float32)


def rank_in_group(group: Int[Array, " n"], priority: Float[Array, " n"]) -> Int[Array, " n"]:
    """The number of rows of the same group with a lower priority."""
    order = jnp.argsort(group + BELOW_ONE * priority)
    position = jnp.arange(group.shape[0])
    first = jnp.concatenate([jnp.ones(1, bool), jnp.diff(group[order]) != 0])
    start = jax.lax.cummax(jnp.where(first, position, 0))
    return jnp.zeros_like(position).at[order].set(position - start)
