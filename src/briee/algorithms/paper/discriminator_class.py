"""The class F of the held-out game: functions f(s') that a level's transitions might make predictable.

The paper's networks are trained by gradient ascent on all rows, and win on noise where rows are few. Here F
is a dozen networks of one or two sigmoid layers at positions given by the data, so that line 5 of Algorithm 2
is a maximum over finitely many f. Symbols: x, y white coordinates of s and s', F [n, m] values f(s').
"""

import numpy as np
from jaxtyping import Float, Int

from briee.algorithms.paper.starts import k_means

PRINCIPAL, PREDICTABLE = 3, 3  # directions of y in which f may look
CLUSTERS = 5  # clusters of y that f may point at
APART = (
    4.0  # clusters of y nearer to the largest than this are parts of it: halves of one cloud are 2.7 apart
)
TOGETHER = 3  # largest number of clusters that one f points at: which one comes next may be a coin
LARGEST = 12  # number of f
LEAST_RANGE = 1e-2  # smaller ones are constant
CLIP, FAR = 4.0, 6.0  # outliers of y and x count at most so many standard deviations in the regression
ABOVE_NOISE = 1.5  # ratio of a direction's eigenvalue to the largest of noise, which is as often negative
LOGIT_SCALE = 2.0  # temperature of the sigmoids


def candidates(
    x: Float[np.ndarray, "n D"],
    action: Int[np.ndarray, " n"],
    y: Float[np.ndarray, "n D"],
    psi_after: Float[np.ndarray, "n K"] | None,
    fold: Int[np.ndarray, " n"],
    num_actions: int,
) -> Float[np.ndarray, "n m"]:
    """Centred values of at most a dozen f, each with a range of 1; `psi_after` are features of s'."""
    y = y - y.mean(0)
    ahead = predictable_directions(x, action, y, fold, num_actions)
    near = y @ orthonormal_basis(np.column_stack([top_directions(y.T @ y, PRINCIPAL), ahead]))
    columns = [*cluster_units(near), *(0.5 * np.tanh(y @ ahead / 2)).T]
    if psi_after is not None:
        columns += next_units(psi_after, near)
    F = np.stack(columns, 1)[:, :LARGEST] if columns else np.zeros((len(y), 0))
    extent = F.max(0, initial=0) - F.min(0, initial=0)
    F = F[:, extent > LEAST_RANGE]
    return (F - F.mean(0)) / extent[extent > LEAST_RANGE] if F.shape[1] else F


def cluster_units(y: Float[np.ndarray, "n d"]) -> list[Float[np.ndarray, " n"]]:
    """Sigmoids that tell a cluster, or one of several, from the largest one; farthest first."""
    centres, near = k_means(y, CLUSTERS)
    largest = np.bincount(near, minlength=CLUSTERS).argmax()
    line = centres - centres[largest]
    length = (line**2).sum(1)
    order = [k for k in np.argsort(-length) if length[k] > APART**2]
    logits = ((y - centres[largest]) @ line.T - length / 2) / LOGIT_SCALE
    odds = np.exp(np.clip(logits, -30, 30))[:, order]
    single = [odds[:, k] / (1 + odds[:, k]) for k in range(len(order))]
    several = [odds[:, :q].sum(1) for q in range(2, min(len(order), TOGETHER) + 1)]
    return single + [total / (1 + total) for total in several]


def next_units(psi: Float[np.ndarray, "n K"], y: Float[np.ndarray, "n d"]) -> list[Float[np.ndarray, " n"]]:
    """The features of the next level, those that look at a place apart from the most frequent one."""
    size = psi.sum(0)
    means = psi.T @ y / (size[:, None] + 1e-3)
    apart = ((means - means[size.argmax()]) ** 2).sum(1) > APART**2
    return list(psi.T[apart & (size > 0.5)])


def predictable_directions(
    x: Float[np.ndarray, "n D"],
    action: Int[np.ndarray, " n"],
    y: Float[np.ndarray, "n D"],
    fold: Int[np.ndarray, " n"],
    num_actions: int,
) -> Float[np.ndarray, "D k"]:
    """Directions of y that a linear regression on x, one per action, predicts on held-out rows.

    They are eigenvectors of the symmetrised covariance of prediction and y. For noise its eigenvalues are as
    often negative as positive, so a direction counts if its eigenvalue clearly exceeds the most negative one.
    """
    D = y.shape[1]
    y = np.clip(y, -CLIP, CLIP)
    x = np.clip(x, -FAR, FAR)
    covariance = np.zeros((D, D))
    for a in range(num_actions):
        for k in range(fold.max() + 1):
            train, test = (action == a) & (fold != k), (action == a) & (fold == k)
            if train.sum() < 2 or not test.any():
                continue
            mean_x, mean_y = x[train].mean(0), y[train].mean(0)
            known = x[train] - mean_x
            gram = known @ known.T + x.shape[1] * np.eye(train.sum())
            weights = np.linalg.solve(gram, y[train] - mean_y)
            predicted = mean_y + (x[test] - mean_x) @ known.T @ weights
            covariance += predicted.T @ y[test]
    values, vectors = np.linalg.eigh(covariance + covariance.T)
    clear = values[::-1] > ABOVE_NOISE * max(-values[0], 1e-9)
    return vectors[:, ::-1][:, : min(PREDICTABLE, D)][:, clear[: min(PREDICTABLE, D)]]


def top_directions(matrix: Float[np.ndarray, "D D"], count: int) -> Float[np.ndarray, "D k"]:
    """The eigenvectors of the largest eigenvalues of a symmetric matrix."""
    return np.linalg.eigh(matrix)[1][:, ::-1][:, :count]


def orthonormal_basis(columns: Float[np.ndarray, "D k"]) -> Float[np.ndarray, "D r"]:
    """An orthonormal basis of the span of the columns, in their order; dependent ones are left out."""
    size = np.linalg.norm(columns, axis=0)
    basis = np.zeros((len(columns), 0))
    for column in (columns / np.maximum(size, 1e-12)).T:
        for _ in range(2):
            column = column - basis @ (basis.T @ column)
        rest = np.linalg.norm(column)
        if rest > 1e-4 and basis.shape[1] < len(columns):
            basis = np.column_stack([basis, column / rest])
    return basis
