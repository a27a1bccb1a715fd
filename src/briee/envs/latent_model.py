"""The finite MDP of the latent states, and dynamic programming on it (NumPy, float64)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

POSSIBLE = 1e-6
"""Smaller probabilities are rounding errors of float32 tables."""


@dataclass(frozen=True)
class LatentModel:
    """Z latent states, A actions, H levels.

    initial [Z]: start distribution; transition [H, Z, A, Z]: probabilities; reward [H, Z, A]: expectations.
    """

    initial: np.ndarray
    transition: np.ndarray
    reward: np.ndarray

    @property
    def horizon(self) -> int:
        """Number of levels H."""
        return self.reward.shape[0]

    def q_values(self, features: np.ndarray | None = None) -> np.ndarray:
        """Q*[H, Z, A] of the latent states.

        With `features` f64[Z, N, Z], the agent observes one of N equally likely weight vectors w over latent
        states instead of z, and the latent state is resampled from w before the transition:
        V(z) = mean_n max_a Σ_z' w_n(z') Q(z', a).
        """
        q = np.zeros_like(self.reward)
        value = np.zeros(self.reward.shape[1])
        for h in reversed(range(self.horizon)):
            q[h] = self.reward[h] + self.transition[h] @ value
            value = state_value(q[h], features)
        return q

    def optimal_return(self, features: np.ndarray | None = None) -> float:
        """Value of the optimal policy from the start distribution."""
        return float(self.initial @ state_value(self.q_values(features)[0], features))

    def sure_return(self) -> float:
        """The largest return that some policy reaches in every episode, if rewards are deterministic."""
        value = np.zeros(self.reward.shape[1])
        for transition, reward in zip(self.transition[::-1], self.reward[::-1], strict=True):
            worst = np.where(transition > POSSIBLE, value, np.inf).min(axis=-1)
            value = (reward + worst).max(axis=1)
        return float(value[self.initial > POSSIBLE].min())

    def reachable(self) -> np.ndarray:
        """bool[H + 1, Z]: latent states that some policy reaches with positive probability."""
        reached = [self.initial > 0]
        for step in self.transition:
            reached.append((step[reached[-1]] > 0).any(axis=(0, 1)))
        return np.stack(reached)


def state_value(q: np.ndarray, features: np.ndarray | None) -> np.ndarray:
    """V[Z] from Q[Z, A]: the maximum over actions, averaged over weight vectors (see `q_values`)."""
    if features is None:
        return q.max(axis=1)
    # Equal columns are compared once: a lock has few distinct ones.
    return (features @ np.unique(q, axis=1)).max(axis=2).mean(axis=1)
