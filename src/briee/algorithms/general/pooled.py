"""Pooled states: clusters of the observations of all steps together, where noise hides which ones are equal.

Average linkage in principal coordinates, cut at the widest gap between the distances at which clusters join,
gives a first partition. Its covariance within clusters makes the coordinates white; there the mean squared
distance of two rows of a cluster is 2E in E coordinates, and the tree is cut above that. Observations that
repeat exactly, such as the one after the end of an episode, are states of their own and leave before.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int, UInt
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import pdist

from briee.algorithms.general.exact import hashes, whole

COORDINATES = 64  # principal components that are kept
ROWS = 1500  # rows that are linked
WHITE_STEPS = 3  # rounds of: covariance within clusters, white coordinates, linkage
GAP = 1.25  # least ratio of two consecutive distances at which clusters join
SHARE, ALIKE = 0.9, 1.6  # rows in clusters, and median distance over that of white noise, of an accepted fit
LEAST_ROWS = 3  # rows of a cluster that counts
FLOOR = 1e-6  # least variance of a direction, relative to the mean


class Clusters(NamedTuple):
    """States as centres in white coordinates z = (x - mean) @ transform."""

    mean: Float[np.ndarray, " D"]
    transform: Float[np.ndarray, "D E"]
    centre: Float[np.ndarray, "K E"]
    name: UInt[np.ndarray, " K"]
    """A hash for each centre."""
    single: UInt[np.ndarray, " J"]
    """Hashes of observations that repeat exactly."""
    fits: bool

    def nearest(self, x: Float[np.ndarray, "n D"]) -> tuple[np.ndarray, np.ndarray]:
        """The nearest centre of each row and the squared distance to it."""
        return nearest_centre((x - self.mean) @ self.transform, self.centre)


def nearest_centre(
    z: Float[np.ndarray, "n E"], centre: Float[np.ndarray, "K E"]
) -> tuple[Int[np.ndarray, " n"], Float[np.ndarray, " n"]]:
    """The nearest centre of each row and the squared distance to it."""
    distance = (z**2).sum(1)[:, None] - 2 * z @ centre.T + (centre**2).sum(1)
    index = distance.argmin(1)
    return index, np.maximum(distance[np.arange(len(z)), index], 0.0)


def usual_radius(coordinates: int) -> float:
    """Squared distance to the mean of its cluster that white noise hardly ever exceeds."""
    return coordinates + 5 * np.sqrt(2 * coordinates) + 9


def usual_gap(coordinates: int) -> float:
    """Squared distance of two rows of a cluster that white noise hardly ever exceeds."""
    return 2 * coordinates + 5 * np.sqrt(2 * coordinates) + 9


def find_clusters(x: Float[np.ndarray, "n D"], most: int, rng: np.random.Generator) -> Clusters:
    """At most `most` clusters of the observations of all steps."""
    name = whole(hashes(x))
    single = repeating(name)
    rows = np.flatnonzero(~np.isin(name, single))
    rows = rows if len(rows) <= ROWS else np.sort(rng.choice(rows, ROWS, replace=False))
    own = x[rows].astype(np.float64)
    D, n = x.shape[1], len(rows)
    if n < 4 * LEAST_ROWS:
        empty = np.zeros((0, min(D, COORDINATES)))
        return Clusters(np.zeros(D), np.zeros((D, empty.shape[1])), empty, name[:0], single, False)
    mean = own.mean(0)
    basis = principal(own - mean, min(D, COORDINATES))
    t = (own - mean) @ basis
    part, white = widest_gap(t), np.eye(t.shape[1])
    for _ in range(WHITE_STEPS):
        white = whitening(t, part)
        part = linked(t @ white, most)
    z, E = t @ white, t.shape[1]
    size = np.bincount(part)
    kept = np.flatnonzero(size >= min(LEAST_ROWS, size.max()))
    centre = np.stack([z[part == k].mean(0) for k in kept])
    index, distance = nearest_centre(z, centre)
    count = np.bincount(index, minlength=len(kept))[index]
    left_out = distance * (count / np.maximum(count - 1, 1)) ** 2
    inside = distance <= usual_radius(E)
    fits = len(kept) > 1 and inside.mean() > SHARE and float(np.median(left_out)) < ALIKE * E
    founders = [rows[np.flatnonzero(part == k)[0]] for k in kept]
    return Clusters(mean, basis @ white, centre, name[founders], single, bool(fits))


def repeating(name: UInt[np.ndarray, " n"]) -> UInt[np.ndarray, " J"]:
    """Hashes that occur more than once."""
    values, times = np.unique(name, return_counts=True)
    return values[times > 1]


def principal(x: Float[np.ndarray, "n D"], most: int) -> Float[np.ndarray, "D E"]:
    """The principal directions, as columns."""
    n, D = x.shape
    if n < D:
        variance, left = np.linalg.eigh(x @ x.T)
        keep = slice(-min(most, n - 1), None)
        return x.T @ left[:, keep] / np.sqrt(np.maximum(variance[keep], 1e-12))
    return np.linalg.eigh(x.T @ x)[1][:, -most:]


def widest_gap(t: Float[np.ndarray, "n E"]) -> Int[np.ndarray, " n"]:
    """The partition at the widest gap between consecutive distances at which clusters join.

    There are at most n / 4 clusters; without a gap there is one.
    """
    tree = linkage(pdist(t, "sqeuclidean"), "average")
    height = np.maximum(tree[-max(len(t) // 4, 1) :, 2], 1e-12)
    ratio = height[1:] / height[:-1]
    if not len(ratio) or ratio.max() < GAP:
        return np.zeros(len(t), int)
    i = int(ratio.argmax())
    return fcluster(tree, np.sqrt(height[i] * height[i + 1]), "distance") - 1


def linked(z: Float[np.ndarray, "n E"], most: int) -> Int[np.ndarray, " n"]:
    """Clusters of white noise."""
    tree = linkage(pdist(z, "sqeuclidean"), "average")
    part = fcluster(tree, usual_gap(z.shape[1]), "distance") - 1
    return part if part.max() < most else fcluster(tree, most, "maxclust") - 1


def whitening(t: Float[np.ndarray, "n E"], part: Int[np.ndarray, " n"]) -> Float[np.ndarray, "E E"]:
    """W such that t @ W has about the identity as covariance within clusters.

    The covariance is shrunk towards a multiple of the identity, by as much as it has few rows.
    """
    size = np.bincount(part)
    member = np.zeros((len(size), len(t)))
    member[part, np.arange(len(t))] = 1.0 / size[part]
    rows = t - (member @ t)[part]
    freedom = max(int((size - 1).sum()), 1)
    covariance = rows.T @ rows / freedom
    E = t.shape[1]
    level = max(float(np.trace(covariance)) / E, 1e-12)
    trust = freedom / (freedom + E)
    covariance = trust * covariance + (1 - trust) * level * np.eye(E)
    variance, basis = np.linalg.eigh(covariance)
    return basis / np.sqrt(np.maximum(variance, FLOOR * level))
