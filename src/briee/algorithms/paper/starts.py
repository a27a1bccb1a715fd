"""First features of RepLearn, which Algorithm 2 takes "arbitrarily": clusters, old features, random ones.

Features are psi(s) = softmax(A s + b); [A, b] is one matrix `Units` [K, D + 1]. They are found in white
coordinates, whose scale is that of the noise around a latent state, estimated without knowing the states.
Symbols: s observations [n, D], x = W (s - mean) white ones. NumPy on the host: a level has at most some
1,000 rows.
"""

from itertools import combinations
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int, Shaped

FREEDOM = 3.0  # degrees of freedom of the Student-t scatter: outliers count little, but all directions count
SOFT_STEPS, HARD_STEPS = 4, 8  # fixed-point steps of the scatter, then concentration steps
CENTRAL = 0.5  # share of the rows, those nearest to the centre, of a concentration step
ENOUGH = 1.5  # a concentration step needs this many central rows per dimension
LEAST_VARIANCE, FLOOR = (
    1e-3,
    1e-10,
)  # least variance of a direction, relative to the median one and absolute
HARMONIC_STEPS = 2  # fixed-point steps for the scale of the shrinkage target
PURE_ROWS, PURE_ROWS_PER_DIMENSION = 60, 5  # fewer rows of a label look less noisy than they are


class White(NamedTuple):
    """x = whiten (s - mean)."""

    mean: Float[np.ndarray, " D"]
    whiten: Float[np.ndarray, "D D"]

    def __call__(self, s: Float[np.ndarray, "n D"]) -> Float[np.ndarray, "n D"]:
        return (s - self.mean) @ self.whiten.T

    @property
    def volume(self) -> float:
        """log det of the covariance: small if the noise is."""
        return -2 * float(np.linalg.slogdet(self.whiten)[1])


def scaled(s: Float[np.ndarray, "n D"]) -> White:
    """Centred observations, divided by one number: their standard deviation."""
    spread = max(float(s.std()), FLOOR)
    return White(s.mean(0), np.eye(s.shape[1]) / spread)


def central_scatter(
    s: Float[np.ndarray, "n D"], soft_steps: int = SOFT_STEPS, hard_steps: int = HARD_STEPS
) -> White:
    """Coordinates in which the noise around the most frequent latent state is white.

    A Student-t scatter matrix, then steps towards the minimum covariance determinant, which use the half of
    the rows that is nearest to the centre. Rows of rare states hence do not widen the covariance, and become
    outliers. Scaled so that the median squared distance from the centre is D.
    """
    n, D = s.shape
    weight, mean, whiten, distance = np.ones(n), s[0], np.eye(D), np.ones(n)
    for step in range(soft_steps + hard_steps):
        mean = weight @ s / weight.sum()
        centred = s - mean
        raw = (centred * weight[:, None]).T @ centred / weight.sum()
        whiten = shrunk_whitening(raw, min(weight.sum(), n))
        distance = ((centred @ whiten.T) ** 2).sum(1)
        before = weight
        if step < soft_steps or CENTRAL * n < ENOUGH * D:
            weight = (FREEDOM + D) / (FREEDOM + distance)
        else:
            weight = (distance <= np.quantile(distance, CENTRAL)).astype(float)
        if (weight == before).all():  # a fixed point: further steps change nothing
            break
    return White(mean, whiten / np.sqrt(max(np.median(distance) / D, FLOOR)))


def shrunk_whitening(raw: Float[np.ndarray, "D D"], rows: float) -> Float[np.ndarray, "D D"]:
    """W with W^T W = (t raw + (1 - t) rho I)^-1 for the covariance `raw` of this many rows, t = n / (n + D).

    rho is the harmonic mean of the eigenvalues of the result. An arithmetic mean would lift the quiet
    directions, in which states may differ, to the level of the loud ones.
    """
    D = len(raw)
    trust = rows / (rows + D)
    values = np.linalg.eigvalsh(raw)
    least = max(float(np.median(values)) * LEAST_VARIANCE, FLOOR)
    rho = float(np.median(values))
    for _ in range(HARMONIC_STEPS):
        rho = D / np.sum(1 / np.maximum(trust * values + (1 - trust) * rho, least))
    lower = np.linalg.cholesky(trust * raw + ((1 - trust) * rho + least) * np.eye(D))
    return np.linalg.inv(lower)


