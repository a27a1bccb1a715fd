"""States that are clouds in white coordinates: the cheapest candidate, which never looks at the context.

Rows are clustered by average linkage in the directions of more variance than noise can have, and in those
towards rows that are far from every cluster. The mean squared distance between two rows of one cloud is 2T in
T white coordinates, so the tree is cut above that. The clouds are accepted only if they hold nearly all rows
and if left-out rows are as near to their cloud as white noise is, which rejects most false clouds of states
that are none.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int
from scipy.cluster.hierarchy import fcluster, linkage

from briee.algorithms.general.whitening import APART, White, covariance, gaps, left_out, squared_distances

EDGE = 1.3  # a direction counts if its variance exceeds this many times the largest one of white noise
FAR_DIRECTIONS = 3  # at most this many directions towards far rows
FAR, FAR_SHARE = (
    6.0,
    0.04,
)  # far rows: this many deviations above white noise; more than this share is no state
DEVIATIONS = 5.0  # an observation is novel this many robust deviations beyond the usual distance
UPPER_QUARTILE = 0.674  # of the standard normal, in standard deviations above the median
LEAST_RADIUS = 0.1  # per dimension: without noise all distances are rounding errors
CENTRE_STEPS = 3  # nearest-centre steps after the linkage
SHARE, ALIKE = 0.9, 1.6  # rows in clouds, and median distance over that of white noise, of accepted clouds
LEAST_PROBABILITY = 1e-3
NOWHERE = 1e3


class Clouds(NamedTuple):
    """C clouds in E white coordinates. Their scores are z @ weight.T + bias, up to a term of the row."""

    centre: Float[np.ndarray, "C E"]
    weight: Float[np.ndarray, "C E"]
    bias: Float[np.ndarray, " C"]
    radius: float
    """Squared distance from every centre beyond which an observation is novel."""
    part: Int[np.ndarray, " n"]
    """The cloud of each row."""
    left_out: Float[np.ndarray, "n C"]
    """Probabilities of the clouds of each row, without the row itself."""
    fits: bool


def find_clouds(x: Float[np.ndarray, "n D"], white: White, most: int) -> Clouds:
    """At most `most` clouds of the rows x."""
    z = white(x)
    basis = loud_directions(z, 2 * most)
    D = z.shape[1]
    most_directions = min(basis.shape[1] + FAR_DIRECTIONS, D)
    while True:
        part, share = cluster(z @ basis, most)
        distance, centre = own_distance(z, part, white)
        middle, upper = np.quantile(distance, [0.5, 0.75])
        usual = middle + DEVIATIONS * (upper - middle) / UPPER_QUARTILE
        radius = max(float(usual), LEAST_RADIUS * D)
        far = distance > max(radius, D + FAR * np.sqrt(2 * D))
        if not far.any() or far.mean() > FAR_SHARE or basis.shape[1] >= most_directions:
            break
        row = int(np.where(far, distance, -1.0).argmax())
        basis = with_direction(basis, z[row] - centre[part[row]])
    size = np.bincount(part)
    typical = [np.median(distance[part == k]) / D for k in range(len(size)) if size[k] >= 4 or k == 0]
    return Clouds(
        centre,
        weight=(flat := centre @ basis @ basis.T),
        bias=0.5 * (basis.shape[1] / size - (flat**2).sum(1)),
        radius=radius,
        part=part,
        left_out=left_out_probabilities(z @ basis, part),
        fits=share > SHARE and float(np.median(typical)) < ALIKE,
    )


def loud_directions(z: Float[np.ndarray, "n E"], most: int) -> Float[np.ndarray, "E T"]:
    """Directions of more variance than white noise has: (1 + sqrt(E/n))^2 at most (Marchenko and Pastur)."""
    (n, E), (variance, basis) = z.shape, np.linalg.eigh(covariance(z))
    count = int((variance > EDGE * (1 + np.sqrt(E / n)) ** 2).sum())
    return basis[:, -int(np.clip(count, 1, min(most, E))) :]


def with_direction(basis: Float[np.ndarray, "E T"], v: Float[np.ndarray, " E"]) -> Float[np.ndarray, "E T1"]:
    """The orthonormal basis with one direction more."""
    v = v - basis @ (basis.T @ v)
    return np.concatenate([basis, v[:, None] / max(np.linalg.norm(v), 1e-9)], 1)


def cluster(t: Float[np.ndarray, "n T"], most: int) -> tuple[Int[np.ndarray, " n"], float]:
    """The cloud of each row, and the share of the rows that the clouds of the linkage held."""
    n, T = t.shape
    if n < 3:
        return np.zeros(n, int), 1.0
    between = squared_distances(t, t)[np.triu_indices(n, 1)]
    tree = linkage(between, "average")
    part = fcluster(tree, 2 * T + 5 * np.sqrt(2 * T) + 9, "distance") - 1
    size = np.bincount(part)
    kept = np.argsort(-size, kind="stable")[:most]
    if (size[part] <= 2).mean() > FAR_SHARE:  # tails rather than rare states
        kept = kept[size[kept] > max(2, 0.01 * n)]
    kept = kept if len(kept) else np.array([size.argmax()])
    share = float(size[kept].sum() / n)
    centre = np.stack([t[part == k].mean(0) for k in kept])
    for _ in range(CENTRE_STEPS):
        part = compact(squared_distances(t, centre).argmin(1))
        centre = np.stack([t[part == k].mean(0) for k in range(part.max() + 1)])
    while part.max() > 0:  # parts of one cloud
        gap = gaps(t, part, least_variance=0.5) + np.diag(np.full(part.max() + 1, np.inf))
        if gap.min() >= APART**2:
            break
        j, k = np.unravel_index(gap.argmin(), gap.shape)
        part = compact(np.where(part == j, k, part))
    return part, share


def compact(part: Int[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
    """The same parts, numbered without holes."""
    return np.unique(part, return_inverse=True)[1]


def own_distance(
    z: Float[np.ndarray, "n E"], part: Int[np.ndarray, " n"], white: White
) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, "C E"]]:
    """Squared distance of each row, as if it were left out, to the centre of its cloud; and the centres."""
    member = np.eye(int(part.max()) + 1)[part]
    size = member.sum(0)
    centre = member.T @ z / size[:, None]
    n = size[part]
    distance = ((z - centre[part]) ** 2).sum(1) * (n / np.maximum(n - 1, 1)) ** 2
    return distance / np.where(white.members, left_out(distance, white.share), 1.0), centre


def left_out_probabilities(t: Float[np.ndarray, "n T"], part: Int[np.ndarray, " n"]) -> np.ndarray:
    """Probabilities f64[n, C] of the clouds of unit variance, each row's own cloud without it."""
    member = np.eye(int(part.max()) + 1)[part]
    size = member.sum(0)
    distance = squared_distances(t, member.T @ t / size[:, None])
    rows, n = np.arange(len(t)), size[part]
    own = distance[rows, part] * (n / np.maximum(n - 1, 1)) ** 2
    distance[rows, part] = np.where(n > 1, own, NOWHERE)
    weight = np.exp(-0.5 * (distance - distance.min(1, keepdims=True)))
    weight = np.maximum(weight / weight.sum(1, keepdims=True), LEAST_PROBABILITY)
    return weight / weight.sum(1, keepdims=True)
