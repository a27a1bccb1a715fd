"""The data of LSVI-UCB: codes of observations, their features, and weighted transitions between codes.

A map of features has two steps: `encode` turns an observation into the code that is stored; calling the map
on a code gives the features of all actions. Features psi(s) ⊗ e_a are stored without the zeros, one block
per action. For one-hot codes, counts of (z, a, z') and sums of rewards are all that least squares needs.
"""

import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

Psi = Callable[[Int[Array, ""], Float[Array, "..."]], Float[Array, " K"]]
"""(level, observation) -> K numbers; an `equinox.Module` or a function, unbatched."""


class ProductFeatures(eqx.Module):
    """phi(s, a) = psi_h(s) ⊗ e_a; the code of an observation is psi_h(s)."""

    psi: Psi
    num_actions: int = eqx.field(static=True)

    def encode(self, level: Int[Array, ""], observation: Float[Array, "..."]) -> Float[Array, " K"]:
        """The code that is stored."""
        return self.psi(level, observation)

    def __call__(self, code: Float[Array, " K"]) -> Float[Array, "A K"]:
        """The features of all actions, each in its own block."""
        return jnp.broadcast_to(code, (self.num_actions, code.shape[-1]))


class GroundTruth(eqx.Module):
    """psi*(s), known to the environment alone."""

    pure: Any

    def __call__(self, level: Int[Array, ""], observation: Float[Array, "..."]) -> Float[Array, " Z"]:
        return self.pure.ground_truth_features(level, observation)


class FourierFeatures(eqx.Module):
    """z(x) = sqrt(2 / D) cos(W x + b) with x = [s; e_a], or with x = s and one block per action."""

    W: Float[Array, "D n"]
    W_action: Float[Array, "D A"]
    b: Float[Array, " D"]

    def encode(self, level: Int[Array, ""], observation: Float[Array, "..."]) -> Float[Array, " n"]:
        """The code that is stored: the observation itself."""
        return observation.reshape(-1)

    def __call__(self, code: Float[Array, " n"]) -> Float[Array, "A D"]:
        """The features of all actions; with W_action = 0 they are equal, each in its own block."""
        phase = self.W @ code + self.b + self.W_action.T
        return math.sqrt(2 / len(self.b)) * jnp.cos(phase)


def fourier_features(
    key: PRNGKeyArray, dimension: int, inputs: int, num_actions: int, bandwidth: float, joint: bool
) -> FourierFeatures:
    """W ~ N(0, 1 / bandwidth^2), b ~ U[0, 2 pi]."""
    key_W, key_b = jax.random.split(key)
    W = jax.random.normal(key_W, (dimension, inputs + num_actions)) / bandwidth
    b = jax.random.uniform(key_b, (dimension,), maxval=2 * math.pi)
    return FourierFeatures(W[:, :inputs], W[:, inputs:] * joint, b)


class Rows(eqx.Module):
    """Weighted transitions of one level: codes of s and s', action, weight, and weight times reward."""

    code: Float[Array, "n C"]
    action: Int[Array, " n"]
    weight: Float[Array, " n"]
    reward: Float[Array, " n"]
    next_code: Float[Array, "n C"]


class Counts(eqx.Module):
    """Counts of transitions between one-hot codes, and sums of their rewards."""

    count: Float[Array, "H A K K"]
    reward: Float[Array, "H A K"]

    def insert(self, code: Float[Array, "levels m K"], action, reward) -> "Counts":
        """Count the steps of m episodes."""
        chosen = jax.nn.one_hot(action, self.count.shape[1])
        count = jnp.einsum("hma,hmk,hml->hakl", chosen, code[:-1], code[1:])
        total = jnp.einsum("hma,hmk,hm->hak", chosen, code[:-1], reward)
        return Counts(self.count + count, self.reward + total)

    @property
    def chunks(self) -> Int[Array, ""]:
        """One chunk holds all rows."""
        return jnp.int32(1)

    def rows(self, level: Int[Array, ""], chunk: Int[Array, ""]) -> Rows:
        """One row per (z, a, z'); the first row of (z, a) carries its rewards."""
        count, reward = self.count[level], self.reward[level]
        action, z, z_next = (index.reshape(-1) for index in jnp.indices(count.shape))
        reward = jnp.zeros_like(count).at[..., 0].set(reward)
        one_hot = jnp.eye(count.shape[-1])
        return Rows(one_hot[z], action, count.reshape(-1), reward.reshape(-1), one_hot[z_next])


class Episodes(eqx.Module):
    """A ring buffer of the newest episodes, by level; the code of s' is that of the next level."""

    code: Float[Array, "H n C"]
    action: Int[Array, "H n"]
    reward: Float[Array, "H n"]
    inserted: Int[Array, ""]
    batch: int = eqx.field(static=True)

    def insert(self, code: Float[Array, "levels m C"], action, reward) -> "Episodes":
        """Append m = `batch` episodes; they replace the oldest."""
        start = self.inserted % self.action.shape[1]
        put = lambda old, new: jax.lax.dynamic_update_slice_in_dim(old, new, start, axis=1)  # noqa: E731
        rows = put(self.code, code[:-1]), put(self.action, action), put(self.reward, reward)
        return Episodes(*rows, self.inserted + self.batch, self.batch)

    @property
    def chunks(self) -> Int[Array, ""]:
        """Number of filled batches."""
        return jnp.minimum(self.inserted, self.action.shape[1]) // self.batch

    def rows(self, level: Int[Array, ""], chunk: Int[Array, ""]) -> Rows:
        """Batch number `chunk` of one level; at the last level, s' is not used."""
        later = jnp.minimum(level + 1, len(self.action) - 1)
        at = lambda array, h: jax.lax.dynamic_slice_in_dim(array[h], chunk * self.batch, self.batch)  # noqa: E731
        code, next_code = at(self.code, level), at(self.code, later)
        return Rows(code, at(self.action, level), jnp.ones(self.batch), at(self.reward, level), next_code)
