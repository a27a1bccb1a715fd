"""Features phi(s, a) = psi(s) ⊗ e_a, with one decoder psi per level.

A decoder maps one observation to K numbers. BRIEE learns decoders whose output lies in the simplex (soft
latent states); the planner accepts any psi. The decoders of all levels are one pytree with a leading axis H.
"""

from math import prod

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from briee.algorithms.paper.networks import Linear


class Standard(eqx.Module):
    """Standardises observations to mean 0 and an average variance of 1; not learned."""

    mean: Float[Array, "..."]
    gain: Float[Array, ""]

    def __call__(self, observation: Float[Array, "..."]) -> Float[Array, "..."]:
        return (observation - jax.lax.stop_gradient(self.mean)) * jax.lax.stop_gradient(self.gain)


class Decoder(eqx.Module):
    """psi(s) = softmax(network(s) / tau); Section 5 of the paper with a linear network."""

    network: eqx.Module
    temperature: Float[Array, ""]
    standard: Standard | None = None

    def logits(self, observation: Float[Array, "..."]) -> Float[Array, " K"]:
        """Unscaled scores of the K latent states, for one observation."""
        seen = observation if self.standard is None else self.standard(observation)
        return self.network(seen)  # type: ignore[operator]

    def __call__(self, observation: Float[Array, "..."]) -> Float[Array, " K"]:
        """Soft latent state of one observation."""
        return jax.nn.softmax(self.logits(observation) / jax.lax.stop_gradient(self.temperature))


def standard_of(observations: Float[Array, "n ..."], valid: Bool[Array, " n"]) -> Standard:
    """The standard of the valid observations; if all are equal, it maps them to zero."""
    counted = valid.reshape(-1, *[1] * (observations.ndim - 1))
    n = jnp.maximum(valid.sum(), 1)
    mean = jnp.sum(observations * counted, axis=0) / n
    variance = jnp.mean(jnp.sum((observations - mean) ** 2 * counted, axis=0) / n)
    return Standard(mean, jnp.where(variance > 1e-12, 1 / jnp.sqrt(jnp.maximum(variance, 1e-12)), 0.0))


def linear_decoder(
    key: PRNGKeyArray, observation_shape: tuple[int, ...], num_latents: int, temperature: float
) -> Decoder:
    """psi(s) = softmax(A s / tau) with a random A."""
    return Decoder(Linear(prod(observation_shape), num_latents, key), jnp.asarray(temperature, jnp.float32))
