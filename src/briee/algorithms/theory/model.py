"""The model-based view of the proof sketch: the unnormalised P-hat, and LSVI as value iteration in it.

For one-hot features P-hat(s' | s, a) = N(psi(s), a, s') / (N(psi(s), a) + lam), and LSVI (Algorithm 3) with
reward r + b is value iteration in the model (P-hat, r + b). Counts are [H, S, A, S], decoders [H, S].
"""

import numpy as np

from briee.algorithms.bonus import one_hot_bonus
from briee.algorithms.theory.oracle import aggregate


def learned_model(counts: np.ndarray, decoders: np.ndarray, num_latents: int, lam: float) -> np.ndarray:
    """P-hat [H, S, A, S]; its rows are non-negative and sum to less than one."""
    model = np.zeros(counts.shape)
    for h, labels in enumerate(decoders):
        u = aggregate(counts[h], labels, num_latents)
        model[h] = (u / (u.sum(axis=-1, keepdims=True) + lam))[labels]
    return model


def count_bonus(
    counts: np.ndarray, decoders: np.ndarray, num_latents: int, lam: float, alpha: float, cap: float = 2.0
) -> np.ndarray:
    """b [H, S, A] = min(alpha / sqrt(N(psi(s), a) + lam), cap), with the counts of D_h (Alg. 1, l. 6)."""
    bonus = np.zeros(counts.shape[:3])
    for h, labels in enumerate(decoders):
        n = aggregate(counts[h], labels, num_latents).sum(axis=-1)
        bonus[h] = one_hot_bonus(n, lam, alpha, cap)[labels]
    return bonus
