"""Plans in tables of decoded states, for the rivals that learn such tables.

Symbols: K decoded states of a level, A actions, p[h, s, a, s'] transition probabilities, r[h, s, a] rewards.
A row of p that was never seen is zero: nothing is known to lie behind it.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from briee.algorithms.baselines.roll_in import greedy_action

Decode = Callable[[Int[Array, ""], Float[Array, "..."]], Int[Array, ""]]
"""(level, observation) -> decoded state; an `equinox.Module`."""


class TablePolicy(eqx.Module):
    """Greedy in a table of the decoded state."""

    decode: Any
    q: Float[Array, "H K A"]

    def __call__(self, level, observation, key) -> Int[Array, ""]:
        return greedy_action(self.q[level, self.decode(level, observation)], key)


class TableCover(eqx.Module):
    """A cover of such policies, which share their decoder."""

    decode: Any
    q: Float[Array, "M H K A"]
    size: Int[Array, ""]

    def act(self, member, level, observation, key) -> Int[Array, ""]:
        """The action of a member."""
        return greedy_action(self.q[member, level, self.decode(level, observation)], key)


def frequencies(counts: Float[Array, "H K A K"]) -> Float[Array, "H K A K"]:
    """p from counts; zero where nothing was counted."""
    return counts / jnp.maximum(counts.sum(axis=-1, keepdims=True), 1.0)


def dynamic_programming(p: Float[Array, "H K A K"], r: Float[Array, "H K A"]) -> Float[Array, "H K A"]:
    """Q of the best policy."""

    def back(value, tables):
        transition, reward = tables
        q = reward + transition @ value
        return q.max(axis=1), q

    return jax.lax.scan(back, jnp.zeros(p.shape[1]), (p, r), reverse=True)[1]


def homing_tables(p: Float[Array, "H K A K"], level: int | Int[Array, ""]) -> Float[Array, "K H K A"]:
    """For each state of `level` the Q of the policy that reaches it most often."""
    before = (jnp.arange(len(p)) == level - 1)[:, None, None]
    return jax.vmap(lambda target: dynamic_programming(p, jnp.where(before, p[..., target], 0.0)))(
        jnp.arange(p.shape[1])
    )


def occupancy(
    start: Float[Array, " K"], p: Float[Array, "H K A K"], q: Float[Array, "H K A"]
) -> Float[Array, "H K A"]:
    """The probability of (s, a) at each level under the greedy policy of q; ties are shared."""
    best = (q >= q.max(axis=-1, keepdims=True)).astype(jnp.float32)
    choice = best / best.sum(axis=-1, keepdims=True)

    def forward(state, tables):
        transition, chosen = tables
        both = state[:, None] * chosen
        return jnp.einsum("ka,kal->l", both, transition), both

    return jax.lax.scan(forward, start, (p, choice))[1]
