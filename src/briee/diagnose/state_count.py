"""How many states a sample of observations shows: observations that repeat, and clusters with gaps between.

A state that emits one vector plus noise is a cluster. Linked to the nearest neighbour step by step (single
linkage, the edges of a minimum spanning tree), observations of one state are joined at small distances and
states at larger ones. The count is read off at the gap between the two; without a gap there is no count.
"""

import numpy as np

MOST_ROWS = 1500
"""Rows that are compared with one another."""
DIRECTIONS = 64
"""Principal directions that are kept."""
GAP = 1.25
"""The first distance between clusters is at least this many times the last one within them."""
MEMBERS = 3
"""A cluster has at least this many rows; smaller ones are rare states, if nearly all rows are in clusters."""
IN_CLUSTERS = 0.9
"""Share of the rows that must lie in clusters."""


OPEN = 0.3
"""Clusters are no states if observations within one predict more than this share of the next observation."""


def count_states(now: np.ndarray, action: np.ndarray, later: np.ndarray) -> int | None:
    """The number of states behind observations `now` [n, ...] of one level; None if they form no clusters,
    or clusters within which the observation still tells what follows, as in continuous dynamics."""
    before, after = (x.reshape(len(x), -1)[:MOST_ROWS].astype(np.float64) for x in (now, later))
    label = _labels(before)
    if label is None:
        return None
    cell = label * (int(action.max()) + 1) + action[:MOST_ROWS]
    return int(label.max()) + 1 if _predicted_within(before, after, cell) <= OPEN else None


def _labels(rows: np.ndarray) -> np.ndarray | None:
    """State of each row, int[n]; None if there are no clusters."""
    values, which, counts = np.unique(rows, axis=0, return_inverse=True, return_counts=True)
    once = counts < MEMBERS
    label = np.arange(len(values))
    if 2 * once.sum() > len(values):  # most observations are new
        found = _clusters(values[once]) if once.sum() >= MEMBERS * 4 else None
        if found is None:
            return None
        label[once] = len(values) + found
    return np.unique(label, return_inverse=True)[1][which.ravel()]


def _predicted_within(now: np.ndarray, later: np.ndarray, cell: np.ndarray) -> float:
    """Share of the variance of `later` within cells that a linear function of `now` predicts, held out."""
    order = np.argsort(cell, kind="stable")
    starts = np.flatnonzero(np.r_[True, np.diff(cell[order]) > 0])
    size = np.diff(np.r_[starts, len(cell)])
    x, y = (
        rows[order] - np.repeat(np.add.reduceat(rows[order], starts) / size[:, None], size, axis=0)
        for rows in (now, later)
    )
    one, two = np.arange(len(cell)) % 2 == 0, np.arange(len(cell)) % 2 == 1
    total = float((y[two] ** 2).sum())
    if total <= 1e-9 * max(float((later**2).sum()), 1e-12):
        return 0.0
    lam = 1e-3 * max(float((x[one] ** 2).mean()), 1e-12) * len(x)
    weights = np.linalg.solve(x[one].T @ x[one] + lam * np.eye(x.shape[1]), x[one].T @ y[one])
    return 1 - float(((y - x @ weights)[two] ** 2).sum()) / total


def _clusters(rows: np.ndarray) -> np.ndarray | None:
    """The cluster of each of different rows [n, D]; None if there is no gap."""
    centred = rows - rows.mean(axis=0)
    if centred.shape[1] > DIRECTIONS:
        centred = centred @ np.linalg.svd(centred[:512], full_matrices=False)[2][:DIRECTIONS].T
    square = (centred**2).sum(axis=1)
    distance = np.sqrt(np.maximum(square[:, None] + square - 2 * centred @ centred.T, 0.0))
    order, parent, height = _spanning_tree(distance)
    ordered = np.sort(height)[1:]  # without the root
    first = len(ordered) - len(rows) // MEMBERS  # more clusters than this would be smaller than MEMBERS
    ratio = ordered[first + 1 :] / np.maximum(ordered[first:-1], 1e-12)
    if not len(ratio) or ratio.max() < GAP:
        return None
    widest = ordered[first + int(ratio.argmax())]
    label = np.arange(len(rows))
    for row in order[1:]:
        if height[row] <= widest:
            label[row] = label[parent[row]]
    sizes = np.unique(label, return_counts=True)[1]
    large = sizes[sizes >= MEMBERS]
    return label if len(large) > 1 and large.sum() >= IN_CLUSTERS * len(rows) else None


def _spanning_tree(distance: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The rows in the order in which they join the tree, and for each its parent and the distance to it."""
    n = len(distance)
    order, parent, height = np.zeros(n, int), np.zeros(n, int), np.full(n, np.inf)
    outside, height[0] = np.ones(n, bool), 0.0
    for i in range(n):
        new = int(np.where(outside, height, np.inf).argmin())
        order[i], outside[new] = new, False
        nearer = outside & (distance[new] < height)
        parent[nearer], height[nearer] = new, distance[new][nearer]
    return order, parent, height
