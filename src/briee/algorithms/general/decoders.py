"""The decoders of all levels as arrays, and the policy that acts on their labels.

The states of a level are *clouds* in coordinates z = (s - mean) @ transform (the nearest centre; novel beyond
the radius) or labels of a kernel regression (`kernel_bank`).
"""

from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from briee.algorithms.general.kernel_bank import Bank, CompiledBank, embed, no_bank, predict, put
from briee.algorithms.general.kernels import LEAST
from briee.algorithms.general.kernels import probabilities as normalised
from briee.algorithms.general.patches import Patches, by_patches_alone, no_patches
from briee.algorithms.general.planning import UNTRIED
from briee.numerics.linalg import at_level

NEVER = -1e6  # bias of a cloud that does not exist
NOWHERE = 1e4  # coordinates of its centre
COORDINATES = 128  # of larger observations the clouds keep this many principal components
ONE, CLOUDS, KERNEL = 0, 1, 2  # kinds: one state, clouds, a kernel regression
WORSE = 1e-3  # by which an untried action is worse than the worst one that was tried
NOVEL = 0  # label of an observation unlike all known states, which have the labels 1, 2, ...


class CloudArrays(eqx.Module):
    """Clouds of H levels for observations of dimension D, with E coordinates and at most C clouds."""

    mean: Float[np.ndarray, "H D"]
    transform: Float[np.ndarray, "H D E"]
    centre: Float[np.ndarray, "H C E"]
    weight: Float[np.ndarray, "H C E"]
    bias: Float[np.ndarray, "H C"]
    group: Int[np.ndarray, "H C"]
    """The state of each cloud."""
    radius: Float[np.ndarray, " H"]


class Decoders(eqx.Module):
    """Decoders of H levels. `teachers` are regressions of levels, asked by those of others."""

    kind: Int[np.ndarray, " H"]
    states: Int[np.ndarray, " H"]
    """Number of states."""
    clouds: CloudArrays
    bank: Bank
    teachers: Bank
    patches: Patches


def no_clouds(horizon: int, dimension: int, most: int) -> CloudArrays:
    """Levels without clouds."""
    H, D, E, C, single = horizon, dimension, min(dimension, COORDINATES), most, np.float32
    return CloudArrays(
        mean=np.zeros((H, D), single),
        transform=np.zeros((H, D, E), single),
        centre=np.full((H, C, E), NOWHERE, single),
        weight=np.zeros((H, C, E), single),
        bias=np.full((H, C), NEVER, single),
        group=np.zeros((H, C), np.int32),
        radius=np.full(H, np.finfo(single).max, single),
    )


def no_decoders(horizon: int, shape: tuple[int, ...], most: int, rows: int, shared_rows: int = 0) -> Decoders:
    """Decoders that give every observation the same label; regressions have at most this many rows.

    Large images have neither clouds nor linear coordinates.
    """
    D = 0 if by_patches_alone(shape) else int(np.prod(shape))
    return Decoders(
        kind=np.zeros(horizon, np.int32),
        states=np.ones(horizon, np.int32),
        clouds=no_clouds(horizon, D, most),
        bank=no_bank(horizon, D, max(rows, shared_rows)),
        teachers=no_bank(horizon, D, rows),
        patches=no_patches(shape),
    )


def put_one(decoders: Decoders, level: int) -> None:
    """Forget the states of a level, in place."""
    decoders.kind[level], decoders.states[level] = ONE, 1


def put_clouds(decoders: Decoders, level: int, states: int, **values: Any) -> None:
    """Set the clouds of a level, in place."""
    D, most = decoders.clouds.mean.shape[1], decoders.clouds.bias.shape[1]
    put(decoders.clouds, no_clouds(1, D, most), level, **values)
    decoders.kind[level], decoders.states[level] = CLOUDS, states


def put_regression(decoders: Decoders, level: int, **values: Any) -> None:
    """Set the regression of a level, in place."""
    put_in(decoders.bank, level, **values)
    decoders.kind[level], decoders.states[level] = KERNEL, values["states"]


def put_in(bank: Bank, level: int, **values: Any) -> None:
    """Set a regression or, without values, remove it."""
    put(bank, no_bank(1, bank.mean.shape[1], bank.support.shape[1]), level, **values)


def labels(decoders: Decoders, level: int, x: Float[np.ndarray, "n D"]) -> Int[np.ndarray, " n"]:
    """1 + the state of each observation, or `NOVEL` if it is unlike all of them."""
    if decoders.kind[level] == ONE:
        return np.ones(len(x), np.int32)
    if decoders.kind[level] == KERNEL:
        return (predictions(decoders, level, x).argmax(1) + 1).astype(np.int32)
    own = at_level(decoders.clouds, level)
    used = slice(0, int((own.bias > NEVER).sum()))
    z = (x - own.mean) @ own.transform
    cloud = (z @ own.weight[used].T + own.bias[used]).argmax(1)
    centre = own.centre[used]
    distance = (z**2).sum(1)[:, None] - 2 * z @ centre.T + (centre**2).sum(1)
    return np.where(distance.min(1) > own.radius, NOVEL, own.group[cloud] + 1).astype(np.int32)


