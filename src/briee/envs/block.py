"""Base class of the pure block MDPs: H steps in which the agent sees only emissions of a latent state."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from briee.envs.emission import Index
from briee.envs.latent_model import LatentModel


class BlockState(eqx.Module):
    """The state of an episode: latent state, level, and the observation emitted on arrival."""

    latent: Int[Array, ""]
    level: Int[Array, ""]
    emission: Float[Array, ...]


class Block(eqx.Module):
    """Episodes of `horizon` steps whose latent states are observed only through `emission`."""

    emission: eqx.AbstractVar[Any]
    horizon: eqx.AbstractVar[int]
    num_latents: eqx.AbstractVar[int]

    def observation(self, state: BlockState, rng: PRNGKeyArray) -> Float[Array, ...]:
        """The observation emitted on arrival; it is part of the state because the simplex lock acts on it."""
        return state.emission

    def terminal(self, state: BlockState, rng: PRNGKeyArray) -> Bool[Array, ""]:
        """True at level H."""
        return state.level >= self.horizon

    @property
    def observation_shape(self) -> tuple[int, ...]:
        """Shape of one observation."""
        return self.emission.shape

    @property
    def observation_bounds(self) -> tuple[float, float]:
        """Lower and upper bound of every coordinate of an observation."""
        return self.emission.bounds

    @property
    def optimal_return(self) -> float:
        """Best expected return, by dynamic programming on the latent states."""
        return self.latent_model().optimal_return()

    # -- ground truth, for diagnostics, oracles and tests ----------------------------------------------

    def latent(self, state: BlockState) -> Int[Array, ""]:
        """The latent state, for diagnostics only."""
        return state.latent

    def level(self, state: BlockState) -> Int[Array, ""]:
        """The level, 0 to H."""
        return state.level

    def emit(self, latent: Index, level: Index, rng: PRNGKeyArray) -> Float[Array, ...]:
        """One observation of a given latent state at a given level."""
        return self.emission(jnp.asarray(latent, jnp.int32), jnp.asarray(level, jnp.int32), rng)

    def ground_truth_features(
        self, level: Index, observation: Float[Array, ...]
    ) -> Float[Array, " num_latents"]:
        """ψ*(s): the one-hot vector of the latent state."""
        return jax.nn.one_hot(self.emission.decode(level, observation), self.num_latents)

    def latent_model(self) -> LatentModel:
        """Tables of the latent states, without observations."""
        raise NotImplementedError


def cdf(table: np.ndarray) -> np.ndarray:
    """Cumulative probabilities along the last axis, f32, ending in exactly 1."""
    total = np.cumsum(table, axis=-1)
    return np.where(total >= total[..., -1:] - 1e-12, 1.0, total).astype(np.float32)


def probabilities(cumulative: Float[Array, "... n"]) -> np.ndarray:
    """The inverse of `cdf`, f64[..., n]."""
    return np.diff(np.asarray(cumulative, np.float64), axis=-1, prepend=0.0)


def sample_cdf(cumulative: Float[Array, " n"], rng: PRNGKeyArray) -> Int[Array, ""]:
    """One index, from one uniform number; an index of probability 0 is never drawn."""
    return jnp.sum(jax.random.uniform(rng) >= cumulative).astype(jnp.int32)
