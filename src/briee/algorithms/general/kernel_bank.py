"""Kernel regressions of all levels as arrays, for the host and for the compiled policy.

A regression maps an observation to coordinates z and predicts offset + k(z, support) @ weight. Coordinates
are a linear map of the observation, the distances of an image to patches, half of these and half of those, or
the predictions of *teachers*: regressions of other levels, whose labels proved good. Where levels share the
way in which states look, a teacher's predictions tell a state of another level more directly than the
observation does.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from briee.algorithms.general.kernels import PRODUCTS, QUADRATIC, RBF, kernel, of_products
from briee.algorithms.general.patches import Patches, at_once, coordinates
from briee.numerics.linalg import at_level

LINEAR, PATCHES, TEACHERS, BOTH = 0, 1, 2, 3
COORDINATES = 96  # at most; of larger observations as many principal components are kept
HALF = COORDINATES // 2  # of both kinds, the linear coordinates come first
STATES = 12  # labels that a regression may tell apart
TEAM = 8  # teachers of a level, at most; as many as COORDINATES has room for


class Bank(eqx.Module):
    """Regressions of H levels for observations of dimension D, on at most S rows with E coordinates."""

    embedding: Int[np.ndarray, " H"]
    kind: Int[np.ndarray, " H"]
    scale: Float[np.ndarray, " H"]
    mean: Float[np.ndarray, "H D"]
    transform: Float[np.ndarray, "H D E"]
    support: Float[np.ndarray, "H S E"]
    weight: Float[np.ndarray, "H S K"]
    offset: Float[np.ndarray, "H K"]
    rows: Int[np.ndarray, " H"]
    states: Int[np.ndarray, " H"]
    """Number of labels; 0 if there is no regression."""
    team: Int[np.ndarray, "H T"]
    """Levels of the teachers, -1 for none."""


def no_bank(horizon: int, dimension: int, rows: int) -> Bank:
    """No regressions."""
    H, D, E, single = horizon, dimension, COORDINATES, np.float32
    return Bank(
        embedding=np.zeros(H, np.int32),
        kind=np.zeros(H, np.int32),
        scale=np.ones(H, single),
        mean=np.zeros((H, D), single),
        transform=np.zeros((H, D, E), single),
        support=np.zeros((H, rows, E), single),
        weight=np.zeros((H, rows, STATES), single),
        offset=np.zeros((H, STATES), single),
        rows=np.zeros(H, np.int32),
        states=np.zeros(H, np.int32),
        team=np.full((H, TEAM), -1, np.int32),
    )


def put(arrays: Any, empty: Any, level: int, **values: Any) -> None:
    """Set the entries of a level, in place; arrays shorter than their slot fill its beginning."""
    for name in arrays.__dataclass_fields__:
        own = getattr(arrays, name)
        own[level] = getattr(empty, name)[0]
        if name in values:
            value = np.asarray(values[name])
            own[(level, *(slice(0, n) for n in value.shape))] = value


def predict(bank: Bank, level: int, z: Float[np.ndarray, "n E"]) -> Float[np.ndarray, "n K"]:
    """Predictions of the labels of a level from the coordinates of observations."""
    rows, K = int(bank.rows[level]), int(bank.states[level])
    k = kernel(int(bank.kind[level]), float(bank.scale[level]), z, bank.support[level, :rows])
    return bank.offset[level, :K] + k @ bank.weight[level, :rows, :K]


def embed(
    bank: Bank, teachers: Bank, patches: Patches, level: int, x: Float[np.ndarray, "n D"]
) -> Float[np.ndarray, "n E"]:
    """Coordinates of observations for the regression of a level."""
    if bank.embedding[level] == TEACHERS:
        return ask(teachers, patches, bank.team[level], x)
    if bank.embedding[level] == PATCHES:
        return coordinates(patches, x)
    z = (x - bank.mean[level]) @ bank.transform[level]
    return side_by_side(np, z, coordinates(patches, x)) if bank.embedding[level] == BOTH else z


def side_by_side(xp, z, seen):
    """Half of the linear coordinates and half of those by patches; `xp` is NumPy or JAX's NumPy."""
    return xp.where(xp.arange(COORDINATES) < HALF, z, seen)


def ask(
    teachers: Bank, patches: Patches, team: Int[np.ndarray, " T"], x: Float[np.ndarray, "n D"]
) -> Float[np.ndarray, "n E"]:
    """Predictions of the teachers, STATES columns each, those of no teacher zero."""
    said = np.zeros((len(x), TEAM, STATES), np.float32)
    seen = coordinates(patches, x) if (teachers.embedding[team] == PATCHES).any() else x
    for i, level in enumerate(team):
        if level >= 0:
            own = teachers.embedding[level] == PATCHES
            z = seen if own else embed(teachers, teachers, patches, level, x)
            said[:, i, : int(teachers.states[level])] = predict(teachers, level, z)
    return said.reshape(len(x), -1)


class CompiledBank(eqx.Module):
    """The regressions of a policy."""

    bank: Bank
    teachers: Bank
    patches: Patches

    def predictions(self, level, observation):
        """The prediction for each label; minus infinity for those that do not exist."""
        own, x = at_level(self.bank, level), observation.reshape(-1)
        branches = [lambda: linear(own, x), lambda: self.seen(x), lambda: self.taught(own.team, x)]
        branches.append(lambda: side_by_side(jnp, linear(own, x), self.seen(x)))
        predictions = _predict(own, jax.lax.switch(own.embedding, branches))
        return jnp.where(jnp.arange(STATES) < own.states, predictions, -jnp.inf)

    def seen(self, x):
        """Coordinates of an image."""
        if not len(self.patches.patch):
            return jnp.zeros(COORDINATES)
        return at_once(jnp, self.patches, x[None])[0]

    def taught(self, team, x):
        """Coordinates by the teachers."""
        seen = self.seen(x)

        def one(level):
            teacher = at_level(self.teachers, jnp.maximum(level, 0))
            z = linear(teacher, x)
            z = jnp.where(teacher.embedding == BOTH, side_by_side(jnp, z, seen), z)
            z = jnp.where(teacher.embedding == PATCHES, seen, z)
            known = (jnp.arange(STATES) < teacher.states) & (level >= 0)
            return jnp.where(known, _predict(teacher, z), 0.0)

        return jax.lax.map(one, team).reshape(-1)


def linear(own: Bank, x):
    """Linear coordinates of an observation; large images have none."""
    if not own.mean.size:
        return jnp.zeros(COORDINATES)
    return (x - own.mean) @ own.transform


def _predict(own: Bank, z):
    """As `predict`, for one observation."""
    sums = (z**2).sum(), (own.support**2).sum(1), own.support @ z
    kernels = [
        lambda kind=kind: of_products(jnp, kind, own.scale, *sums) for kind in (RBF, QUADRATIC, PRODUCTS)
    ]
    return own.offset + jax.lax.switch(own.kind, kernels) @ own.weight
