"""What surrounds a row of a level, and how well labels predict it: the score that judges every candidate.

Row i has the previous cell p_i = (state, action) of the level before, its own action a_i and the outcome y_i:
the next state and the bin of the reward. Soft labels q[i, k] are counted without the row itself, so that no
row predicts its own context:

    back_k(i)    = [N-(p_i, k) + pi_k] / [n-(p_i) + 1] / pi_k                which label a cell leads to
    forward_k(i) = [C-(k, a_i, y_i) + b_i / 2] / [M-(k, a_i) + 1/2] / b_i    what follows an action
    ctx_k(i)     = back_k(i) forward_k(i)

with pi the frequencies of the labels and b_i the left-out frequency of y_i given a_i. Both are likelihood
ratios with a prior: a label that tells nothing has 1. With phi[i, k] the label probabilities of a row that a
classifier found without it,

    score = sum_i log sum_k phi_k ctx_k(i)  -  sum_i log sum_k phi_k free_k(i)

where free_k is ctx_k without the actions: p_i is replaced by the previous state and (k, a_i) by k. What
actions do not change is not a state: a slow process that ignores them predicts itself from level to level,
and scores nothing.
"""

import numpy as np
from jaxtyping import Float, Int

PRIOR_BACK, PRIOR_FORWARD, PRIOR_OUTCOME = 1.0, 0.5, 0.5
LEAST_SHARE = 1e-3  # of a label, so that ratios stay finite
LEAST_LIKELIHOOD = 1e-9


class Contexts:
    """The contexts of n rows; labels are batches [n, J, K] of J alternatives."""

    def __init__(
        self,
        previous: Int[np.ndarray, " n"] | None,
        action: Int[np.ndarray, " n"],
        outcome: Int[np.ndarray, " n"],
        num_actions: int,
    ):
        n = len(action)
        self.back = None if previous is None else _one_hot(previous)
        self.back_free = None if previous is None else _one_hot(previous // num_actions)
        self.forward = None
        if (outcome != outcome[0]).any():
            pair = action.astype(np.int64) * (int(outcome.max()) + 1) + outcome
            self.forward = _one_hot(pair), _one_hot(action)
            self.forward_free = _one_hot(outcome), np.ones((n, 1), np.float32)
            self.base = _left_out_frequency(*self.forward, len(np.unique(outcome)))
            self.base_free = _left_out_frequency(*self.forward_free, len(np.unique(outcome)))
        self.use = np.ones(n, np.float32)
        """1 for rows that are counted; the contexts of the others are predicted without them."""

    @property
    def informative(self) -> bool:
        """Whether any context could tell labels apart."""
        return self.forward is not None or (self.back is not None and self.back.shape[1] > 1)

    def ratios(self, q: Float[np.ndarray, "n J K"], pi: Float[np.ndarray, "1 J K"]) -> np.ndarray:
        """ctx f32[n, J, K]."""
        return self._ratios(q, pi, self.back, self.forward, getattr(self, "base", None))

    def free_ratios(self, q: Float[np.ndarray, "n J K"], pi: Float[np.ndarray, "1 J K"]) -> np.ndarray:
        """The same without actions."""
        forward = None if self.forward is None else self.forward_free
        return self._ratios(q, pi, self.back_free, forward, getattr(self, "base_free", None))

    def _ratios(self, q, pi, back, forward, base) -> np.ndarray:
        counted = q * self.use[:, None, None]
        ratio = np.ones_like(q)
        if back is not None:
            seen = (back.T @ self.use)[:, None, None]
            others = _spread(back, seen) - self.use[:, None, None]
            own = _spread(back, _sums(back, counted)) - counted
            ratio *= (own + PRIOR_BACK * pi) / (others + PRIOR_BACK) / pi
        if forward is not None:
            pair, action = forward
            b = base[:, None, None]
            own = _spread(pair, _sums(pair, counted)) - counted
            others = _spread(action, _sums(action, counted)) - counted
            ratio *= (own + PRIOR_FORWARD * b) / (others + PRIOR_FORWARD) / b
        return ratio

    def scores(self, phi: Float[np.ndarray, "n J K"]) -> Float[np.ndarray, "n J"]:
        """The score of each row, if the labels that are counted are those of the classifier, left out."""
        pi = shares(phi)
        known, free = self.ratios(phi, pi), self.free_ratios(phi, pi)
        return _log(np.einsum("njk,njk->nj", phi, known)) - _log(np.einsum("njk,njk->nj", phi, free))


def shares(phi: Float[np.ndarray, "n J K"]) -> Float[np.ndarray, "1 J K"]:
    """The frequency pi of every label."""
    return np.maximum(phi.mean(0, keepdims=True), LEAST_SHARE)


def _log(x: np.ndarray) -> np.ndarray:
    return np.log(np.maximum(x, LEAST_LIKELIHOOD))


def _one_hot(values: Int[np.ndarray, " n"]) -> Float[np.ndarray, "n groups"]:
    """Group membership of rows, groups without rows left out."""
    group = np.unique(values, return_inverse=True)[1]
    return np.eye(int(group.max()) + 1, dtype=np.float32)[group]


def _sums(group: Float[np.ndarray, "n g"], values: Float[np.ndarray, "n J K"]) -> np.ndarray:
    """Sums over the rows of each group, f32[g, J, K]."""
    n = len(values)
    return (group.T @ values.reshape(n, -1)).reshape(-1, *values.shape[1:])


def _spread(group: Float[np.ndarray, "n g"], values: np.ndarray) -> np.ndarray:
    """The value of the group of each row."""
    return values[group.argmax(1)]


def _left_out_frequency(
    pair: Float[np.ndarray, "n g"], given: Float[np.ndarray, "n a"], outcomes: int
) -> Float[np.ndarray, " n"]:
    """How often an outcome follows among the other rows of the same group, smoothed."""
    times, total = pair.sum(0)[pair.argmax(1)] - 1, given.sum(0)[given.argmax(1)] - 1
    return (times + PRIOR_OUTCOME) / (total + PRIOR_OUTCOME * max(2, outcomes))
