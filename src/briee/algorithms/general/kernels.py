"""Kernel ridge regression from observations to labels, with every row left out in closed form.

Kernels are functions of |z|^2, |z'|^2 and z.z' alone, so that one compiled policy serves all of them. The
coordinates z are standardised, and the scale is their number unless said otherwise:

    rbf        exp(-|z - z'|^2 / scale)
    quadratic  (1 + z.z' / scale)^2
    products   exp(-|z z^T - z' z'^T|^2 / (2 scale^2)), the rbf kernel of all products of two coordinates

With K the double-centred kernel of n rows and S = K (K + lam I)^-1, the prediction for q is m + S (q - m), m
the mean of q: constants are not penalised. Without row i it would be (f_i - d_i q_i) / (1 - d_i), where f is
the prediction and d = diag S + 1/n.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int
from scipy.linalg import cho_factor, cho_solve

RBF, QUADRATIC, PRODUCTS = 0, 1, 2
MOST_OWN = 0.98  # bound on d: a row that determines its own prediction is nearly left out
RIDGE = 1e-4  # of a part of the rows that determines its own predictions
SMALL = 1e-3  # penalty on the weights of a reduced regression: its policy computes with 32 bits
LEAST = 0.01  # of a predicted probability


def kernel(kind: int, scale: float, x: Float[np.ndarray, "n E"], y: Float[np.ndarray, "m E"]) -> np.ndarray:
    """The kernel f32[n, m] of all pairs."""
    return of_products(np, kind, scale, (x**2).sum(1)[:, None], (y**2).sum(1), x @ y.T)


def of_products(xp, kind, scale, xx, yy, xy):
    """A kernel as a function of |z|^2, |z'|^2 and z.z'; `xp` is NumPy or JAX's NumPy."""
    if kind == RBF:
        return xp.exp(-xp.maximum(xx - 2 * xy + yy, 0.0) / scale)
    if kind == QUADRATIC:
        return (1 + xy / scale) ** 2
    return xp.exp(-xp.maximum(xx**2 - 2 * xy**2 + yy**2, 0.0) / (2 * scale**2))


class Smoother(NamedTuple):
    """Kernel ridge regression on n rows."""

    S: Float[np.ndarray, "n n"]
    d: Float[np.ndarray, " n"]
    inverse: Float[np.ndarray, "n n"]
    column_mean: Float[np.ndarray, " n"]
    mean: float

    def left_out(self, q: Float[np.ndarray, "n J K"]) -> Float[np.ndarray, "n J K"]:
        """Probabilities of labels for each row, from the labels q of all others."""
        m, d = q.mean(0, keepdims=True), self.d[:, None, None]
        f = m + (self.S @ (q - m).reshape(len(q), -1)).reshape(q.shape)
        return probabilities((f - d * q) / (1 - d))

    def left_out_together(
        self, q: Float[np.ndarray, "n K"], part: Int[np.ndarray, " n"]
    ) -> Float[np.ndarray, "n K"]:
        """Probabilities of labels for the rows of each part, from the labels of all other parts.

        With T = S + 1/n the errors of the rows G of a part become (I - T_GG)^-1 (q - f)_G.
        """
        n, m = len(q), q.mean(0)
        f = m + self.S @ (q - m)
        for value in np.unique(part):
            G = np.flatnonzero(part == value)
            own = np.eye(len(G)) * (1 + RIDGE) - self.S[np.ix_(G, G)] - 1 / n
            f[G] = q[G] - np.linalg.solve(own, q[G] - f[G])
        return probabilities(f)

    def weights(self, q: Float[np.ndarray, "n K"]) -> tuple[np.ndarray, np.ndarray]:
        """offset [K] and weight [n, K], so that the prediction at z is offset + k(z, rows) @ weight."""
        m = q.mean(0)
        W = self.inverse @ (q - m)
        return m + (self.mean - self.column_mean) @ W, W - W.mean(0)


class Reduced(NamedTuple):
    """Kernel ridge regression on n rows with S support rows (Nystroem).

    Offset o and weights w minimise |q - o - K w|^2 + lam tr(w^T own w) + SMALL |w|^2, where K is the kernel
    of rows and support, `own` that of the support. The matrix of this problem is ill-conditioned: its sums
    over rows need 64 bits.
    """

    centred: Float[np.ndarray, "n S"]
    column_mean: Float[np.ndarray, " S"]
    factor: tuple[np.ndarray, bool]

    def weights(self, q: Float[np.ndarray, "n K"]) -> tuple[np.ndarray, np.ndarray]:
        """offset [K] and weight [S, K], so that the prediction at z is offset + k(z, support) @ weight."""
        m = q.mean(0)
        w = cho_solve(self.factor, self.centred.T @ (q - m))
        return m - self.column_mean @ w, w


def reduced(K: Float[np.ndarray, "n S"], own: Float[np.ndarray, "S S"], lam: float) -> Reduced:
    """The regression with the kernel K of rows and support, `own` of the support, and the penalty lam."""
    K, own = K.astype(np.float64), own.astype(np.float64)
    mean = K.mean(0)
    centred = K - mean
    return Reduced(
        centred, mean, cho_factor(centred.T @ centred + lam * own + SMALL * np.eye(len(own)), lower=True)
    )


def smoother(K: Float[np.ndarray, "n n"], lam: float) -> Smoother:
    """The regression with the kernel K of the rows and the ridge penalty lam."""
    n, column_mean, mean = len(K), K.mean(0), K.mean()
    K = K - column_mean - column_mean[:, None] + mean
    inverse = np.linalg.inv(K + lam * np.eye(n, dtype=K.dtype))
    S = K @ inverse
    d = np.minimum(np.diag(S) + 1 / n, MOST_OWN)
    return Smoother(S.astype(np.float32), d.astype(np.float32), inverse, column_mean, float(mean))


def probabilities(f: Float[np.ndarray, "*rows K"]) -> Float[np.ndarray, "*rows K"]:
    """Predictions as probabilities."""
    f = np.maximum(f, LEAST)
    return f / f.sum(-1, keepdims=True)
