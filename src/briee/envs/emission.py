"""Emissions: rich observations of a latent state, here as rotated noisy vectors; the choice among all kinds.

An emission is a pytree. `__call__(latent, level, rng)` draws an observation, and `decode(level, observation)`
recovers the latent state. The lock, random block MDPs and `RichObservation` share them. Other vectors are in
`emission_kinds`, images in `emission_images`, and coordinates beside a vector in `exogenous`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, Shaped
from scipy.linalg import hadamard

if TYPE_CHECKING:
    from briee.envs.exogenous import AnyEmission

NORMAL_BOUND = 6.0
"""`jax.random.normal` in float32 stays within ±5.5 (it inverts a 24-bit uniform), so boxes can be finite."""

SMALLEST_UNIFORM = 2.0**-23
"""`1 - jax.random.uniform` in float32 is never smaller, so that Student's t has finite bounds as well."""

LEAST_SCALE = 1e-6
"""Stands for a standard deviation of 0 where a likelihood divides by it."""

Index = Int[ArrayLike, ""]
"""A latent state or a level."""


def require(condition: bool, message: str) -> None:
    """Raise `ValueError(message)` unless the condition holds."""
    if not condition:
        raise ValueError(message)


def require_least(least: int, **values: float) -> None:
    """Raise `ValueError` if one of the named values is smaller than `least`."""
    for name, value in values.items():
        require(value >= least, f"{name} must be >= {least}, got {value}")


def rotation_basis(dim: int, kind: str, copies: int, rng: np.random.Generator) -> np.ndarray:
    """The columns of rotations R_c with R_c R_cᵀ = dim · I, f32[copies, dim, dim]: entry [c, j] is R_c e_j.

    `hadamard`: the unnormalised Sylvester matrix (entries ±1), the same in each copy; `signed-hadamard`: its
    columns with random order and signs, drawn for each copy; `random`: uniformly random orthogonal matrices
    times √dim.
    """
    if kind in ("hadamard", "signed-hadamard"):
        base = hadamard(dim, np.int8).astype(np.float32)  # pyright: ignore[reportArgumentType]
        if kind == "hadamard":
            return np.broadcast_to(base, (copies, dim, dim)).copy()
        rows = [base[rng.permutation(dim)] * rng.choice([-1.0, 1.0], size=(dim, 1)) for _ in range(copies)]
        return np.stack(rows).astype(np.float32)
    if kind == "random":
        q, r = np.linalg.qr(rng.standard_normal((copies, dim, dim)))
        q = q * np.sign(np.diagonal(r, axis1=1, axis2=2))[:, None, :]
        return (np.sqrt(dim) * q.transpose(0, 2, 1)).astype(np.float32)
    raise ValueError(f"rotation must be 'hadamard', 'signed-hadamard' or 'random', got {kind!r}")


def draw_noise(
    rng: PRNGKeyArray, shape: tuple[int, ...], degrees_of_freedom: float | None
) -> Float[Array, ...]:
    """Standard normal noise, or Student's t with that many degrees of freedom ν.

    √(ν (U^(-2/ν) - 1)) cos(2πV) with uniform U and V is exactly t (Bailey, 1994), without rejections.
    """
    if degrees_of_freedom is None:
        return jax.random.normal(rng, shape)
    radius, angle = jax.random.split(rng)
    uniform = 1.0 - jax.random.uniform(radius, shape)
    length = jnp.sqrt(degrees_of_freedom * (uniform ** (-2.0 / degrees_of_freedom) - 1.0))
    return length * jnp.cos(2.0 * jnp.pi * jax.random.uniform(angle, shape))


def noise_bound(degrees_of_freedom: float | None) -> float:
    """No number of `draw_noise` is larger."""
    if degrees_of_freedom is None:
        return NORMAL_BOUND
    return float(np.sqrt(degrees_of_freedom * SMALLEST_UNIFORM ** (-2.0 / degrees_of_freedom)))


