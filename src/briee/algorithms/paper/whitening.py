"""White coordinates: the scale of the noise around a latent state, estimated without knowing the states.

Symbols: s observations [n, D], x = W (s - mean) white ones. All of this is NumPy on the host: a level has at
most some 1,000 rows.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

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
        if step < soft_steps or CENTRAL * n < ENOUGH * D:
            weight = (FREEDOM + D) / (FREEDOM + distance)
        else:
            weight = (distance <= np.quantile(distance, CENTRAL)).astype(float)
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
