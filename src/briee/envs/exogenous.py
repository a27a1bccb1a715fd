"""Exogenous coordinates beside any vector: a process that actions do not change."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from briee.envs.emission import (
    NORMAL_BOUND,
    Index,
    ScoredEmission,
    at_copy,
    require,
    require_least,
    rotation_basis,
)
from briee.envs.emission_kinds import ModesEmission, NetworkEmission, RingsEmission


class ExogenousEmission(eqx.Module):
    """A vector emission beside coordinates that follow a process of their own, all rotated together.

    Each coordinate is an AR(1) process x' = ρ x + √(1 - ρ²) ε, started in its stationary distribution
    N(0, 1), so that its standard deviation is 1 at every level. Actions do not change it.
    """

    inner: ModesEmission | RingsEmission | NetworkEmission
    basis: Float[Array, "copies dim dim"]
    coordinates: int = eqx.field(static=True)
    correlation: float = eqx.field(static=True)

    def __init__(
        self,
        inner: ModesEmission | RingsEmission | NetworkEmission,
        copies: int,
        *,
        coordinates: int,
        correlation: float,
        seed: int,
    ):
        require_least(1, exogenous=coordinates)
        require(0 <= correlation < 1, f"exogenous_correlation must be in [0, 1), got {correlation}")
        dim = inner.shape[0] + coordinates
        basis = rotation_basis(dim, "random", copies, np.random.default_rng([seed, 11])) / np.sqrt(dim)
        self.inner, self.basis = inner, jnp.asarray(basis, jnp.float32)
        self.coordinates, self.correlation = int(coordinates), float(correlation)

    @property
    def num_latents(self) -> int:
        """Number of latent states."""
        return self.inner.num_latents

    @property
    def degrees_of_freedom(self) -> float | None:
        """Those of the noise of the vector."""
        return self.inner.degrees_of_freedom

    @property
    def held_out(self) -> None:
        """No observations are kept apart for evaluation."""
        return

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one observation."""
        return (self.basis.shape[-1],)

    @property
    def bounds(self) -> tuple[float, float]:
        """The largest norm of an observation, in both directions."""
        growth = max(1.0, (1.0 - self.correlation**2) ** 0.5 / (1.0 - self.correlation))
        squares = self.inner.shape[0] * self.inner.bounds[1] ** 2
        high = float(np.sqrt(squares + self.coordinates * (NORMAL_BOUND * growth) ** 2))
        return -high, high

    def start(self, rng: PRNGKeyArray) -> Float[Array, " coordinates"]:
        """The exogenous coordinates of an episode's first level."""
        return jax.random.normal(rng, (self.coordinates,))

    def move(self, process: Float[Array, " coordinates"], rng: PRNGKeyArray) -> Float[Array, " coordinates"]:
        """One step of the process."""
        rest = (1.0 - self.correlation**2) ** 0.5
        return self.correlation * process + rest * jax.random.normal(rng, process.shape)

    def show(
        self, latent: Index, level: Index, process: Float[Array, " coordinates"], rng: PRNGKeyArray
    ) -> Float[Array, " dim"]:
        """The observation of a latent state beside these exogenous coordinates."""
        parts = jnp.concatenate([self.inner(latent, level, rng), process])
        return parts @ at_copy(self.basis, level)

    def __call__(self, latent: Index, level: Index, rng: PRNGKeyArray) -> Float[Array, " dim"]:
        """One observation, with the process in its stationary distribution."""
        process, inner = jax.random.split(rng)
        return self.show(latent, level, self.start(process), inner)

    def decode(self, level: Index, observation: Float[Array, " dim"]) -> Int[Array, ""]:
        """The most likely latent state of an observation."""
        informative = at_copy(self.basis, level)[: self.inner.shape[0]] @ observation
        return self.inner.decode(level, informative)


AnyEmission = ScoredEmission | ExogenousEmission
