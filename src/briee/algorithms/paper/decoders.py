"""Features phi(s, a) = psi(s) ⊗ e_a, with one decoder psi per level.

A decoder maps one observation to K numbers. BRIEE learns decoders whose output lies in the simplex (soft
latent states); the planner accepts any psi. The decoders of all levels are one pytree with a leading axis H.
"""

from dataclasses import replace
from math import prod
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from briee.algorithms.paper.buffers import Transitions
from briee.algorithms.paper.networks import Linear
from briee.compute import quick_jit


class Standard(eqx.Module):
    """Standardises observations to mean 0 and an average variance of 1; not learned."""

    mean: Float[Array, "..."]
    gain: Float[Array, ""]

    def __call__(self, observation: Float[Array, "..."]) -> Float[Array, "..."]:
        return (observation - jax.lax.stop_gradient(self.mean)) * jax.lax.stop_gradient(self.gain)


class Decoder(eqx.Module):
    """psi(s) = softmax((network(s) + bias) / tau); Section 5 of the paper with a linear network, no bias."""

    network: eqx.Module
    temperature: Float[Array, "*levels"]
    standard: Standard | None = None
    bias: Float[Array, "*levels K"] | None = None

    def logits(self, observation: Float[Array, "..."]) -> Float[Array, " K"]:
        """Unscaled scores of the K latent states, for one observation."""
        seen = observation if self.standard is None else self.standard(observation)
        logits = self.network(seen)  # type: ignore[operator]
        return logits if self.bias is None else logits + self.bias

    def __call__(self, observation: Float[Array, "..."]) -> Float[Array, " K"]:
        """Soft latent state of one observation."""
        return jax.nn.softmax(self.logits(observation) / jax.lax.stop_gradient(self.temperature))


class Encoded(eqx.Module):
    """The decoder of rows that hold psi(s) in place of s, see `encode`."""

    def __call__(self, code: Float[Array, " K"]) -> Float[Array, " K"]:
        return code


@quick_jit
def encode(decoder: eqx.Module, rows: Transitions) -> Transitions:
    """The rows [H, n] with psi_h(s) and psi_{h+1}(s') in place of s and s'; zeros after the last level."""

    def features(levels: tuple[Any, Any]) -> Float[Array, "levels n K"]:
        return jax.lax.map(lambda level: jax.vmap(level[0])(level[1]), levels)

    psi = features((decoder, rows.observation))
    later = features((jax.tree.map(lambda leaf: leaf[1:], decoder), rows.next_observation[:-1]))
    return replace(rows, observation=psi, next_observation=jnp.concatenate([later, jnp.zeros_like(psi[:1])]))


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
