"""How a latent state becomes a rich observation: rotated noisy vectors, or noisy pictures.

Both emissions are pytrees with one method per direction: `__call__(latent, level, rng)` draws an
observation, `decode(level, observation)` undoes it up to the noise. They are shared by the lock, by random
block MDPs and by `RichObservation`.
"""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray
from scipy.linalg import hadamard

NORMAL_BOUND = 6.0
"""`jax.random.normal` in float32 stays within ±5.5 (it inverts a 24-bit uniform), so boxes can be finite."""


def require(condition: bool, message: str) -> None:
    """Raise `ValueError(message)` unless the condition holds."""
    if not condition:
        raise ValueError(message)


def require_probability(name: str, value: float) -> None:
    """A probability lies in [0, 1]; anything else (NaN included) is a `ValueError`."""
    require(0.0 <= value <= 1.0, f"{name} must be in [0, 1], got {value}")


def rotation_basis(dim: int, kind: str, copies: int, rng: np.random.Generator) -> np.ndarray:
    """The columns of rotations R_c with R_c R_cᵀ = dim · I, f32[copies, dim, dim]: entry [c, j] is R_c e_j.

    `hadamard`: the unnormalised Sylvester matrix (entries ±1), the same in each copy; `signed-hadamard`: its
    columns permuted and with random signs, anew for each copy; `random`: uniformly random orthogonal matrices
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


class VectorEmission(eqx.Module):
    """One-hot of the latent, one-hot of the level, Gaussian noise, zeros up to a power of two, all rotated.

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
    ):
        """`num_levels` = 0 leaves the level out of the observation.

        `noise_coordinates` = 'first' leaves the last one-hot coordinate and the padding without noise;
        `distractors` more coordinates carry nothing but noise of `distractor_std`.
        """
        require(noise >= 0, f"noise must be >= 0, got {noise}")
        require(distractors >= 0, f"distractors must be >= 0, got {distractors}")
        require(distractor_std >= 0, f"distractor_std must be >= 0, got {distractor_std}")
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
        self.isotropic = bool(np.all(std == std[0]))

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one observation."""
        return (self.basis.shape[-1],)

    @property
    def bounds(self) -> tuple[float, float]:
        """Every coordinate of every observation lies between these two numbers."""
        # Entries of R are at most √dim for a random rotation and 1 for the Hadamard matrix.
        largest = float(jnp.max(jnp.abs(self.basis)))
        high = largest * (2.0 + NORMAL_BOUND * float(jnp.sum(self.std)))
        return -high, high

    def _rotation(self, level: Int[ArrayLike, ""]) -> Float[Array, "dim dim"]:
        return self.basis[0] if self.basis.shape[0] == 1 else self.basis[level]

    def __call__(
        self, latent: Int[ArrayLike, ""], level: Int[ArrayLike, ""], rng: PRNGKeyArray
    ) -> Float[Array, " dim"]:
        """One observation of `latent` at `level`."""
        basis = self._rotation(level)
        signal = basis[latent]
        if self.num_levels > 0:
            signal = signal + basis[self.num_latents + level]
        noise = self.std * jax.random.normal(rng, self.shape)
        if self.isotropic:  # R ε has the distribution of √dim ε, so the product is spared
            return signal + jnp.sqrt(jnp.float32(self.shape[0])) * noise
        return signal + noise @ basis

    def coordinates(
        self, level: Int[ArrayLike, ""], observation: Float[Array, " dim"]
    ) -> Float[Array, " dim"]:
        """R_h⁻¹ s: the noisy one-hot vectors behind an observation."""
        return self._rotation(level) @ observation / self.shape[0]

    def scores(
        self, level: Int[ArrayLike, ""], observation: Float[Array, " dim"]
    ) -> Float[Array, " num_latents"]:
        """I_Z R_h⁻¹ s: the noisy one-hot vector of the latent state."""
        basis = self._rotation(level)[: self.num_latents]
        return basis @ observation / self.shape[0]

    def decode(self, level: Int[ArrayLike, ""], observation: Float[Array, " dim"]) -> Int[Array, ""]:
        """The most likely latent state of an observation."""
        return jnp.argmax(self.scores(level, observation)).astype(jnp.int32)


class ImageEmission(eqx.Module):
    """Small grey pictures: one of several templates per latent state, plus noise, clipped to [0, 1]."""

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
        """Templates are random 7×7 patterns, enlarged; `per_level` draws others at each level."""
        require(noise >= 0, f"noise must be >= 0, got {noise}")
        require(size >= 7, f"image_size must be >= 7, got {size}")
        require(templates >= 1, f"templates must be >= 1, got {templates}")
        rng = np.random.default_rng([seed, 2])
        copies = max(num_levels, 1) if per_level else 1
        coarse = rng.integers(0, 2, size=(copies, num_latents, templates, 7, 7)).astype(np.float32)
        index = np.arange(size) * 7 // size
        self.templates = jnp.asarray(coarse[..., index[:, None], index[None, :]])
        self.noise = float(noise)

    @property
    def num_latents(self) -> int:
        """Number of latent states that have a picture."""
        return self.templates.shape[1]

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one observation: height, width, one channel."""
        return (*self.templates.shape[-2:], 1)

    @property
    def bounds(self) -> tuple[float, float]:
        """Every pixel lies between these two numbers."""
        return 0.0, 1.0

    def _pictures(self, level: Int[ArrayLike, ""]) -> Float[Array, "num_latents templates size size"]:
        return self.templates[0] if self.templates.shape[0] == 1 else self.templates[level]

    def __call__(
        self, latent: Int[ArrayLike, ""], level: Int[ArrayLike, ""], rng: PRNGKeyArray
    ) -> Float[Array, "size size 1"]:
        """One picture of `latent` at `level`."""
        choice, noise = jax.random.split(rng)
        pictures = self._pictures(level)[latent]
        picture = pictures[jax.random.randint(choice, (), 0, pictures.shape[0])]
        return jnp.clip(picture[..., None] + self.noise * jax.random.normal(noise, self.shape), 0.0, 1.0)

    def scores(
        self, level: Int[ArrayLike, ""], observation: Float[Array, "size size 1"]
    ) -> Float[Array, " num_latents"]:
        """Minus the mean squared distance to the nearest template of each latent state."""
        distance = jnp.mean((self._pictures(level) - observation[..., 0]) ** 2, axis=(-2, -1))
        return -jnp.min(distance, axis=1)

    def decode(self, level: Int[ArrayLike, ""], observation: Float[Array, "size size 1"]) -> Int[Array, ""]:
        """The latent state with the nearest template."""
        return jnp.argmax(self.scores(level, observation)).astype(jnp.int32)


Emission = VectorEmission | ImageEmission


def decodability(emission: Emission, level: int = 0, samples: int = 200, seed: int = 0) -> float:
    """The fraction of fresh observations whose latent state `decode` recovers, averaged over latent states.

    1.0 (up to sampling) is what a block MDP promises: no observation belongs to two latent states.
    """
    latents = jnp.repeat(jnp.arange(emission.num_latents), samples)
    keys = jax.random.split(jax.random.key(seed), latents.size)

    @eqx.filter_jit
    def hits(emission: Emission) -> Bool[Array, " n"]:
        def one(latent, key):
            return emission.decode(jnp.int32(level), emission(latent, jnp.int32(level), key)) == latent

        return jax.lax.map(lambda pair: one(*pair), (latents, keys), batch_size=256)

    return float(jnp.mean(hits(emission)))