def purest_scatter(s: Float[np.ndarray, "n D"], label: Int[np.ndarray, " n"] | None) -> White:
    """The scatter of least volume, of all rows or of the rows of one label.

    States that are still mixed up look noisier than they are, which hides what tells them apart.
    """
    n, D = s.shape
    best = central_scatter(s)
    for k in range(0 if label is None else int(label.max()) + 1):
        rows = label == k
        if max(PURE_ROWS, PURE_ROWS_PER_DIMENSION * D) <= rows.sum() < n:
            new = central_scatter(s[rows], SOFT_STEPS // 2, HARD_STEPS // 2)
            if new.volume < best.volume:
                best = White(s.mean(0), new.whiten)
    return best


Units = Float[np.ndarray, "K columns"]
"""[A, b] of psi = softmax(A s + b): one unit per latent state."""

APART = 4.0  # standard deviations between parts that are different clusters
EM_STEPS = 20  # of a mixture; it usually stops before
LEAST_BIAS = -1e3  # of a unit that no observation has
LLOYD_STEPS = 12  # k-means from farthest-first centres hardly moves afterwards


def scores(units: Units, s: Float[np.ndarray, "n D"]) -> Float[np.ndarray, "n K"]:
    """A s + b."""
    return s @ units[:, :-1].T + units[:, -1]


def labels(units: Units, s: Float[np.ndarray, "n D"]) -> Int[np.ndarray, " n"]:
    """The unit with the largest score of each row."""
    return scores(units, s).argmax(1)


def psi(units: Units, s: Float[np.ndarray, "n D"]) -> Float[np.ndarray, "n K"]:
    """Soft latent states."""
    logits = scores(units, s)
    exponential = np.exp(logits - logits.max(1, keepdims=True))
    return exponential / exponential.sum(1, keepdims=True)


def in_white(units: Units, white: White) -> Units:
    """Units of observations s as units of their white coordinates x."""
    A, b = units[:, :-1], units[:, -1]
    return np.column_stack([A @ np.linalg.inv(white.whiten), b + A @ white.mean])


def from_white(units: Units, white: White) -> Units:
    """Units of white coordinates x as units of observations s."""
    A = units[:, :-1] @ white.whiten
    return np.column_stack([A, units[:, -1] - A @ white.mean])


def random_units(rng: np.random.Generator, num_units: int, dimension: int) -> Units:
    """Random directions, no bias."""
    A = rng.normal(size=(num_units, dimension)) / np.sqrt(dimension)
    return np.column_stack([A, np.zeros(num_units)])


def prototypes(
    centres: Float[np.ndarray, "K D"], size: Shaped[np.ndarray, " K"], dimension: int, tau: float
) -> Units:
    """Units of a Gaussian mixture with equal weights and covariance tau I, in coordinates with noise I.

    A centre that is the mean of n rows lies D / n too far out, in squared distance; the bias corrects it.
    """
    bias = -0.5 * (centres**2).sum(1) + 0.5 * dimension / np.maximum(size, 1)
    return np.column_stack([centres, bias]) / tau


def clustered(x: Float[np.ndarray, "n D"], num_units: int, tau: float) -> Units:
    """Prototypes at the centres of k-means, in coordinates of equal noise in all directions.

    Their scale is the median squared distance from a row to its centre: rare states do not widen it.
    """
    centres, near = k_means(x, num_units)
    variance = max(float(np.median(((x - centres[near]) ** 2).sum(1))) / x.shape[1], 1e-12)
    size = np.bincount(near, minlength=num_units)
    units = prototypes(centres / np.sqrt(variance), size, x.shape[1], tau)
    return np.column_stack([units[:, :-1] / np.sqrt(variance), units[:, -1]])


def mixture(s: Float[np.ndarray, "n D"], label: Int[np.ndarray, " n"], num_units: int, tau: float) -> Units:
    """Prototypes of a Gaussian mixture with one covariance for all states, by hard EM.

    It starts from labels that need only be mostly right, of features found by the game: within a label, noise
    shows more clearly than in all rows together.
    """
    units = np.zeros((num_units, s.shape[1] + 1))
    for _ in range(EM_STEPS):
        one_hot = (label[:, None] == np.arange(num_units)).astype(float)
        size = one_hot.sum(0)
        centres = one_hot.T @ s / np.maximum(size, 1)[:, None]
        within = s - centres[label]
        white = White(s.mean(0), shrunk_whitening(within.T @ within / len(s), len(s)))
        units = from_white(prototypes(white(centres), size, s.shape[1], tau), white)
        units[size == 0, -1] = -np.inf
        new = labels(units, s)
        if (new == label).all():
            break
        label = new
    units[:, -1] = np.maximum(units[:, -1], LEAST_BIAS)
    return units


def k_means(
    x: Float[np.ndarray, "n D"], count: int
) -> tuple[Float[np.ndarray, "K D"], Int[np.ndarray, " n"]]:
    """Centres and the nearest one of each row. The first is the row nearest to the mean, the next always the
    row farthest from those before; then Lloyd's steps."""
    centres = x[[np.argmin(((x - x.mean(0)) ** 2).sum(1))]]
    for _ in range(count - 1):
        centres = np.vstack([centres, x[np.argmax(distances(x, centres).min(1))]])
    before = None
    for _ in range(LLOYD_STEPS):
        near = distances(x, centres).argmin(1)
        if before is not None and (near == before).all():
            return centres, near
        before = near
        one_hot = near[:, None] == np.arange(count)
        size = one_hot.sum(0)[:, None]
        centres = np.where(size > 0, one_hot.T.astype(x.dtype) @ x / np.maximum(size, 1), centres)
    return centres, distances(x, centres).argmin(1)


def distances(x: Float[np.ndarray, "n D"], centres: Float[np.ndarray, "K D"]) -> Float[np.ndarray, "n K"]:
    """Squared distances from rows to centres."""
    return (x**2).sum(1)[:, None] - 2 * x @ centres.T + (centres**2).sum(1)


class Separation(NamedTuple):
    """How many clusters a partition finds, and the distance between the two closest ones."""

    clusters: int
    distance: float


def separation(x: Float[np.ndarray, "n D"], label: Int[np.ndarray, " n"]) -> Separation:
    """Clusters of a partition: parts that are close to one another count as one.

    Distances are in standard deviations along the line between two parts. The halves of one normal
    distribution are 2.7 apart; parts that single rows can be assigned to are more than 4 apart. The distance
    that two means of so few rows have by chance is subtracted.
    """
    parts = [x[label == k] for k in np.unique(label)]
    cluster, pairs = list(range(len(parts))), []
    for i, j in combinations(range(len(parts)), 2):
        distance = parts_apart(parts[i], parts[j])
        pairs.append((i, j, distance))
        if distance < APART:
            cluster = [cluster[i] if c == cluster[j] else c for c in cluster]
    between = [distance for i, j, distance in pairs if cluster[i] != cluster[j]]
    return Separation(len(set(cluster)), min(between, default=0.0))


def parts_apart(one: Float[np.ndarray, "n D"], two: Float[np.ndarray, "m D"]) -> float:
    """Distance of two sets of rows, in standard deviations along the line between their means."""
    line = one.mean(0) - two.mean(0)
    length = line @ line
    along = np.concatenate([(one - one.mean(0)) @ line, (two - two.mean(0)) @ line])
    variance = along @ along / len(along) / max(length, 1e-12)
    chance = one.shape[1] * (1 / len(one) + 1 / len(two)) * variance
    return float(np.sqrt(max(length - chance, 0) / max(variance, 1e-12)))
