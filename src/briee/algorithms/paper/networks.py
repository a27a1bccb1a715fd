"""Networks of the decoders: logits of K latent states of one observation.

`linear` is the paper's; `mlp` and `cnn` are for latent states that no linear function separates. A network is
an `equinox.Module` with `__call__(observation) -> f32[K]`. All layers are matrix products, because these are
fast on a CPU inside a compiled loop of thousands of small steps.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from math import prod
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from briee.numerics.initial_weights import orthonormal_rows, scaled_normal

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
        raise ValueError(f"decoder='cnn' needs pictures, {wanted}: choose 'mlp' or 'linear'")
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