def predictions(decoders: Decoders, level: int, x: Float[np.ndarray, "n D"]) -> Float[np.ndarray, "n K"]:
    """Predictions of the regression of a level."""
    bank = decoders.bank
    return predict(bank, level, embed(bank, decoders.teachers, decoders.patches, level, x))


def probabilities(decoders: Decoders, level: int, x: Float[np.ndarray, "n D"]) -> Float[np.ndarray, "n C"]:
    """Soft states of observations."""
    C = decoders.clouds.bias.shape[1]
    soft = np.zeros((len(x), C), np.float32)
    if decoders.kind[level] == ONE:
        soft[:, 0] = 1.0
    elif decoders.kind[level] == KERNEL:
        soft[:, : decoders.states[level]] = normalised(predictions(decoders, level, x))
    else:
        own = at_level(decoders.clouds, level)
        score = (x - own.mean) @ own.transform @ own.weight.T + own.bias
        cloud = np.exp(score - score.max(1, keepdims=True))
        soft = cloud / cloud.sum(1, keepdims=True) @ np.eye(C)[own.group]
    return soft


class StatePolicy(eqx.Module):
    """Decode the observation, then draw uniformly among the actions of (nearly) the highest value."""

    kind: Int[Array, " H"]
    clouds: CloudArrays
    regressions: CompiledBank | None
    value: Float[Array, "H L A"]
    tolerance: Float[Array, ""]
    """Share of the highest value that is good enough."""
    known_only: Bool[Array, ""]
    """For reward: treat an observation unlike all known states as the nearest of them, and take the mean over
    the labels that a regression predicts."""

    def label(self, level: Int[Array, ""], observation: Float[Array, "..."]) -> Int[Array, ""]:
        """As `labels`, for one observation."""
        branches = [lambda: jnp.int32(1), lambda: self.cloud_label(level, observation)]
        if (regressions := self.regressions) is not None:
            branches.append(lambda: jnp.int32(regressions.predictions(level, observation).argmax() + 1))
        return jax.lax.switch(self.kind[level], branches)

    def values(self, level: Int[Array, ""], observation: Float[Array, "..."]) -> Float[Array, " A"]:
        """The value of each action in the state of the observation."""
        own = self.value[level]
        branches = [lambda: own[1], lambda: own[self.cloud_label(level, observation)]]
        if (regressions := self.regressions) is not None:
            branches.append(lambda: self.predicted(own[1:], regressions.predictions(level, observation)))
        return jax.lax.switch(self.kind[level], branches)

    def predicted(self, own: Float[Array, "L A"], predictions: Float[Array, " K"]) -> Float[Array, " A"]:
        """The values of the likeliest label or, for reward, their mean over what a regression predicts.

        Labels in which no action helps have no say in the mean: what may be one of two good states or a bad
        one is read as one of the good ones.
        """
        own = own[: len(predictions)]
        p = predictions[: len(own)]
        p = jnp.where(jnp.isfinite(p), jnp.maximum(p, LEAST), 0.0)
        tried = own > UNTRIED
        worst = jnp.where(tried, own, jnp.inf).min(-1, keepdims=True)
        worst = jnp.where(jnp.isfinite(worst), worst, 0.0) - WORSE
        mean = p / p.sum() @ jnp.where(tried, own, worst)
        return jnp.where(self.known_only, mean, own[predictions.argmax()])

    def cloud_label(self, level: Int[Array, ""], observation: Float[Array, "..."]) -> Int[Array, ""]:
        """The label where the states are clouds."""
        own = at_level(self.clouds, level)
        if not own.mean.size:
            return jnp.int32(1)
        z = (observation.reshape(-1) - own.mean) @ own.transform
        cloud = jnp.argmax(own.weight @ z + own.bias)
        distance = jnp.sum((z - own.centre) ** 2, -1).min()
        novel = (distance > own.radius) & ~self.known_only
        return jnp.where(novel, NOVEL, own.group[cloud] + 1).astype(jnp.int32)

    def __call__(
        self, level: Int[Array, ""], observation: Float[Array, "..."], key: PRNGKeyArray
    ) -> Int[Array, ""]:
        value = self.values(level, observation)
        enough = value.max() - (1 - self.tolerance) * jnp.abs(value.max())
        return jnp.argmax((value >= enough) * (1 + jax.random.uniform(key, value.shape))).astype(jnp.int32)


def state_policy(
    decoders: Decoders, most: int, value: Float[np.ndarray, "H L A"], tolerance: float, known_only: bool
) -> StatePolicy:
    """A policy with slots for at most `most` clouds, and with regressions only if there are any."""
    short = {name: getattr(decoders.clouds, name)[:, :most] for name in ("centre", "weight", "bias", "group")}
    regressions = None
    if (decoders.kind == KERNEL).any():
        regressions = CompiledBank(decoders.bank, decoders.teachers, decoders.patches)
    kind, clouds, regressions = jax.tree.map(
        jnp.asarray, (decoders.kind, replace(decoders.clouds, **short), regressions)
    )
    values = jnp.asarray(value, jnp.float32)
    return StatePolicy(kind, clouds, regressions, values, jnp.float32(tolerance), jnp.array(known_only))
