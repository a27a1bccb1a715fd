"""The context of a row of a level, and how well labels predict it: the score that judges every candidate.

Row i has the previous cell p_i = (state c_i, action) of the level before, its own action a_i and the outcome
y_i: the next state and the bin of the reward. Soft labels q[i, k] are counted without the row itself, so that
no row predicts its own context. Two predictions are compared. The *free* one does not know the actions:

    free_k(i) = [N-(c_i, k) + pi_k] / [n-(c_i) + 1] / pi_k  *  r_k(y_i) / Z_k(a_i)
    r_k(y)    = [C-(k, y) + b_y] / [M-(k) + 1] / b_y,   Z_k(a) = sum_y d_y(a) r_k(y)

so that labels and actions each change the odds of an outcome, but not together. The other one knows which
action was taken in which state, and falls back on the free one where it has few counts:

    ctx_k(i) = [N-(p_i, k) + pi_k f_k] / [n-(p_i) + 1] / pi_k
               * [C-(k, a_i, y_i) + d_i g_k] / [M-(k, a_i) + 1] / d_i

pi are the frequencies of the labels, b_y and d_y(a) those of an outcome among all rows and among those with
action a (d_i that of row i, left out); f_k and g_k are the two factors of free_k. All are likelihood ratios:
a label that tells nothing has 1. With phi[i, k] the label probabilities of a row that a classifier found
without it,

    score = sum_i log sum_k phi_k ctx_k(i)  -  sum_i log sum_k phi_k free_k(i)

What actions do not change is not a state: a slow process that ignores them predicts itself from level to
level, and scores nothing.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

PRIOR, PRIOR_OUTCOME = 1.0, 0.5  # rows that the prior of a ratio, and of an outcome, counts as
LEAST_SHARE = 1e-3  # of a label, so that ratios stay finite
LEAST_LIKELIHOOD = 1e-9


class Groups(NamedTuple):
    """A partition of the rows: the group of each row, and the same as indicators."""

    of_row: Int[np.ndarray, " n"]
    member: Float[np.ndarray, "n groups"]

    def others(self, values: Float[np.ndarray, "n J K"]) -> Float[np.ndarray, "n J K"]:
        """Sums of the values over the other rows of each row's group."""
        sums = self.member.T @ values.reshape(len(values), -1)
        return sums.reshape(-1, *values.shape[1:])[self.of_row] - values


