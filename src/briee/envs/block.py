"""What pure block MDPs have in common: a latent state and a level behind an observation, H steps."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray


class BlockState(eqx.Module):
    """Where an episode stands."""

    latent: Int[Array, ""]
    level: Int[Array, ""]
    emission: Float[Array, ...]


class Block(eqx.Module):
    """Episodes of `horizon` steps whose latent states are seen through `emission` alone."""

    emission: eqx.AbstractVar[Any]
    horizon: eqx.AbstractVar[int]

    def observation(self, state: BlockState, rng: PRNGKeyArray) -> Float[Array, ...]:
        """The observation emitted on arrival: it is part of the state, for the simplex lock acts on it."""
        return state.emission

    def terminal(self, state: BlockState, rng: PRNGKeyArray) -> Bool[Array, ""]:
        """True at level H."""
        return state.level >= self.horizon

    # -- the truth, for diagnostics, oracles and tests -------------------------------------------------

    @property
    def observation_shape(self) -> tuple[int, ...]:
        """Shape of one observation."""
        return self.emission.shape

    @property
    def observation_bounds(self) -> tuple[float, float]:
        """Lower and upper bound of every coordinate of an observation."""
        return self.emission.bounds

    def latent(self, state: BlockState) -> Int[Array, ""]:
        """The latent state, for diagnostics only."""
        return state.latent

    def level(self, state: BlockState) -> Int[Array, ""]:
        """The level, 0 to H."""
        return state.level

    def emit(
        self, latent: Int[ArrayLike, ""], level: Int[ArrayLike, ""], rng: PRNGKeyArray
    ) -> Float[Array, ...]:
        """One observation of a given latent state at a given level."""
        return self.emission(jnp.asarray(latent, jnp.int32), jnp.asarray(level, jnp.int32), rng)


def cdf(table: np.ndarray) -> np.ndarray:
    """Cumulative probabilities along the last axis, f32, ending in exactly 1."""
    total = np.cumsum(table, axis=-1)
    return np.where(total >= total[..., -1:] - 1e-12, 1.0, total).astype(np.float32)


def sample_cdf(cumulative: Float[Array, " n"], rng: PRNGKeyArray) -> Int[Array, ""]:
    """One index, from one uniform number; an index of probability 0 is never drawn."""
    return jnp.sum(jax.random.uniform(rng) >= cumulative).astype(jnp.int32)
