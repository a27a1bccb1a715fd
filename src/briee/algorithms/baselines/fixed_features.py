"""Fixed features phi(s, a) for LSVI-UCB: given ones, true ones, random Fourier features.

A map has two steps: `encode` turns an observation into the code that is stored; calling the map on a code
gives the features of all actions. Features psi(s) ⊗ e_a are stored without the zeros, one block per action.
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
