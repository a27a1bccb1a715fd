"""Features phi(s, a) = psi(s) ⊗ e_a, with one decoder psi per level.

A decoder maps one observation to K numbers. BRIEE learns decoders whose output lies in the simplex (soft
latent states); the planner accepts any psi. Decoders of all levels are one pytree with a leading axis of
length H.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray


class Decoder(eqx.Module):
    """psi(s) = softmax(network(s) / tau); Section 5 of the paper with a linear network."""

    network: eqx.Module
    temperature: Float[Array, ""]

    def logits(self, observation: Float[Array, "..."]) -> Float[Array, " K"]:
        """Unscaled scores of the K latent states, for one observation."""
        return self.network(observation)  # type: ignore[operator]

    def __call__(self, observation: Float[Array, "..."]) -> Float[Array, " K"]:
        """Soft latent state of one observation."""
        return jax.nn.softmax(self.logits(observation) / jax.lax.stop_gradient(self.temperature))


class Linear(eqx.Module):
    """logits = A s, rows of A orthonormal at the start; A in R^{K x dim(s)}."""

    A: Float[Array, "K D"]

    def __init__(self, dimension: int, num_latents: int, key: PRNGKeyArray):
        self.A = orthonormal_rows(key, num_latents, dimension)

    def __call__(self, observation: Float[Array, "..."]) -> Float[Array, " K"]:
        return self.A @ observation.reshape(-1)


def orthonormal_rows(key: PRNGKeyArray, rows: int, columns: int) -> Float[Array, "rows columns"]:
    """A random matrix whose rows (or columns, if there are fewer) are orthonormal."""
    return jax.nn.initializers.orthogonal()(key, (rows, columns), jnp.float32)


def linear_decoder(
    key: PRNGKeyArray,
    observation_shape: tuple[int, ...],
    num_latents: int,
    temperature: Float[Array, ""] | float,
) -> Decoder:
    """psi(s) = softmax(A s / tau) with a random A."""
    dimension = 1
    for length in observation_shape:
        dimension *= length
    return Decoder(Linear(dimension, num_latents, key), jnp.asarray(temperature, jnp.float32))


def at_level(tree, level: int | Int[Array, ""]):
    """The slice of a pytree with a leading axis of levels; the level may be traced."""
    return jax.tree.map(lambda leaf: leaf[level], tree)
