"""Data of every level, stratified: rare (latent state, action) pairs are not drowned by common ones.

A stratum is the group g = label * A + action of a row. A level keeps every transition until it is full; then
each new row costs the largest stratum one of its own, drawn at random. Labels 0 .. K - 1 are latent states,
label K says that an observation looks like none of them.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray


class Strata(eqx.Module):
    """R rows for each of H levels, filled from the first on; empty ones have action -1. `priority` is
    uniform, drawn once per row."""

    observation: Float[Array, "*H R D"]
    next_observation: Float[Array, "*H R D"]
    action: Int[Array, "*H R"]
    reward: Float[Array, "*H R"]
    priority: Float[Array, "*H R"]
    label: Int[Array, "*H R"]
    next_label: Int[Array, "*H R"]

    @property
    def weight(self) -> Float[Array, "*H R"]:
        """1 where a row is filled, else 0."""
        return (self.action >= 0).astype(jnp.float32)

    def group(self, num_actions: int) -> Int[Array, "*H R"]:
        """The stratum of each row, -1 for empty rows."""
        return jnp.where(self.action >= 0, self.label * num_actions + self.action, -1)

    def one_group(self) -> Int[Array, "*H R"]:
        """All filled rows in one stratum."""
        return jnp.minimum(self.action, 0)


def empty_strata(horizon: int, rows: int, dimension: int) -> Strata:
    """Levels without a row."""
    real, whole = jnp.zeros((horizon, rows)), jnp.zeros((horizon, rows), jnp.int32)
    observation = jnp.zeros((horizon, rows, dimension))
    return Strata(observation, observation, whole - 1, real, real, whole, whole)


def choose_slots(
    group: Int[Array, " R"],
    priority: Float[Array, " R"],
    new_group: Int[Array, " E"],
    new_priority: Float[Array, " E"],
    num_groups: int,
) -> tuple[Int[Array, " E"], Int[Array, " E"]]:
    """Where to put new rows, one after the other: a free row, else that of the largest stratum with the
    highest priority. Returns the slots (R: the row is dropped, or a later one took its place) and the size of
    each row's stratum before it came."""
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
    observation: Float[Array, "E H+1 D"],
    action: Int[Array, "E H"],
    reward: Float[Array, "E H"],
    label: Int[Array, "E H+1"],
    key: PRNGKeyArray,
    num_groups: int,
    num_actions: int,
    stratified: bool = True,
) -> tuple[Strata, Int[Array, "H E"]]:
    """Offer every transition of E episodes to its level. Also returns the sizes of their strata just before
    they came."""
    level = lambda x: jnp.swapaxes(x, 0, 1)  # noqa: E731
    priority = jax.random.uniform(key, action.shape)
    new = Strata(
        *(level(x) for x in (observation[:, :-1], observation[:, 1:], action, reward, priority)),
        label=level(label[:, :-1]),
        next_label=level(label[:, 1:]),
    )
    groups = (data.group(num_actions) if stratified else data.one_group() for data in (strata, new))
    slot, tries = jax.vmap(choose_slots, (0, 0, 0, 0, None))(
        next(groups), strata.priority, next(groups), new.priority, num_groups
    )
    levels = jnp.arange(action.shape[1])[:, None]
    put = lambda old, rows: old.at[levels, slot].set(rows, mode="drop")  # noqa: E731
    return jax.tree.map(put, strata, new), tries


def rank_in_group(group: Int[Array, " n"], priority: Float[Array, " n"]) -> Int[Array, " n"]:
    """How many rows of the same group have a lower priority (in [0, 1))."""
    order = jnp.argsort(group + 0.999 * priority)
    position = jnp.arange(group.shape[0])
    first = jnp.concatenate([jnp.ones(1, bool), jnp.diff(group[order]) != 0])
    start = jax.lax.cummax(jnp.where(first, position, 0))
    return jnp.zeros_like(position).at[order].set(position - start)


def balanced(
    group: Int[Array, " R"], priority: Float[Array, " R"], size: int
) -> tuple[Int[Array, " size"], Float[Array, " size"]]:
    """Indices of `size` rows, as many from each group as there are, and weights: 0 for empty rows (-1)."""
    rank = jnp.where(group >= 0, rank_in_group(group, priority), group.shape[0])
    chosen = jnp.argsort(rank + 0.999 * priority)[:size]
    return chosen, (group[chosen] >= 0).astype(jnp.float32)
