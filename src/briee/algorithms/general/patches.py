"""Images as distances to small patches of other images, whatever their position.

Coordinate f of an image is the distance of patch f to the most similar one at any place of the image, so
that an object has the same coordinates wherever it is. The patches are drawn from the data, those of high
contrast more often.
"""

from dataclasses import replace

import equinox as eqx
import numpy as np
from jaxtyping import Float

SIDE, COUNT = 5, 96  # pixels, patches
BATCH = 64  # images at a time: all their patches are in memory
IMAGES = 200  # images that patches are drawn from
FLOOR = 1e-6
LARGEST = 1024  # pixels and channels of images that are also mapped linearly


class Patches(eqx.Module):
    """F patches of standardised pixels, and the mean and deviation of their distances."""

    pixel_mean: Float[np.ndarray, ""]
    pixel_deviation: Float[np.ndarray, ""]
    patch: Float[np.ndarray, "F pixels"]
    mean: Float[np.ndarray, " F"]
    deviation: Float[np.ndarray, " F"]
    shape: tuple[int, ...] = eqx.field(static=True)
    """Shape of the images."""


def has_patches(shape: tuple[int, ...]) -> bool:
    """Whether observations of this shape are images with room for patches."""
    return len(shape) in (2, 3) and min(shape[:2]) >= SIDE


def by_patches_alone(shape: tuple[int, ...]) -> bool:
    """Whether linear maps of an image would need too much memory at every level."""
    return has_patches(shape) and int(np.prod(shape)) > LARGEST


def no_patches(shape: tuple[int, ...]) -> Patches:
    """Before the first images were seen; of size zero if observations are no images."""
    F = COUNT if has_patches(shape) else 0
    pixels = SIDE * SIDE * (shape[2] if len(shape) == 3 else 1)
    zero, one = np.zeros(F, np.float32), np.ones(F, np.float32)
    pixel = np.zeros((), np.float32), np.ones((), np.float32)
    return Patches(*pixel, np.zeros((F, pixels), np.float32), zero, one, shape)


def draw_patches(
    images: Float[np.ndarray, "n D"], shape: tuple[int, ...], rng: np.random.Generator
) -> Patches:
    """Patches of these images, with the usual distances to them."""
    mean, deviation = np.float32(images.mean()), np.float32(images.std() + FLOOR)
    empty = no_patches(shape)
    some = windows(np, (images[:IMAGES] - mean) / deviation, shape).reshape(-1, empty.patch.shape[1])
    contrast = some.var(1)
    contrast = contrast * (contrast >= np.median(contrast)) + FLOOR
    chosen = rng.choice(len(some), COUNT, p=contrast / contrast.sum(), replace=len(some) < COUNT)
    drawn = replace(
        empty,
        pixel_mean=np.asarray(mean),
        pixel_deviation=np.asarray(deviation),
        patch=some[chosen].astype(np.float32),
    )
    found = coordinates(drawn, images)
    usual = found.mean(0).astype(np.float32), (found.std(0) + FLOOR).astype(np.float32)
    return replace(drawn, mean=usual[0], deviation=usual[1])


def coordinates(patches: Patches, images: Float[np.ndarray, "n D"]) -> Float[np.ndarray, "n F"]:
    """The coordinates of images, in batches."""
    parts = [images[i : i + BATCH] for i in range(0, len(images), BATCH)]
    return np.concatenate([at_once(np, patches, part) for part in parts] or [images[:, :0]])


def at_once(xp, patches: Patches, images):
    """The coordinates of a few images; `xp` is NumPy or JAX's NumPy."""
    v = windows(xp, (images - patches.pixel_mean) / patches.pixel_deviation, patches.shape)
    distance = (v**2).sum(-1)[..., None] - 2 * v @ patches.patch.T + (patches.patch**2).sum(1)
    return (xp.sqrt(xp.maximum(distance.min(1), 0.0)) - patches.mean) / patches.deviation


def windows(xp, images, shape: tuple[int, ...]):
    """All windows [n, places, pixels] of flattened images."""
    x = images.reshape(len(images), *shape[:2], -1)
    rows, columns = shape[0] - SIDE + 1, shape[1] - SIDE + 1
    parts = [x[:, i : i + rows, j : j + columns] for i in range(SIDE) for j in range(SIDE)]
    return xp.concatenate(parts, -1).reshape(len(images), rows * columns, -1)
