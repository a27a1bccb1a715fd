"""The temperature of the decoders, measured: how soft the latent states are.

Clusters say to which latent state an observation belongs. In a block MDP nothing else matters. In a low-rank
MDP the features themselves are soft, P(s' | s, a) = sum_k psi_k(s) mu_k(s' | a), and what they vary by within
a cluster decides, too. Both are softmax((A s + b) / tau), so one number tells them apart: tau, which Table 2
gives, is chosen here by the least-squares objective of Algorithm 2 on held-out rows of all levels together.
Bonus and plan use features of this temperature, the game itself is played with tau.
"""

import numpy as np
from jaxtyping import Bool, Int

from briee.algorithms.paper.buffers import Transitions
from briee.algorithms.paper.config import HeldOutConfig
from briee.algorithms.paper.decoders import Decoder
from briee.algorithms.paper.held_out_game import Level, residuals, row_errors
from briee.algorithms.paper.level_features import units_of
from briee.algorithms.paper.starts import labels, psi
from briee.numerics.linalg import at_level

LEAST_CHANCE = 0.01  # variance of f that chance is taken to explain at least
OFTEN = 30  # rows of a cell (label, action) from which the mean of f is known well enough
CLEAR = 3.0  # standard errors: several temperatures are tried many times in a run
GROWTH = 1.25  # the temperature is measured again when the number of updates has grown by this factor


def is_due(updates: int) -> bool:
    """Whether the temperature is measured in this update, counted from 1."""
    steps = [int(np.log(max(n, 1)) / np.log(GROWTH)) for n in (updates - 1, updates)]
    return steps[1] > steps[0]


def softness(decoders: Decoder, rows: Transitions, config: HeldOutConfig, num_actions: int) -> float:
    """The factor of the temperature with which the features predict those of the next observation best; the
    first one, unless another is clearly better. `rows` are [H, n] on the host.

    Rows of cells (label, action) with few rows do not count: whatever the truth is, softer features predict
    them better, because they borrow the values of the other labels.
    """
    first, *others = config.temperatures
    gains, squares = np.zeros(len(others)), np.zeros(len(others))
    with_rows = np.flatnonzero(np.any(rows.valid, axis=1)[:-1])
    for h in map(int, with_rows):
        units, level = units_of(decoders, h), level_of(at_level(rows, h), decoders, h, config, num_actions)
        often = often_tried(labels(units, level.x), level.action)
        if not often.any():
            continue
        errors = row_errors(units / first, level)
        for i, factor in enumerate(others):
            gain = (errors - row_errors(units / factor, level))[often]
            gains[i] += gain.sum()
            squares[i] += gain @ gain
    clear = gains > np.maximum(config.gain, CLEAR * np.sqrt(squares))
    return others[int(np.argmax(gains))] if clear.any() else first


def level_of(data: Transitions, decoders: Decoder, h: int, config: HeldOutConfig, num_actions: int) -> Level:
    """All rows of level h, whose discriminators are the features of the next level, in white coordinates:
    which of two good states comes next is a coin, whether a good one does hardly varies, and tells more."""
    rows = (np.asarray(leaf)[data.valid] for leaf in (data.observation, data.action, data.next_observation))
    s, action, after = (leaf.reshape(len(leaf), -1) for leaf in rows)
    F, fold = psi(units_of(decoders, h + 1), after), np.arange(len(s)) % config.folds
    level = Level(s, action[:, 0], F - F.mean(0), fold, num_actions, config.folds)
    left = residuals(psi(units_of(decoders, h) / config.temperatures[0], s), level, level.F)
    chance = left.T @ left / len(s) + LEAST_CHANCE * np.eye(left.shape[1])
    return level._replace(F=np.linalg.solve(np.linalg.cholesky(chance), level.F.T).T)


def often_tried(label: Int[np.ndarray, " n"], action: Int[np.ndarray, " n"]) -> Bool[np.ndarray, " n"]:
    """The rows whose cell (label, action) has at least OFTEN of them."""
    cell = label * (action.max(initial=0) + 1) + action
    return np.bincount(cell)[cell] >= OFTEN
