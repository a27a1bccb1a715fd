"""The choice of an emission by name and arguments, and exogenous coordinates beside any vector."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from briee.envs.emission import (
    NORMAL_BOUND,
    ImageEmission,
    Index,
    ScoredEmission,
    VectorEmission,
    at_copy,
    require,
    require_least,
    rotation_basis,
)
from briee.envs.emission_images import DigitsEmission, ShapesEmission
from briee.envs.emission_kinds import SHARING, ModesEmission, NetworkEmission, RingsEmission

KINDS = ("vector", "modes", "rings", "network", "digits", "shapes", "image")
IMAGES = ("digits", "shapes", "image")
HEAVY = ("vector", "modes")
"""Emissions whose noise may have heavy tails."""

OWN_NOISE = {"network": 0.02, "digits": 0.0}
"""Standard deviation of the noise if none is given; 0.1 for all others."""
OWN_SHARING = {"rings": "permuted", "network": "permuted", "modes": "per_level", "digits": "per_level"} | {
    "shapes": "per_level"
}
"""What levels share if nothing is said; `vector` and `image` leave it to the environment."""


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


@dataclass(frozen=True)
class EmissionChoice:
    """An emission by name, with all arguments that environments offer for it."""

    kind: str
    """One of `KINDS`."""
    noise: float | None = None
    """Standard deviation; None: the emission's own."""
    sharing: str | None = None
    """What levels share: `stationary`, `permuted` or `per_level`; None: the emission's own."""
    seed: int = 0
    """Draws rotations, prototypes, networks, roles and images."""
    rotation: str = "hadamard"
    """Rotation of the vectors, see `rotation_basis`."""
    vector_sharing: str = "stationary"
    """What levels of `vector` and `image` share if `sharing` is None."""
    noise_coordinates: str = "all"
    distractors: int = 0
    distractor_std: float = 1.0
    degrees_of_freedom: float | None = None
    modes: int = 6
    image_size: int = 28
    templates: int = 4
    exogenous: int = 0
    exogenous_correlation: float = 0.95
    held_out: bool = False

    def __post_init__(self) -> None:
        kind, plain = self.kind, self.kind == "vector" and not self.exogenous
        known = " or ".join([", ".join(map(repr, KINDS[:-1])), repr(KINDS[-1])])
        require(kind in KINDS, f"emission must be {known}, got {kind!r}")
        require_least(0, exogenous=self.exogenous)
        allowed = ("stationary", "per_level") if kind in ("vector", "image") else SHARING
        require(
            self.sharing is None or self.sharing in allowed,
            f"rotation must be {' or '.join(map(repr, allowed))} for emission={kind!r}, got {self.sharing!r}",
        )
        require(
            not self.exogenous or kind not in IMAGES,
            f"exogenous coordinates need an emission of vectors, not emission={kind!r}",
        )
        tail = self.degrees_of_freedom
        require(tail is None or tail > 0, f"degrees_of_freedom must be > 0, got {tail}")
        require(
            tail is None or kind in HEAVY,
            f"heavy tails (degrees_of_freedom given) need emission='vector' or 'modes', got {kind!r}",
        )
        require(
            plain or kind == "image" or not self.distractors,
            f"distractors need emission='vector' without exogenous coordinates, got {kind!r}",
        )
        require(not self.held_out or kind == "digits", f"held_out needs emission='digits', got {kind!r}")

    def make(self, num_latents: int, num_levels: int) -> AnyEmission:
        """The emission of an environment of this size."""
        if self.kind == "vector" and not self.exogenous:
            return self._vector(num_latents, num_levels)
        emission = self._other(num_latents, num_levels)
        if self.exogenous:
            copies = num_levels if self._sharing == "per_level" else 1
            process = {"coordinates": self.exogenous, "correlation": self.exogenous_correlation}
            return ExogenousEmission(emission, copies, **process, seed=self.seed)
        return emission.held_out if self.held_out else emission

    @property
    def _sharing(self) -> str:
        return self.sharing or OWN_SHARING.get(self.kind, self.vector_sharing)

    def _vector(self, num_latents: int, num_levels: int) -> VectorEmission:
        return VectorEmission(
            num_latents,
            num_levels,
            noise=0.1 if self.noise is None else self.noise,
            noise_coordinates=self.noise_coordinates,
            distractors=self.distractors,
            distractor_std=self.distractor_std,
            rotation=self.rotation,
            per_level=self._sharing == "per_level",
            seed=self.seed,
            degrees_of_freedom=self.degrees_of_freedom,
        )

    def _other(self, num_latents: int, num_levels: int) -> Any:
        noise = OWN_NOISE.get(self.kind, 0.1) if self.noise is None else self.noise
        shared: dict[str, Any] = {"noise": noise, "sharing": self._sharing, "seed": self.seed}
        sizes, tail = (num_latents, num_levels), {"degrees_of_freedom": self.degrees_of_freedom}
        match self.kind:
            case "vector":
                return ModesEmission(*sizes, one_hot=True, **tail, **shared)
            case "modes":
                return ModesEmission(*sizes, modes=self.modes, **tail, **shared)
            case "rings":
                return RingsEmission(*sizes, **shared)
            case "network":
                return NetworkEmission(*sizes, **shared)
            case "digits":
                return DigitsEmission(*sizes, **shared)
            case "shapes":
                return ShapesEmission(*sizes, **shared)
        return ImageEmission(
            *sizes,
            noise=noise,
            size=self.image_size,
            templates=self.templates,
            per_level=self._sharing == "per_level",
            seed=self.seed,
        )
