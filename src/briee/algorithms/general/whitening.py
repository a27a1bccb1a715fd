"""White coordinates z = W^T (s - mean) of a level: there the noise around a state is about standard normal.

The noise is that of the purest label, the one of smallest determinant: labels that still mix several states
look noisier than they are, and pooling them would hide the directions that tell these states apart. Of the
purest label only the largest cloud counts, and of that only the most central rows.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.special import gammainc, gammaincinv

CENTRAL = 0.8  # share of a cloud's rows, those nearest to its centre, that its covariance is estimated from
CENTRAL_STEPS = 2  # concentration steps towards the minimum covariance determinant: few rows change after two
TRUST = 1.0, 0.3, 0.1  # candidates for the trust in a covariance of n rows, as multiples of n / (n + D)
HARMONIC_STEPS = 2  # fixed-point steps for the scale of the shrinkage target
ENOUGH_ROWS = 20  # smaller labels do not compete for the smallest determinant, if there is a larger one
LEAST_LEFT_OUT = 0.05  # bound on the correction for a row that nearly determines the covariance by itself
RELATIVE_FLOOR, FLOOR = 1e-3, 1e-8  # least variance in any direction, relative to the mean one and absolute
PARTS, LLOYD_STEPS = 6, 12  # parts into which k-means cuts a label, before close ones are chained
APART = 4.0  # halves of one normal distribution are 2.7 standard deviations apart
TINY = 1e-12


class White(NamedTuple):
    """z = (s - mean) @ transform. `members` shaped the covariance, each with the weight `share`."""

    mean: Float[np.ndarray, " D"]
    transform: Float[np.ndarray, "D E"]
    members: Bool[np.ndarray, " n"]
    share: float

    def __call__(self, x: Float[np.ndarray, "n D"]) -> Float[np.ndarray, "n E"]:
        return (x - self.mean) @ self.transform


def whiten(x: Float[np.ndarray, "n D"], label: Int[np.ndarray, " n"], most: int) -> White:
    """White coordinates from the rows of a level and their labels; at most `most` principal components."""
    x = x.astype(np.float64)
    mean = x.mean(0)
    rows, reduce = x - mean, np.eye(x.shape[1])
    if x.shape[1] > most:
        reduce = np.linalg.svd(rows, full_matrices=False)[2][:most].T
        rows = rows @ reduce
    spread = (rows**2).mean() + FLOOR
    sizes = np.bincount(label)
    large = np.flatnonzero(sizes >= min(ENOUGH_ROWS, sizes.max()))
    volume = [np.linalg.slogdet(usual_covariance(rows[label == k], spread))[1] for k in large]
    purest = np.flatnonzero(label == large[int(np.argmin(volume))])
    cloud = purest[largest_cloud(rows[purest])]
    central = cloud[central_rows(rows[cloud], spread)]
    variance, basis, share = likeliest_shrinkage(rows[central], spread)
    transform = basis / np.sqrt(variance)
    distance = (((rows[central] - rows[central].mean(0)) @ transform) ** 2).sum(1)
    # rows left out are wider than those the covariance was made of
    middle = np.median(distance / left_out(distance, share))
    transform = reduce @ transform / np.sqrt(max(middle / median_chi_square(rows.shape[1]), 1.0))
    members = np.zeros(len(x), bool)
    members[central] = True
    return White(mean, transform, members, share)


def median_chi_square(D: int) -> float:
    """Median squared distance of the central rows of a standard normal cloud."""
    return 2 * float(gammaincinv(D / 2, CENTRAL / 2))


def left_out(distance: Float[np.ndarray, " n"], share: float) -> Float[np.ndarray, " n"]:
    """1 - b r for a row of squared distance r and share b in the covariance (Sherman-Morrison).

    Without that row, its distance is r / (1 - b r) and the determinant 1 - b r times as large.
    """
    return np.maximum(1 - share * distance, LEAST_LEFT_OUT)


def covariance(rows: Float[np.ndarray, "n D"]) -> Float[np.ndarray, "D D"]:
    """The unbiased covariance."""
    rows = rows - rows.mean(0)
    return rows.T @ rows / max(len(rows) - 1, 1)


def usual_covariance(rows: Float[np.ndarray, "n D"], spread: float) -> Float[np.ndarray, "D D"]:
    """The covariance of n rows, shrunk by D / (n + D) towards the mean of its eigenvalues."""
    raw, (n, D) = covariance(rows), rows.shape
    trust = n / (n + D)
    return trust * raw + ((1 - trust) * np.trace(raw) / D + RELATIVE_FLOOR * spread) * np.eye(D)


def central_rows(rows: Float[np.ndarray, "n D"], spread: float) -> Int[np.ndarray, " m"]:
    """The share `CENTRAL` of the rows nearest to their centre, by the covariance of those before."""
    chosen = np.arange(len(rows))
    for _ in range(CENTRAL_STEPS):
        some = rows[chosen]
        root = np.linalg.cholesky(usual_covariance(some, spread))
        distance = (np.linalg.solve(root, (rows - some.mean(0)).T) ** 2).sum(0)
        chosen = np.flatnonzero(distance <= np.quantile(distance, CENTRAL))
    return chosen


def likeliest_shrinkage(
    central: Float[np.ndarray, "n D"], spread: float
) -> tuple[Float[np.ndarray, " D"], Float[np.ndarray, "D D"], float]:
    """Eigenvalues e and vectors of t raw + (1 - t) rho I, and the share b = t / (n - 1) of a row in it.

    The trust t maximises the likelihood of left-out rows: few rows suffice for noise that is alike in all
    directions, but not for loud and quiet directions. rho is the harmonic mean of the result's own
    eigenvalues; an arithmetic mean would lift the quiet directions, in which states differ, to the level of
    the loud ones. The mean r of the rows' squared distances stands for that of each: minimise
    sum log e + log(1 - b r) + r / (1 - b r).
    """
    n, D = central.shape
    kept = float(gammainc(D / 2 + 1, gammaincinv(D / 2, CENTRAL))) / CENTRAL  # variance left by the cut
    raw, basis = np.linalg.eigh(covariance(central) / kept)
    raw, floor, found = np.maximum(raw, 0.0), RELATIVE_FLOOR * spread, []
    for trust in TRUST:
        t, rho = trust * n / (n + D), raw.mean()
        for _ in range(HARMONIC_STEPS):
            rho = D / np.sum(1 / (t * raw + (1 - t) * rho + floor))
        e, share = t * raw + (1 - t) * rho + floor, t / max(n - 1, 1)
        r = np.sum(raw / e)
        rest = float(left_out(np.array([r]), share)[0])
        found.append((np.log(e).sum() + np.log(rest) + r / rest, e, share))
    _, variance, share = min(found, key=lambda one: one[0])
    return variance, basis, share


def largest_cloud(rows: Float[np.ndarray, "n D"]) -> Int[np.ndarray, " m"]:
    """The rows of the largest cloud: k-means parts in the directions of largest variance, close ones chained.

    Without it the difference of two separated states of one label would be absorbed into the noise.
    """
    n, D = rows.shape
    if n < ENOUGH_ROWS:
        return np.arange(n)
    centred = rows - rows.mean(0)
    basis = np.linalg.eigh(centred.T @ centred)[1][:, -min(PARTS + 1, D) :]
    points = centred @ basis
    part = k_means(points, PARTS)
    centre = np.stack([points[part == k].mean(0) for k in range(part.max() + 1)])
    points = points / np.sqrt(((points - centre[part]) ** 2).mean() + TINY)
    close = gaps(points, part) < APART**2
    for _ in range(3):  # chains of close parts
        close = close @ close
    cluster = close.argmax(1)[part]
    return np.flatnonzero(cluster == np.bincount(cluster).argmax())


def k_means(points: Float[np.ndarray, "n d"], parts: int) -> Int[np.ndarray, " n"]:
    """Labels of k-means from farthest-first centres; empty parts are left out."""
    centres = points[[int((points**2).sum(1).argmax())]]
    for _ in range(parts - 1):
        centres = np.concatenate([centres, points[[int(squared_distances(points, centres).min(1).argmax())]]])
    for _ in range(LLOYD_STEPS):
        part = np.unique(squared_distances(points, centres).argmin(1), return_inverse=True)[1]
        centres = np.stack([points[part == k].mean(0) for k in range(part.max() + 1)])
    return np.unique(squared_distances(points, centres).argmin(1), return_inverse=True)[1]


def gaps(
    points: Float[np.ndarray, "n d"], part: Int[np.ndarray, " n"], least_variance: float = 0.0
) -> Float[np.ndarray, "K K"]:
    """Squared distances between the centres of parts, in variances of the rows along the line between them.

    What two centres of n_j and n_k rows differ by chance, d (1 / n_j + 1 / n_k) in white coordinates, is
    subtracted.
    """
    K, d = int(part.max()) + 1, points.shape[1]
    member = np.eye(K)[part]
    size = member.sum(0)
    centre = member.T @ points / size[:, None]
    line = centre[:, None] - centre
    length = (line**2).sum(-1)
    along = np.einsum("nd,jkd->njk", points, line) - np.einsum("jd,jkd->jk", centre, line)
    square = np.einsum("nj,njk->jk", member, along**2)
    variance = (square + square.T) / (size[:, None] + size) / np.maximum(length, TINY)
    chance = d * (1 / size[:, None] + 1 / size)
    return (length - chance) / np.maximum(variance, max(least_variance, TINY))


def squared_distances(
    points: Float[np.ndarray, "n d"], centres: Float[np.ndarray, "K d"]
) -> Float[np.ndarray, "n K"]:
    """||x_i - c_k||^2."""
    cross = (points**2).sum(1)[:, None] - 2 * points @ centres.T + (centres**2).sum(1)
    return np.maximum(cross, 0.0)
