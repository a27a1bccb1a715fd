"""Exact maximisation of quadratic functions over boxes: the inner problem of RepLearn with one-hot features.

The maximum is a stationary point in the interior of some face of the box, on which the function is concave.
So all faces are enumerated: the vertices, and the stationary point for each set of free coordinates on which
the matrix is negative definite. (If it is singular, a smaller face attains the maximum too.)
"""

from itertools import combinations

import numpy as np

TOLERANCE = 1e-12


def maximise(
    matrix: np.ndarray, slope: np.ndarray, low: np.ndarray, high: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """argmax [B, n] and max [B] of x'Mx + 2g'x over low <= x <= high, for B problems at once.

    matrix [B, n, n] symmetric; slope, low, high [B, n].
    """
    B, n = slope.shape
    corners = (np.arange(2**n)[:, None] >> np.arange(n)) & 1
    x = low[:, None] + corners * (high - low)[:, None]
    value = quadratic(matrix, slope, x)
    best = value.argmax(axis=1)
    argmax, top = x[np.arange(B), best], value[np.arange(B), best]
    scale = np.maximum(np.abs(matrix).max(axis=(1, 2)), 1e-300)
    concave = np.diagonal(matrix, axis1=1, axis2=2) < -TOLERANCE * scale[:, None]
    open_box = high > low
    for size in range(1, n + 1):
        for free in combinations(range(n), size):
            at = list(free)
            which = np.flatnonzero((concave[:, at] & open_box[:, at]).all(axis=1))
            if which.size == 0:
                continue
            block = matrix[which][:, at][:, :, at]
            definite = np.linalg.eigvalsh(block)[:, -1] < -TOLERANCE * scale[which]
            which, block = which[definite], block[definite]
            if which.size == 0:
                continue
            rest = [i for i in range(n) if i not in free]
            pattern = (np.arange(2 ** len(rest))[:, None] >> np.arange(len(rest))) & 1
            fixed = low[which][:, None, rest] + pattern * (high - low)[which][:, None, rest]
            pull = slope[which][:, at, None] + matrix[which][:, at][:, :, rest] @ fixed.transpose(0, 2, 1)
            inner = np.linalg.solve(block, -pull).transpose(0, 2, 1)
            inside = ((inner >= low[which][:, None, at]) & (inner <= high[which][:, None, at])).all(axis=2)
            x = np.zeros((which.size, len(pattern), n))
            x[..., at], x[..., rest] = inner, fixed
            value = np.where(inside, quadratic(matrix[which], slope[which], x), -np.inf)
            best = value.argmax(axis=1)
            better = value[np.arange(which.size), best] > top[which]
            top[which[better]] = value[np.arange(which.size), best][better]
            argmax[which[better]] = x[np.arange(which.size), best][better]
    return argmax, top


def quadratic(matrix: np.ndarray, slope: np.ndarray, x: np.ndarray) -> np.ndarray:
    """x'Mx + 2g'x [B, V] at the points x [B, V, n]."""
    return np.einsum("bvi,bvi->bv", x @ matrix, x) + 2.0 * np.einsum("bi,bvi->bv", slope, x)
