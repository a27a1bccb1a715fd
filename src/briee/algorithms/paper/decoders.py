"""Features phi(s, a) = psi(s) ⊗ e_a, with one decoder psi per level.

A decoder maps one observation to K numbers. BRIEE learns decoders whose output lies in the simplex (soft
latent states); the planner accepts any psi. The decoders of all levels are one pytree with a leading axis H.

Their networks return logits: `linear` is the paper's; `mlp` and `cnn` are for latent states that no linear
function separates. A network is an `equinox.Module` with `__call__(observation) -> f32[K]`. All layers are
matrix products, because these are fast on a CPU inside a compiled loop of thousands of small steps.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from math import prod
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from briee.algorithms.paper.buffers import Transitions
from briee.compute import quick_jit
from briee.numerics.linalg import at_level, orthonormal_rows, scaled_normal


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

    def at(self, level: int, observations: Float[ArrayLike, "n ..."]) -> Float[Array, "n K"]:
        """Soft latent states of observations at one level of stacked decoders."""
        return _decode(self, jnp.int32(level), observations)


class Encoded(eqx.Module):
    """The decoder of rows that hold psi(s) in place of s, see `encode`."""

    def __call__(self, code: Float[Array, " K"]) -> Float[Array, " K"]:
        return code


@quick_jit
def encode(decoder: eqx.Module, rows: Transitions) -> Transitions:
    """The rows [H, n] with psi_h(s) and psi_{h+1}(s') in place of s and s'; zeros after the last level."""

    def features(h: Int[Array, ""], s: Float[Array, "n ..."]) -> Float[Array, "n K"]:
        return jax.vmap(at_level(decoder, h))(s)

    levels = jnp.arange(len(rows.action))
    psi = jax.lax.map(lambda h: features(h, rows.observation[h]), levels)
    later = psi[1:]  # of whole episodes, whose next observation is the observation of the next level
    if rows.roll_in is None:
        later = jax.lax.map(lambda h: features(h, rows.next_observation[h - 1]), levels[1:])
    return replace(rows, observation=psi, next_observation=jnp.concatenate([later, jnp.zeros_like(psi[:1])]))


@quick_jit
def _decode(decoder: Decoder, level: Int[Array, ""], observations: Float[ArrayLike, "n ..."]):
    """The level is an array, so that one compilation serves all of them."""
    return jax.vmap(at_level(decoder, level))(observations)


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


HIDDEN = 64
"""Width of the hidden layer of `mlp`."""
CHANNELS = (8, 16)
"""Channels of the two convolutions of `cnn`."""


class Linear(eqx.Module):
    """logits = A s; the rows of A [K, dim(s)] start orthonormal."""

    A: Float[Array, "K D"]

    def __init__(self, dimension: int, num_latents: int, key: PRNGKeyArray):
        self.A = orthonormal_rows(key, num_latents, dimension)

    def __call__(self, observation: Float[Array, "..."]) -> Float[Array, " K"]:
        return self.A @ observation.reshape(-1)


class MLP(eqx.Module):
    """Hidden ReLU layers, then K logits."""

    weights: list[Float[Array, "fan_out fan_in"]]
    biases: list[Float[Array, " fan_out"]]

    def __init__(self, sizes: Sequence[int], key: PRNGKeyArray):
        """`sizes` of input, hidden layers and output."""
        keys = jax.random.split(key, len(sizes) - 1)
        self.weights = [scaled_normal(k, n, m) for k, (m, n) in zip(keys, pairwise(sizes), strict=True)]
        self.biases = [jnp.zeros(n) for n in sizes[1:]]

    def __call__(self, observation: Float[Array, "..."]) -> Float[Array, " K"]:
        hidden = observation.reshape(-1)
        for weight, bias in zip(self.weights[:-1], self.biases[:-1], strict=True):
            hidden = jax.nn.relu(weight @ hidden + bias)
        return self.weights[-1] @ hidden + self.biases[-1]


class CNN(eqx.Module):
    """Two convolutions with ReLU, whose stride is their kernel's size, then K logits.

    The image [height, width, channels] is padded with zeros to a multiple of the kernel size.
    """

    kernels: list[Float[Array, "channels patch"]]
    biases: list[Float[Array, " channels"]]
    readout: MLP
    sides: tuple[int, ...] = eqx.field(static=True)

    def __init__(
        self, shape: tuple[int, ...], num_latents: int, key: PRNGKeyArray, channels: Sequence[int] = CHANNELS
    ):
        height, width, depth = shape
        self.sides = (4, 2) if min(height, width) >= 16 else (2, 2)
        keys = jax.random.split(key, len(channels) + 1)
        self.kernels, self.biases = [], []
        for k, side, size in zip(keys, self.sides, channels, strict=False):
            self.kernels.append(scaled_normal(k, size, side * side * depth))
            self.biases.append(jnp.zeros(size))
            height, width, depth = -(-height // side), -(-width // side), size
        self.readout = MLP((height * width * depth, num_latents), keys[-1])

    def __call__(self, observation: Float[Array, "height width channels"]) -> Float[Array, " K"]:
        hidden = observation
        for kernel, bias, side in zip(self.kernels, self.biases, self.sides, strict=True):
            hidden = jax.nn.relu(patches(hidden, side) @ kernel.T + bias)
        return self.readout(hidden)


def patches(image: Float[Array, "height width channels"], side: int) -> Float[Array, "rows columns patch"]:
    """Patches of `side` x `side` pixels that tile the image, each flattened; zeros fill the margin."""
    height, width, depth = image.shape
    rows, columns = -(-height // side), -(-width // side)
    image = jnp.pad(image, ((0, rows * side - height), (0, columns * side - width), (0, 0)))
    tiles = image.reshape(rows, side, columns, side, depth).transpose(0, 2, 1, 3, 4)
    return tiles.reshape(rows, columns, side * side * depth)


class Custom(eqx.Module):
    """Wraps a user's module, split into arrays and static parts, because a state may hold only arrays."""

    arrays: Any
    rest: Any = eqx.field(static=True)

    def __init__(self, network: Any):
        self.arrays, self.rest = eqx.partition(network, eqx.is_array)

    def __call__(self, observation: Float[Array, "..."]) -> Float[Array, " K"]:
        return eqx.combine(self.arrays, self.rest)(observation)


def maker(
    decoder: str, observation_shape: tuple[int, ...], num_latents: int, network: Any = None
) -> Callable[[PRNGKeyArray], eqx.Module]:
    """A function from key to network of a named kind; `custom` redraws the weights of the given network."""
    shape, K = observation_shape, num_latents
    if decoder == "custom":
        _check_network(network, shape, K)
        return lambda key: Custom(redrawn(network, key))
    if decoder == "cnn" and len(shape) != 3:
        wanted = f"observations of shape (height, width, channels), got {shape}"
        raise ValueError(f"decoder='cnn' needs images, {wanted}: choose 'mlp' or 'linear'")
    known: dict[str, Callable[[PRNGKeyArray], eqx.Module]] = {
        "linear": lambda key: Linear(prod(shape), K, key),
        "mlp": lambda key: MLP((prod(shape), HIDDEN, K), key),
        "cnn": lambda key: CNN(shape, K, key),
    }
    return known[decoder]


def redrawn(network: Any, key: PRNGKeyArray) -> Any:
    """A user's network with new weights: arrays of two or more axes are drawn from a normal distribution with
    their standard deviation; other leaves stay."""
    leaves, structure = jax.tree.flatten(network)
    keys = jax.random.split(key, max(len(leaves), 1))

    def draw(key: PRNGKeyArray, leaf: Any) -> Any:
        if not eqx.is_inexact_array(leaf) or leaf.ndim < 2:
            return leaf
        return jnp.std(leaf) * jax.random.normal(key, leaf.shape, leaf.dtype)

    return jax.tree.unflatten(structure, [draw(k, leaf) for k, leaf in zip(keys, leaves, strict=False)])


def _check_network(network: Any, shape: tuple[int, ...], num_latents: int) -> None:
    """Raise `ValueError` unless the network maps one observation to K logits."""
    if network is None or isinstance(network, str):
        raise ValueError("decoder='custom' needs the network itself: decoder=an Equinox module")
    if not callable(network) or not jax.tree.leaves(eqx.filter(network, eqx.is_inexact_array)):
        raise ValueError(f"decoder must be an Equinox module with weights, got {type(network).__name__}")
    try:
        found = eqx.filter_eval_shape(network, jax.ShapeDtypeStruct(shape, jnp.float32)).shape
    except Exception as error:
        raise ValueError(f"the decoder does not take observations of shape {shape}: {error}") from error
    if found != (num_latents,):
        raise ValueError(f"the decoder must give num_latents = {num_latents} logits, got shape {found}")
