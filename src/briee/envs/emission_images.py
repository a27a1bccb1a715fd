"""Emissions as images: handwritten digits, shapes that move, templates. Roles: see `emission_kinds`."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from briee.envs.emission import Index, ScoredEmission, at_copy, require, require_least
from briee.envs.emission_kinds import RolesEmission, copies_of, draw_roles

DIGITS = Path(__file__).with_name("digits.npz")
"""Images u8[10, 174, 8, 8] of handwritten digits, pixels 0 to 16, in random order: 174 of each digit of the
test set of "Optical Recognition of Handwritten Digits" by E. Alpaydin and C. Kaynak (UCI Machine Learning
Repository, 1998, doi 10.24432/C50P49, licence CC BY 4.0), from the copy in scikit-learn."""

SHAPES = (
    "010111010",
    "111101111",
    "111010010",
    "101010101",
    "110110000",
    "100010001",
    "001111100",
    "111000111",
)
"""Shapes of 3 × 3 pixels, row by row. Up to five latent states use the first five only."""

CANVAS = 12
"""Side of the images with a moving shape."""


@cache
def digit_images() -> np.ndarray:
    """Images f32[2, 10, 87, 8, 8] in [0, 1]: those for training, then those for evaluation."""
    with np.load(DIGITS) as stored:
        images = stored["images"].astype(np.float32) / 16.0
    return np.stack(np.split(images, 2, axis=1))


class DigitsEmission(RolesEmission):
    """Images of handwritten digits, a digit for each latent state; others are kept apart for evaluation."""

    images: Float[Array, "2 10 images 8 8"]
    half: Int[Array, ""]

    def __init__(
        self,
        num_latents: int,
        num_levels: int,
        *,
        noise: float = 0.0,
        sharing: str = "per_level",
        seed: int = 0,
    ):
        require_least(0, noise=noise)
        require(
            num_latents <= 10, f"emission='digits' has 10 digits, too few for {num_latents} latent states"
        )
        copies_of(sharing, num_levels)  # checks it
        self.images = jnp.asarray(digit_images())
        self.roles = draw_roles(np.random.default_rng([seed, 9]), sharing, num_levels, num_latents, 10)
        self.half = jnp.int32(0)
        self.noise = float(noise)

    @property
    def held_out(self) -> DigitsEmission:
        """The same digits in the images kept apart for evaluation."""
        return eqx.tree_at(lambda emission: emission.half, self, jnp.int32(1))

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one observation: height, width, one channel."""
        return (8, 8, 1)

    @property
    def bounds(self) -> tuple[float, float]:
        """Every pixel lies between these two numbers."""
        return 0.0, 1.0

    def __call__(self, latent: Index, level: Index, rng: PRNGKeyArray) -> Float[Array, "8 8 1"]:
        """One image of `latent` at `level`."""
        choice, noise = jax.random.split(rng)
        images = self.images[self.half, self.role(latent, level)]
        image = images[jax.random.randint(choice, (), 0, images.shape[0])][..., None]
        return jnp.clip(image + self.noise * jax.random.normal(noise, self.shape), 0.0, 1.0)

    def scores(self, level: Index, observation: Float[Array, "8 8 1"]) -> Float[Array, " num_latents"]:
        """Minus the squared distance to the nearest image of each digit, in both halves."""
        images = self.images[:, at_copy(self.roles, level)]
        distance = jnp.sum((images - observation[..., 0]) ** 2, axis=(-2, -1))
        return -jnp.min(distance, axis=(0, 2))


class ShapesEmission(RolesEmission):
    """A shape of 3 × 3 pixels anywhere in an image of 12 × 12, a shape for each latent state, plus noise."""

    placed: Float[Array, "shapes positions size size"]

    def __init__(
        self,
        num_latents: int,
        num_levels: int,
        *,
        noise: float = 0.1,
        sharing: str = "per_level",
        seed: int = 0,
    ):
        require_least(0, noise=noise)
        known = len(SHAPES)
        require(
            num_latents <= known,
            f"emission='shapes' has {known} shapes, too few for {num_latents} latent states",
        )
        copies_of(sharing, num_levels)  # checks it
        used = max(5, num_latents)
        places = CANVAS - 2
        placed = np.zeros((used, places, places, CANVAS, CANVAS), np.float32)
        for shape, pixels in enumerate(SHAPES[:used]):
            for row, column in np.ndindex(places, places):
                block = np.array([*pixels], np.float32).reshape(3, 3)
                placed[shape, row, column, row : row + 3, column : column + 3] = block
        self.placed = jnp.asarray(placed.reshape(used, places**2, CANVAS, CANVAS))
        self.roles = draw_roles(np.random.default_rng([seed, 10]), sharing, num_levels, num_latents, used)
        self.noise = float(noise)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one observation: height, width, one channel."""
        return (CANVAS, CANVAS, 1)

    @property
    def bounds(self) -> tuple[float, float]:
        """Every pixel lies between these two numbers."""
        return 0.0, 1.0

    def __call__(self, latent: Index, level: Index, rng: PRNGKeyArray) -> Float[Array, "size size 1"]:
        """One image of `latent` at `level`."""
        choice, noise = jax.random.split(rng)
        place = jax.random.randint(choice, (), 0, self.placed.shape[1])
        image = self.placed[self.role(latent, level), place][..., None]
        return jnp.clip(image + self.noise * jax.random.normal(noise, self.shape), 0.0, 1.0)

    def scores(self, level: Index, observation: Float[Array, "size size 1"]) -> Float[Array, " num_latents"]:
        """Minus the squared distance to each shape at its best place."""
        placed = self.placed[at_copy(self.roles, level)]
        return -jnp.min(jnp.sum((placed - observation[..., 0]) ** 2, axis=(-2, -1)), axis=1)


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
