"""The decoders of all levels as arrays, and the policy that acts on their labels.

A decoder maps an observation to coordinates z = (s - mean) @ transform. Its states are clouds (the nearest
centre; novel beyond the radius), or classes of a kernel regression: the largest of offset + k(z, support) @
weight. The kernels are functions of |z|^2, |z'|^2 and z.z' alone, so one compiled policy serves all of them.
"""

from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from briee.numerics.linalg import at_level

NEVER = -1e6  # bias of a cloud that does not exist
NOWHERE = 1e4  # coordinates of its centre
COORDINATES = 128  # of larger observations a decoder keeps this many principal components
ONE, CLOUDS = 0, 1  # kinds: one state, clouds; further ones are kernels
NOVEL = 0  # label of an observation unlike all known states, which have the labels 1, 2, ...


class Decoders(eqx.Module):
    """Decoders of H levels for observations of dimension D, with E coordinates and at most C states."""

    kind: Int[np.ndarray, " H"]
    mean: Float[np.ndarray, "H D"]
    transform: Float[np.ndarray, "H D E"]
    centre: Float[np.ndarray, "H C E"]
    weight: Float[np.ndarray, "H C E"]
    bias: Float[np.ndarray, "H C"]
    group: Int[np.ndarray, "H C"]
    """The state of each cloud."""
    radius: Float[np.ndarray, " H"]
    states: Int[np.ndarray, " H"]
    """Number of states."""


def no_decoders(horizon: int, dimension: int, coordinates: int, most: int) -> Decoders:
    """Decoders that give every observation the same label."""
    H, D, E, C = horizon, dimension, coordinates, most
    single = np.float32
    return Decoders(
        kind=np.zeros(H, np.int32),
        mean=np.zeros((H, D), single),
        transform=np.zeros((H, D, E), single),
        centre=np.full((H, C, E), NOWHERE, single),
        weight=np.zeros((H, C, E), single),
        bias=np.full((H, C), NEVER, single),
        group=np.zeros((H, C), np.int32),
        radius=np.full(H, np.finfo(single).max, single),
        states=np.ones(H, np.int32),
    )


def put(decoders: Decoders, level: int, **values: Any) -> None:
    """Set the decoder of a level, in place; arrays shorter than their slot fill its beginning."""
    D, E = decoders.transform.shape[1:]
    empty = no_decoders(1, D, E, decoders.bias.shape[1])
    for name in decoders.__dataclass_fields__:
        own = getattr(decoders, name)
        own[level] = getattr(empty, name)[0]
        if name in values:
            value = np.asarray(values[name])
            own[(level, *(slice(0, n) for n in value.shape))] = value


def labels(decoders: Decoders, level: int, x: Float[np.ndarray, "n D"]) -> Int[np.ndarray, " n"]:
    """1 + the state of each observation, or `NOVEL` if it is unlike all of them."""
    if decoders.kind[level] == ONE:
        return np.ones(len(x), np.int32)
    used = slice(0, int((decoders.bias[level] > NEVER).sum()))
    z = (x - decoders.mean[level]) @ decoders.transform[level]
    cloud = (z @ decoders.weight[level, used].T + decoders.bias[level, used]).argmax(1)
    centre = decoders.centre[level, used]
    distance = (z**2).sum(1)[:, None] - 2 * z @ centre.T + (centre**2).sum(1)
    novel = distance.min(1) > decoders.radius[level]
    return np.where(novel, NOVEL, decoders.group[level][cloud] + 1).astype(np.int32)


def probabilities(decoders: Decoders, level: int, x: Float[np.ndarray, "n D"]) -> Float[np.ndarray, "n C"]:
    """Soft states of observations."""
    C = decoders.bias.shape[1]
    if decoders.kind[level] == ONE:
        return np.broadcast_to(np.eye(C)[0], (len(x), C))
    z = (x - decoders.mean[level]) @ decoders.transform[level]
    score = z @ decoders.weight[level].T + decoders.bias[level]
    soft = np.exp(score - score.max(1, keepdims=True))
    return soft / soft.sum(1, keepdims=True) @ np.eye(C)[decoders.group[level]]


def for_policy(decoders: Decoders, most: int) -> Decoders:
    """The decoders with slots for at most `most` clouds, for a policy that is compiled for that many."""
    short = {name: getattr(decoders, name)[:, :most] for name in ("centre", "weight", "bias", "group")}
    return jax.tree.map(jnp.asarray, replace(decoders, **short))


class StatePolicy(eqx.Module):
    """Decode the observation, then draw uniformly among the actions of (nearly) the highest value."""

    decoders: Decoders
    value: Float[Array, "H L A"]
    tolerance: Float[Array, ""]
    """Share of the highest value that is good enough."""
    known_only: Bool[Array, ""]
    """Treat an observation unlike all known states as the nearest of them."""

    def label(self, level: Int[Array, ""], observation: Float[Array, "..."]) -> Int[Array, ""]:
        """As `labels`, for one observation."""
        own = at_level(self.decoders, level)
        z = (observation.reshape(-1) - own.mean) @ own.transform
        cloud = jnp.argmax(own.weight @ z + own.bias)
        distance = jnp.sum((z - own.centre) ** 2, -1).min()
        novel = (distance > own.radius) & ~self.known_only
        return jnp.where(own.kind == ONE, 1, jnp.where(novel, NOVEL, own.group[cloud] + 1))

    def __call__(
        self, level: Int[Array, ""], observation: Float[Array, "..."], key: PRNGKeyArray
    ) -> Int[Array, ""]:
        value = self.value[level, self.label(level, observation)]
        enough = value.max() - (1 - self.tolerance) * jnp.abs(value.max())
        return jnp.argmax((value >= enough) * (1 + jax.random.uniform(key, value.shape))).astype(jnp.int32)
