"""Plans on the sparse table of a world: towards discoveries, and for reward within H steps.

    U(s, a)   = max(u_n(s,a), gamma sum_y P(y|s,a) max_a' U(y, a'))        discovery, at any step
    Q_h(s, a) = r_h(s, a) + sum_y P(y|s,a) max_a' Q_{h+1}(y, a') + width   reward, over cells that were tried

u_n is the probability that the n-th further try of a cell shows something new. The discount gamma is close to
1: of two discoveries that are equally likely, the nearer one. `width` is a confidence width of the estimate,
0 for the greedy plan.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int
from scipy.sparse import csr_matrix

from briee.algorithms.general.world import Model

NEAR = 0.999  # discount of discoveries
SOONER = 1e-7  # of two equal returns, the one that comes sooner
EXPLAINED = 0.9  # share of the variance of a cell's rewards that the step must explain to be used
FEWEST = 3  # tries of a cell before that
TIE = 1e-9


class Tables(NamedTuple):
    """A model as arrays."""

    chances: csr_matrix
    cell: Int[np.ndarray, " C"]
    tries: Float[np.ndarray, " C"]
    reward: Float[np.ndarray, " C"]
    """Mean reward."""
    slope: Float[np.ndarray, " C"]
    """Change of the reward from one step to the next."""
    middle: Float[np.ndarray, " C"]
    """Mean step of a cell's tries."""
    spread: Float[np.ndarray, " C"]
    """Variance of the reward."""


def tables(model: Model) -> Tables:
    """Transition probabilities and rewards of all cells."""
    tries = np.array(model.tries, float)
    mean = np.array(model.sums, float).reshape(-1, 5) / np.maximum(tries, 1)[:, None]
    reward, square, level, level_square, product = mean.T
    spread = np.maximum(square - reward**2, 0.0)
    width = np.maximum(level_square - level**2, 0.0)
    both = product - reward * level
    explains = both**2 > EXPLAINED * spread * width
    slope = np.where(explains & (tries >= FEWEST) & (spread > 1e-12), both / np.maximum(width, 1e-12), 0.0)
    left = np.where(slope != 0, np.maximum(spread - slope * both, 0.0), spread)
    return Tables(model.chances(), np.array(model.cell, int), tries, reward, slope, level, left)


def plan_discovery(
    model: Model, horizon: int, prior: float, near: float = NEAR
) -> tuple[Float[np.ndarray, "S A"], float]:
    """U of every cell, and the chance that an episode makes a discovery."""
    S, A = len(model.keys), model.num_actions
    cell, chances, curve = np.array(model.cell, int), model.chances(), model.discovery(prior)
    own = curve[np.minimum(np.array(model.tries, int), len(curve) - 1)]
    U = np.where(np.array(model.depth, int)[:, None] < horizon, np.ones((S, A)), 0.0)
    flat = U.reshape(-1)
    flat[cell] = own
    V = U.max(1)
    for _ in range(horizon):
        flat[cell] = np.maximum(own, near * (chances @ V))
        new = U.max(1)
        moved, V = np.abs(new - V).max(initial=0.0), new
        if moved < 1e-7:
            break
    starts = np.array(model.starts, float)
    return U, float(starts @ V / max(starts.sum(), 1.0)) if S else 1.0


class RewardPlan(NamedTuple):
    """The best action of every state at every step, and the value of an episode."""

    action: Int[np.ndarray, "H S"]
    value: float


def plan_reward(model: Model, horizon: int, optimism: float = 0.0) -> RewardPlan:
    """The finite-horizon plan; with `optimism`, estimates are raised by that many confidence widths."""
    S, A = len(model.keys), model.num_actions
    table, H = tables(model), horizon
    tried = np.zeros(S * A, bool)
    tried[table.cell] = True
    somewhere = tried.reshape(S, A).any(1)
    weight = np.zeros(S * A)
    weight[table.cell] = np.minimum(table.tries, 1000) * TIE * 1e-3
    worst = min(float(table.reward.min(initial=0.0)), 0.0)
    extent = max(float(np.abs(table.reward).max(initial=0.0)), 1e-12)
    rare = optimism * extent * random_share(model) / np.maximum(table.tries, 1)
    known = optimism / np.sqrt(np.maximum(table.tries, 1))
    steps = bool(table.slope.any())
    action = np.zeros((H, S), int)
    V, Q = np.zeros(S), np.full(S * A, -np.inf)
    for h in reversed(range(H)):
        later = table.chances @ V
        own = table.reward + table.slope * (h - table.middle) * steps + later
        if optimism:
            unsure = np.maximum(table.chances @ V**2 - later**2, 0.0) + table.spread
            own = own + known * np.sqrt(unsure) + rare
        Q[table.cell] = own
        values = Q.reshape(S, A)
        best = values.max(1)
        reach = np.where(somewhere, best - TIE * np.maximum(np.abs(best), extent), 0.0)
        good = values >= reach[:, None]
        action[h] = np.where(good, weight.reshape(S, A) + TIE, 0.0).argmax(1)
        V = np.where(somewhere, best, worst * (H - h)) * (1 - SOONER)
    starts = np.array(model.starts, float)
    return RewardPlan(action, float(starts @ V / max(starts.sum(), 1.0)) if S else 0.0)


def random_share(model: Model) -> float:
    """The estimated share of cells, tried more than once, that have more than one successor."""
    tries, source = np.array(model.tries, int), np.array(model.source, int)
    often = tries > 1
    several = np.bincount(source, minlength=len(tries)) > 1
    return float((several & often).sum() + 0.5) / (float(often.sum()) + 1.0)
