"""Counts of cells (state, action), and plans on them: towards the likeliest discovery, or the highest reward.

Symbols: N[h, c, a, y] counts how often action a in state c of level h led to y: the next state, or at the
last level the bin of the reward. L labels per level, the first one for observations unlike all known states.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

UNTRIED = -1e6  # Q-value the greedy policy assigns to an untried action


class Cells(NamedTuple):
    """Counts and estimates of the cells of every level."""

    counts: Float[np.ndarray, "H L A L"]
    rewards: Float[np.ndarray, "H L A"]
    """Sum of the rewards."""


class Plan(NamedTuple):
    """Action values of every cell: the probability of a discovery, and the expected reward."""

    discovery: Float[np.ndarray, "H L A"]
    reward: Float[np.ndarray, "H L A"]
    chance: float
    """Estimated probability that an exploring episode makes a discovery."""


def count_cells(
    label: Int[np.ndarray, "E levels"],
    action: Int[np.ndarray, "E H"],
    reward: Float[np.ndarray, "E H"],
    num_labels: int,
    num_actions: int,
) -> Cells:
    """Counts and sums of rewards over E episodes; labels of H + 1 levels."""
    (_, H), L, A = action.shape, num_labels, num_actions
    cell = (np.arange(H) * L + label[:, :-1]) * A + action
    counts = np.bincount((cell * L + label[:, 1:]).ravel(), minlength=H * L * A * L)
    rewards = np.bincount(cell.ravel(), reward.ravel(), minlength=H * L * A)
    return Cells(counts.reshape(H, L, A, L).astype(np.float64), rewards.reshape(H, L, A))


def discovery_curve(
    counts: Float[np.ndarray, "*cells L"], max_tries: int, prior_cells: float
) -> Float[np.ndarray, " {max_tries}+1"]:
    """u_n, the probability that a cell tried n times shows a new successor at the next try; u_0 = 1.

    Let N tries of a cell come in random order, N_y of them leading to y. Try n + 1 leads to a successor not
    seen in the n before it with probability sum_y C(N - N_y, n) / C(N, n) * N_y / (N - n) (rarefaction). The
    mean over all cells with more than n tries and `prior_cells` imaginary ones with 1 / (n + 1) is made
    non-increasing in n.
    """
    counts = counts.reshape(-1, counts.shape[-1])
    counts = counts[counts.sum(-1) > 1]
    cell, successor = np.nonzero(counts)
    times, total = counts[cell, successor], counts.sum(-1)
    log_factorial = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, total.max(initial=0) + 2)))])

    def falling(m, n):
        return log_factorial[m.astype(int)] - log_factorial[np.maximum(m - n, 0).astype(int)]

    curve = np.ones(max_tries + 1)
    for n in range(1, max_tries + 1):
        usable = total[cell] > n
        N, other = total[cell][usable], (total[cell] - times)[usable]
        unseen = np.where(other >= n, np.exp(falling(other, n) - falling(N, n)), 0.0)
        new = np.sum(unseen * times[usable] / (N - n))
        curve[n] = (new + prior_cells / (n + 1)) / ((total > n).sum() + prior_cells)
    return np.minimum.accumulate(curve)


def plan_cells(
    cells: Cells,
    curve: Float[np.ndarray, " n"],
    blind: Float[np.ndarray, " H"] | None = None,
    blind_tries: float = 1.0,
) -> Plan:
    """Backward recursions on the estimated model:

    U_h(c, a) = max(u_{n(c,a)}, sum_y P(y|c,a) max_a' U_{h+1}(y, a'))      discovery, no reward
    Q_h(c, a) = r(c, a) + sum_y P(y|c,a) max_a' Q_{h+1}(y, a')             over cells that were tried

    Where the states of the next level are not told apart yet, a discovery cannot be seen before enough rows
    are there: u stays at blind[h] exp(-n / blind_tries) or more.
    """
    counts, rewards = cells
    H, L, A, _ = counts.shape
    tries = counts.sum(-1)
    P, r = counts / np.maximum(tries, 1)[..., None], rewards / np.maximum(tries, 1)
    u = curve[np.minimum(tries, len(curve) - 1).astype(int)]
    if blind is not None:
        u = np.maximum(u, blind[:, None, None] * np.exp(-tries / blind_tries))
    U, Q = np.zeros((H, L, A)), np.zeros((H, L, A))
    explore, exploit = np.zeros(L), np.zeros(L)
    for h in reversed(range(H)):
        U[h] = np.maximum(u[h], P[h] @ explore)
        Q[h] = np.where(tries[h] > 0, r[h] + P[h] @ exploit, UNTRIED)
        best = Q[h].max(-1)
        explore, exploit = U[h].max(-1), np.where(best > UNTRIED, best, 0.0)
    first = tries[0].sum(-1)
    return Plan(U, Q, float(first @ U[0].max(-1) / max(first.sum(), 1.0)))