def log_density(error: Float[Array, ...], degrees_of_freedom: float | None) -> Float[Array, ...]:
    """log density of `draw_noise`, up to a constant."""
    if degrees_of_freedom is None:
        return -0.5 * error**2
    return -0.5 * (degrees_of_freedom + 1.0) * jnp.log1p(error**2 / degrees_of_freedom)


class ScoredEmission(eqx.Module):
    """An emission that decodes an observation by the best score."""

    degrees_of_freedom: float | None = eqx.field(static=True, default=None, kw_only=True)
    """Of Student's t, if the noise has heavy tails; then no decoder is always right."""

    @property
    def held_out(self) -> ScoredEmission | None:
        """The emission with observations kept apart for evaluation; None if there are none."""
        return None

    def scores(self, level: Index, observation: Float[Array, ...]) -> Float[Array, " num_latents"]:
        """A score for each latent state; the most likely one has the largest."""
        raise NotImplementedError

    def decode(self, level: Index, observation: Float[Array, ...]) -> Int[Array, ""]:
        """The most likely latent state of an observation."""
        return jnp.argmax(self.scores(level, observation)).astype(jnp.int32)


def at_copy(tables: Shaped[Array, "copies ..."], level: Index) -> Shaped[Array, ...]:
    """The copy for a level; a single copy serves all levels."""
    return tables[0] if tables.shape[0] == 1 else tables[level]


