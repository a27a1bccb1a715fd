"""Features phi(s, a) = psi(s) ⊗ e_a, with one decoder psi per level.

A decoder maps one observation to K numbers. BRIEE learns decoders whose output lies in the simplex (soft
latent states); the planner accepts any psi. Decoders of all levels are one pytree with a leading axis of
length H.
"""

from math import prod

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from briee.networks import Linear


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


def linear_decoder(
    key: PRNGKeyArray,
    observation_shape: tuple[int, ...],
    num_latents: int,
    temperature: Float[Array, ""] | float,
) -> Decoder:
    """psi(s) = softmax(A s / tau) with a random A."""
    return Decoder(Linear(prod(observation_shape), num_latents, key), jnp.asarray(temperature, jnp.float32))


def at_level(tree, level: int | Int[Array, ""]):
    """The slice of a pytree with a leading axis of levels; the level may be traced."""
    return jax.tree.map(lambda leaf: leaf[level], tree)
