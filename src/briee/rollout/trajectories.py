"""Episodes, and the transitions an algorithm keeps, as arrays."""

from typing import NamedTuple

import equinox as eqx
import numpy as np
from jaxtyping import Array, Bool, Float, Int


class Trajectories(eqx.Module):
    """E episodes of H steps. Latent states are for diagnostics only, and -1 if they are unknown."""

    observation: Float[Array, "E levels ..."]
    action: Int[Array, "E H"]
    reward: Float[Array, "E H"]
    latent: Int[Array, "E levels"]


class StoredRows(NamedTuple):
    """The transitions an algorithm keeps, in n slots for each of H levels."""

    observation: Float[Array, "H n ..."]
    action: Int[np.ndarray, "H n"]
    reward: Float[np.ndarray, "H n"]
    next_observation: Float[Array, "H n ..."]
    valid: Bool[np.ndarray, "H n"]
    """Whether a slot is filled."""
    counted: Bool[np.ndarray, "H n"]
    """Whether the exploration bonus counts a row."""
    rank: Int[np.ndarray, "H n"] | None
    """Number of earlier rows of the level; None if the order is not kept."""
    bonus: tuple[float, float, float | None] | None = None
    """lam, alpha and cap of the elliptical bonus; None if the algorithm has none."""