class VectorEmission(ScoredEmission):
    """Rotated vectors: one-hot latent state and level, plus Gaussian noise, padded to a power of two.

    An observation is R_h (e_z ⊕ e_h + ε), of dimension 2^⌈log₂(num_latents + num_levels + distractors)⌉.
    """

    basis: Float[Array, "copies dim dim"]
    std: Float[Array, " dim"]
    num_latents: int = eqx.field(static=True)
    num_levels: int = eqx.field(static=True)
    isotropic: bool = eqx.field(static=True)

    def __init__(
        self,
        num_latents: int,
        num_levels: int,
        *,
        noise: float = 0.1,
        noise_coordinates: str = "all",
        distractors: int = 0,
        distractor_std: float = 1.0,
        rotation: str = "hadamard",
        per_level: bool = False,
        seed: int = 0,
        degrees_of_freedom: float | None = None,
    ):
        """With `num_levels` = 0, observations do not contain the level.

        With `noise_coordinates` = 'first', the last one-hot coordinate and the padding have no noise.
        `distractors` additional coordinates contain only noise, of standard deviation `distractor_std`.
        """
        require_least(0, noise=noise, distractors=distractors, distractor_std=distractor_std)
        require(
            noise_coordinates in ("all", "first"),
            f"noise_coordinates must be 'all' or 'first', got {noise_coordinates!r}",
        )
        hot = num_latents + num_levels
        dim = 2 ** int(np.ceil(np.log2(hot + distractors)))
        std = np.full(dim, noise, np.float32)
        if noise_coordinates == "first":
            std[hot - 1 :] = 0.0
        std[hot : hot + distractors] = distractor_std
        if per_level and rotation == "hadamard":
            rotation = "signed-hadamard"
        copies = max(num_levels, 1) if per_level else 1
        self.basis = jnp.asarray(rotation_basis(dim, rotation, copies, np.random.default_rng([seed, 1])))
        self.std = jnp.asarray(std)
        self.num_latents = num_latents
        self.num_levels = num_levels
        self.degrees_of_freedom = degrees_of_freedom
        self.isotropic = bool(np.all(std == std[0])) and degrees_of_freedom is None

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one observation."""
        return (self.basis.shape[-1],)

    @property
    def bounds(self) -> tuple[float, float]:
        """Wide but finite; entries of R are at most √dim for a random rotation, 1 for the Hadamard matrix."""
        largest = float(jnp.max(jnp.abs(self.basis)))
        high = largest * (2.0 + noise_bound(self.degrees_of_freedom) * float(jnp.sum(self.std)))
        return -high, high

    def __call__(self, latent: Index, level: Index, rng: PRNGKeyArray) -> Float[Array, " dim"]:
        """One observation of `latent` at `level`."""
        basis = at_copy(self.basis, level)
        signal = basis[latent]
        if self.num_levels > 0:
            signal = signal + basis[self.num_latents + level]
        noise = self.std * draw_noise(rng, self.shape, self.degrees_of_freedom)
        if self.isotropic:  # R ε is distributed like √dim ε, without a matrix product
            return signal + jnp.sqrt(jnp.float32(self.shape[0])) * noise
        return signal + noise @ basis

    def scores(self, level: Index, observation: Float[Array, " dim"]) -> Float[Array, " num_latents"]:
        """I_Z R_h⁻¹ s: the noisy one-hot vector of the latent state; with heavy tails, log-likelihoods."""
        basis = at_copy(self.basis, level)[: self.num_latents]
        noisy = basis @ observation / self.shape[0]
        if self.degrees_of_freedom is None:
            return noisy
        scale = jnp.maximum(self.std[: self.num_latents], LEAST_SCALE)
        error = (noisy - jnp.eye(self.num_latents)) / scale
        return jnp.sum(log_density(error, self.degrees_of_freedom), axis=1)


def decodability(emission: Any, level: int = 0, samples: int = 200, seed: int = 0) -> float:
    """The fraction of new observations whose latent state `decode` recovers, averaged over latent states.

    In a block MDP it is 1, because no observation belongs to two latent states.
    """
    latents = jnp.repeat(jnp.arange(emission.num_latents), samples)
    keys = jax.random.split(jax.random.key(seed), latents.size)

    @eqx.filter_jit
    def hits(emission: Any) -> Bool[Array, " n"]:
        def one(latent, key):
            return emission.decode(jnp.int32(level), emission(latent, jnp.int32(level), key)) == latent

        return jax.lax.map(lambda pair: one(*pair), (latents, keys), batch_size=256)

    return float(jnp.mean(hits(emission)))


SHARING = ("stationary", "permuted", "per_level")
"""Ways in which levels share their emission, see `emission_kinds`."""
KINDS = ("vector", "modes", "rings", "network", "digits", "shapes", "image")
IMAGES = ("digits", "shapes", "image")
HEAVY = ("vector", "modes")
"""Emissions whose noise may have heavy tails."""

OWN_NOISE = {"network": 0.02, "digits": 0.0}
"""Standard deviation of the noise if none is given; 0.1 for all others."""
PERMUTED, PER_LEVEL = ("rings", "network"), ("modes", "digits", "shapes")
OWN_SHARING = dict.fromkeys(PERMUTED, "permuted") | dict.fromkeys(PER_LEVEL, "per_level")
"""Default sharing of each emission; `vector` and `image` leave it to the environment."""


@dataclass(frozen=True)
class EmissionChoice:
    """An emission by name, with all arguments that environments offer for it."""

    kind: str
    """One of `KINDS`."""
    noise: float | None = None
    """Standard deviation; None: the emission's own."""
    sharing: str | None = None
    """How levels share the emission: `stationary`, `permuted` or `per_level`; None: the emission's own."""
    seed: int = 0
    """Draws rotations, prototypes, networks, roles and images."""
    rotation: str = "hadamard"
    """Rotation of the vectors, see `rotation_basis`."""
    vector_sharing: str = "stationary"
    """How levels of `vector` and `image` share the emission if `sharing` is None."""
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
            from briee.envs.exogenous import ExogenousEmission

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
        from briee.envs.emission_images import DigitsEmission, ImageEmission, ShapesEmission
        from briee.envs.emission_kinds import ModesEmission, NetworkEmission, RingsEmission

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