class Contexts:
    """The contexts of n rows; labels are batches [n, J, K] of J alternatives."""

    def __init__(
        self,
        previous: Int[np.ndarray, " n"] | None,
        action: Int[np.ndarray, " n"],
        outcome: Int[np.ndarray, " n"],
        num_actions: int,
        level: Int[np.ndarray, " n"] | None = None,
    ):
        """Rows of several levels have previous states, actions and outcomes of their own at each `level`."""
        level = np.zeros_like(action) if level is None else level
        self.back = None if previous is None else groups(previous)
        self.back_free = None if previous is None else groups(previous // num_actions)
        self.use = np.ones(len(action), np.float32)
        """1 for rows that are counted; the contexts of the others are predicted without them."""
        self.forward = self.forward_free = None
        if (outcome != outcome[0]).any():
            pair = action.astype(np.int64) * (int(outcome.max()) + 1) + outcome
            known = groups(pair), groups(action)
            free = groups(outcome), groups(level)
            of_level = free[1].member.T @ free[0].member > 0  # which outcomes there are
            outcomes = of_level.sum(1)[free[1].of_row]
            self.forward = *known, _left_out_frequency(*known, outcomes)
            self.forward_free = *free, _left_out_frequency(*free, outcomes)

    @property
    def informative(self) -> bool:
        """Whether any context could tell labels apart."""
        return self.forward is not None or (self.back is not None and self.back.member.shape[1] > 1)

    def events(self, least: int = 2, most: float = 0.6) -> list[Float[np.ndarray, " n"]]:
        """Rows that share a previous cell, or an action and its outcome: what a new label may explain."""
        found = []
        if self.back is not None:
            size = self.back.member.sum(0)
            found += list(self.back.member.T[(size >= least) & (size <= most * len(self.use))])
        if self.forward is not None:
            pair, action, _ = self.forward
            size, total = pair.member.sum(0), np.zeros(pair.member.shape[1])
            total[pair.of_row] = action.member.sum(0)[action.of_row]
            found += list(pair.member.T[(size >= least) & (size < total)])
        return found

    def ratios(self, q: Float[np.ndarray, "n J K"], pi: Float[np.ndarray, "1 J K"]) -> np.ndarray:
        """ctx f32[n, J, K]."""
        return self.both(q, pi)[0]

    def both(
        self, q: Float[np.ndarray, "n J K"], pi: Float[np.ndarray, "1 J K"]
    ) -> tuple[np.ndarray, np.ndarray]:
        """ctx and free, f32[n, J, K]."""
        use = self.use[:, None, None]
        counted, known, free = q * use, np.ones_like(q), np.ones_like(q)
        if self.back is not None and self.back_free is not None:
            less = _ratio(self.back_free.others(counted), self.back_free.others(use), pi, 1.0)
            free *= less
            known *= _ratio(self.back.others(counted), self.back.others(use), pi, less)
        if self.forward is not None and self.forward_free is not None:
            (pair, action, given), (outcome, everything, base) = self.forward, self.forward_free
            less = _ratio(outcome.others(counted), everything.others(counted), base[:, None, None], 1.0)
            less = less / self.normaliser(counted)
            free *= less
            known *= _ratio(pair.others(counted), action.others(counted), given[:, None, None], less)
        return known, free

    def normaliser(self, counted: Float[np.ndarray, "n J K"]) -> Float[np.ndarray, "n J K"]:
        """Z_k(a_i) of every row."""
        assert self.forward is not None
        assert self.forward_free is not None
        (_, action, _), (outcome, level, _) = self.forward, self.forward_free
        n, J, K = counted.shape
        times = (outcome.member.T @ counted.reshape(n, -1)).reshape(-1, J, K)
        here = (outcome.member.T @ level.member > 0).astype(np.float32)  # the level of each outcome
        together = np.tensordot(here @ here.T, times, 1)
        b = (outcome.member.sum(0) / (here @ level.member.sum(0)))[:, None, None]
        ratio = _ratio(times, together, b, 1.0)
        given = action.member.T @ outcome.member
        given = given / given.sum(1, keepdims=True)
        return np.tensordot(given, ratio, 1)[action.of_row]

    def scores(self, phi: Float[np.ndarray, "n J K"]) -> Float[np.ndarray, "n J"]:
        """The score of each row, if the labels that are counted are those of the classifier, left out."""
        known, free = self.both(phi, shares(phi))
        return _log(np.einsum("njk,njk->nj", phi, known)) - _log(np.einsum("njk,njk->nj", phi, free))


def _ratio(times, total, base, prior):
    """The frequency times / total over `base`, as if `PRIOR` further rows had shown the ratio `prior`."""
    return (times + PRIOR * base * prior) / (total + PRIOR) / base


def shares(phi: Float[np.ndarray, "n J K"]) -> Float[np.ndarray, "1 J K"]:
    """The frequency pi of every label."""
    return np.maximum(phi.mean(0, keepdims=True), LEAST_SHARE)


def groups(values: Int[np.ndarray, " n"]) -> Groups:
    """Rows of equal values; groups without rows are left out."""
    of_row = np.unique(values, return_inverse=True)[1]
    return Groups(of_row, np.eye(int(of_row.max()) + 1, dtype=np.float32)[of_row])


def _log(x: np.ndarray) -> np.ndarray:
    return np.log(np.maximum(x, LEAST_LIKELIHOOD))


def _left_out_frequency(
    pair: Groups, given: Groups, outcomes: Int[np.ndarray, " n"]
) -> Float[np.ndarray, " n"]:
    """How often an outcome follows among the other rows of the same group, smoothed; of so many outcomes."""
    times, total = pair.member.sum(0)[pair.of_row] - 1, given.member.sum(0)[given.of_row] - 1
    return ((times + PRIOR_OUTCOME) / (total + PRIOR_OUTCOME * outcomes)).astype(np.float32)
