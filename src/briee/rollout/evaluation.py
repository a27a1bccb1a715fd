"""Evaluation: the returns of a policy, and how far it gets."""

from typing import NamedTuple, Self

import numpy as np
from jaxtyping import Float, PRNGKeyArray

from briee.protocols import Policy, Sampler
from briee.rollout.trajectories import Trajectories


class Evaluation(NamedTuple):
    """Returns of evaluation episodes."""

    mean: float
    standard_error: float
    returns: Float[np.ndarray, " episodes"]
    optimal_return: float | None
    """The best expected return, if known."""

    @classmethod
    def of(cls, returns: Float[np.ndarray, " episodes"], optimal_return: float | None) -> Self:
        """Mean and standard error of these returns."""
        best = None if optimal_return is None else float(optimal_return)
        return cls(float(returns.mean()), float(returns.std() / len(returns) ** 0.5), returns, best)

    def numbers(self) -> dict[str, float]:
        """Mean, standard error and range of the returns."""
        extremes = {"minimum": float(self.returns.min()), "maximum": float(self.returns.max())}
        return {"mean": self.mean, "standard_error": self.standard_error, **extremes}


def evaluate(sampler: Sampler, policy: Policy, key: PRNGKeyArray, episodes: int) -> Float[np.ndarray, " E"]:
    """The returns of full episodes."""
    return np.asarray(sampler.rollout(policy, key, episodes).reward, np.float64).sum(axis=1)


def deepest_good_level(sampler: Sampler, trajectories: Trajectories) -> float:
    """The deepest level at which an episode could still reach the goal; NaN if latent states are unknown."""
    if sampler.pure is None:
        return float("nan")
    latent = np.asarray(trajectories.latent)
    good = np.asarray(sampler.pure.good(latent)) & (latent >= 0)
    return float(np.flatnonzero(good.any(axis=0)).max(initial=0))
