"""Policies shared by several algorithms."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from briee.protocols import Policy

QValues = Callable[[Int[Array, ""], Float[Array, "..."]], Float[Array, " A"]]
"""(level, observation) -> Q-values of all actions."""


class UniformPolicy(eqx.Module):
    """Every action with the same probability."""

    num_actions: int = eqx.field(static=True)

    def __call__(self, level, observation, key) -> Int[Array, ""]:
        return jax.random.randint(key, (), 0, self.num_actions)


class MixturePolicy(eqx.Module):
    """The uniform mixture of several policies, as in Thm. 1: one member per episode.

    `members` is a policy whose arrays have a leading axis; the first `size` entries are the members.
    """

    members: Any
    size: Int[Array, ""]

    def draw(self, key: PRNGKeyArray) -> Policy:
        """A member, uniformly at random."""
        index = jax.random.randint(key, (), 0, self.size)
        return jax.tree.map(lambda leaf: leaf[index], self.members)

    def __call__(self, level, observation, key) -> Int[Array, ""]:
        """The action of a member drawn for this call; samplers draw one member per episode instead."""
        draw_key, action_key = jax.random.split(key)
        return self.draw(draw_key)(level, observation, action_key)


class GreedyPolicy(eqx.Module):
    """pi_h(s) = argmax_a Q_h(s, a) (Alg. 3, l. 7), ties broken at random."""

    q: QValues

    def __call__(self, level, observation, key) -> Int[Array, ""]:
        values = self.q(level, observation)
        return jax.random.categorical(key, jnp.where(values >= values.max(), 0.0, -jnp.inf))
