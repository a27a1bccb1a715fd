"""Emissions: rich observations of a latent state, as rotated noisy vectors or noisy images.

An emission is a pytree. `__call__(latent, level, rng)` draws an observation, and `decode(level, observation)`
recovers the latent state. The lock, random block MDPs and `RichObservation` share them. Further kinds are in
`emission_kinds`, and the choice among all of them in `emission_choice`.
"""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, Shaped
from scipy.linalg import hadamard

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
    if kind == "hadamard":
        return np.broadcast_to(hadamard(dim).astype(np.float32), (copies, dim, dim)).copy()
    if kind == "signed-hadamard":
        base = hadamard(dim).astype(np.float32)
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


class ImageEmission(ScoredEmission):
    """Small grey images: one of several templates per latent state, plus noise, clipped to [0, 1]."""

    templates: Float[Array, "copies num_latents templates size size"]
    noise: float = eqx.field(static=True)

    def __init__(
        self,
        num_latents: int,
        num_levels: int,
        *,
        noise: float = 0.1,
        size: int = 28,
        templates: int = 4,
        per_level: bool = False,
        seed: int = 0,
    ):
        """Templates are random 7×7 patterns, enlarged; with `per_level`, each level has its own."""
        require_least(0, noise=noise)
        require_least(7, image_size=size)
        require_least(1, templates=templates)
        rng = np.random.default_rng([seed, 2])
        copies = max(num_levels, 1) if per_level else 1
        coarse = rng.integers(0, 2, size=(copies, num_latents, templates, 7, 7)).astype(np.float32)
        index = np.arange(size) * 7 // size
        self.templates = jnp.asarray(coarse[..., index[:, None], index[None, :]])
        self.noise = float(noise)

    @property
    def num_latents(self) -> int:
        """Number of latent states that have images."""
        return self.templates.shape[1]

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one observation: height, width, one channel."""
        return (*self.templates.shape[-2:], 1)

    @property
    def bounds(self) -> tuple[float, float]:
        """Every pixel lies between these two numbers."""
        return 0.0, 1.0

    def __call__(self, latent: Index, level: Index, rng: PRNGKeyArray) -> Float[Array, "size size 1"]:
        """One image of `latent` at `level`."""
        choice, noise = jax.random.split(rng)
        images = at_copy(self.templates, level)[latent]
        image = images[jax.random.randint(choice, (), 0, images.shape[0])]
        return jnp.clip(image[..., None] + self.noise * jax.random.normal(noise, self.shape), 0.0, 1.0)

    def scores(self, level: Index, observation: Float[Array, "size size 1"]) -> Float[Array, " num_latents"]:
        """Minus the mean squared distance to the nearest template of each latent state."""
        distance = jnp.mean((at_copy(self.templates, level) - observation[..., 0]) ** 2, axis=(-2, -1))
        return -jnp.min(distance, axis=1)


Emission = VectorEmission | ImageEmission


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
