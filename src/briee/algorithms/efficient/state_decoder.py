"""The latent states of a level as the learner knows them: a linear decoder and the region it is trusted in.

Symbols: n observations of dimension D, K latent states; white coordinates z = W (s - mean), in which the
noise around a latent state is about standard normal.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from briee.algorithms.efficient.clustering import close_parts, squared_distances
from briee.algorithms.efficient.noise import Noise, left_out, white

NEVER = -1e6  # bias of a latent state that no observation has
NOWHERE = 1e4  # coordinates of its centre: no observation is that far away
UPPER_QUARTILE = 0.674  # of the standard normal, in standard deviations above the median
LEAST_RADIUS = 0.1  # per dimension: without noise all distances are rounding errors


class StateDecoder(eqx.Module):
    """psi(s) = softmax(A s + b), trusted within `radius` (a squared distance) of a centre.

    Its K parts are latent states or pieces of one; parts with the same `alias` are the same state.
    """

    weight: Float[Array, "*H K D"]
    bias: Float[Array, "*H K"]
    mean: Float[Array, "*H D"]
    whiten: Float[Array, "*H D D"]
    centre: Float[Array, "*H K D"]
    radius: Float[Array, "*H"]
    alias: Int[Array, "*H K"]
    fitted: Bool[Array, "*H"]

    def logits(self, observation: Float[Array, "*n D"]) -> Float[Array, "*n K"]:
        """Scores of the parts."""
        return observation @ self.weight.T + self.bias

    def probabilities(self, observation: Float[Array, "*n D"]) -> Float[Array, "*n K"]:
        """psi(s), summed over the parts of each state."""
        return jax.nn.softmax(self.logits(observation)) @ jax.nn.one_hot(self.alias, self.alias.shape[-1])

    def nearest(self, observation: Float[Array, "*n D"]) -> Int[Array, "*n"]:
        """The likeliest latent state, 0 to K - 1."""
        return self.alias[jnp.argmax(self.logits(observation), axis=-1)]

    def label(self, observation: Float[Array, "*n D"]) -> Int[Array, "*n"]:
        """The likeliest latent state, or K if the observation is far from all of them."""
        distance = squared_distances(white(observation, self.mean, self.whiten), self.centre)
        return jnp.where(distance.min(-1) > self.radius, self.bias.shape[-1], self.nearest(observation))


def unfitted(levels: int, num_latents: int, dimension: int) -> StateDecoder:
    """Decoders that give every observation the label 0."""
    return StateDecoder(
        weight=jnp.zeros((levels, num_latents, dimension)),
        bias=jnp.zeros((levels, num_latents)),
        mean=jnp.zeros((levels, dimension)),
        whiten=jnp.broadcast_to(jnp.eye(dimension), (levels, dimension, dimension)),
        centre=jnp.zeros((levels, num_latents, dimension)),
        radius=jnp.full(levels, jnp.inf),
        alias=jnp.broadcast_to(jnp.arange(num_latents, dtype=jnp.int32), (levels, num_latents)),
        fitted=jnp.zeros(levels, bool),
    )


def gaussian_decoder(
    weight: Float[Array, "K D"],
    bias: Float[Array, " K"],
    noise: Noise,
    observation: Float[Array, "n D"],
    valid: Float[Array, " n"],
    deviations: float,
    apart: float,
) -> StateDecoder:
    """A Gaussian classifier, in all D coordinates, of the states that (weight, bias) tells apart.

    log p(s | k) = -|z - c_k|^2 / 2, corrected for the error D / n of a centre c_k of n rows. Rows that shaped
    the noise covariance have the distance of a left-out row. The radius is the median distance plus
    `deviations` (robust) standard deviations.
    """
    K, D = weight.shape
    z = white(observation, noise.mean, noise.whiten)
    part = jnp.argmax(observation @ weight.T + bias, axis=1)
    one_hot = jax.nn.one_hot(part, K) * valid[:, None]
    size = one_hot.sum(0)
    centre = jnp.where(size[:, None] > 0, (one_hot.T @ z) / jnp.maximum(size, 1.0)[:, None], NOWHERE)
    distance = jnp.sum((z - centre[part]) ** 2, axis=1)
    distance = distance / jnp.where(noise.members > 0, left_out(distance, noise.share), 1.0)
    middle, upper = jnp.nanquantile(jnp.where(valid > 0, distance, jnp.nan), jnp.array([0.5, 0.75]))
    radius = jnp.maximum(middle + deviations * (upper - middle) / UPPER_QUARTILE, LEAST_RADIUS * D)
    known = jnp.where(size[:, None] > 0, centre, 0.0)
    weight = known @ noise.whiten
    bias = 0.5 * (D / jnp.maximum(size, 1.0) - jnp.sum(known**2, 1)) - weight @ noise.mean
    bias = jnp.where(size > 0, bias, NEVER)
    nearest = jnp.argmax(observation @ weight.T + bias, axis=1)
    alias = jnp.argmax(close_parts(z, nearest, valid, K, apart), axis=1).astype(jnp.int32)
    return StateDecoder(weight, bias, noise.mean, noise.whiten, centre, radius, alias, jnp.array(True))
