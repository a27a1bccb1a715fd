"""A policy in use: actions for observations that a user holds, and returns of whole episodes."""

from typing import NamedTuple, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from briee.randomness import stream
from briee.rollout import Policy


class Evaluation(NamedTuple):
    """Returns of evaluation episodes."""

    mean: float
    standard_error: float
    returns: Float[np.ndarray, " episodes"]
    optimal_return: float | None
    """The best expected return, where it is known."""

    @classmethod
    def of(cls, returns: Float[np.ndarray, " episodes"], optimal_return: float | None) -> Self:
        """Mean and standard error of these returns."""
        error = float(returns.std() / len(returns) ** 0.5)
        return cls(
            float(returns.mean()), error, returns, None if optimal_return is None else float(optimal_return)
        )

    def numbers(self) -> dict[str, float]:
        """Mean, standard error, and the range of the returns."""
        extremes = {"minimum": float(self.returns.min()), "maximum": float(self.returns.max())}
        return {"mean": self.mean, "standard_error": self.standard_error, **extremes}


def act(
    policy: Policy, observations: Float[np.ndarray, "N ..."], step: int, seed: int
) -> Int[np.ndarray, " N"]:
    """The policy's actions at one step; ties are broken by the seed, so equal observations act alike."""
    key = stream(jax.random.key(seed), "predict", step)
    return np.asarray(_act(policy, jnp.int32(step), padded(observations), key))[: len(observations)]


def checked_step(step: int, horizon: int) -> int:
    """`step`, where episodes have it; else `ValueError`."""
    if not 0 <= step < horizon:
        raise ValueError(f"step must be in 0..{horizon - 1}, for episodes have {horizon} steps, got {step}")
    return step


def padded(rows: np.ndarray) -> np.ndarray:
    """Rows repeated up to a power of two, at least 8, so that few sizes are ever compiled."""
    size = max(8, 1 << (len(rows) - 1).bit_length())
    return rows[np.minimum(np.arange(size), len(rows) - 1)]


@eqx.filter_jit
def _act(policy, step, observations, key):
    # One row at a time: a product of matrices may round otherwise than one of a matrix and a vector.
    return jax.lax.map(lambda observation: policy(step, observation, key), observations)
