"""Actions of a policy for observations that a user holds; plans for a reward that came after exploration."""

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import equinox as eqx
import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from briee.algorithms.paper.reward_functions import as_reward, check_reward
from briee.configuration import whole_number
from briee.envs.adapters.encoding import ObservationEncoder
from briee.numerics.keys import stream
from briee.protocols import Algorithm, Policy, PolicyKind, Reward, S
from briee.rollout.samplers import Adapted, Evaluation


def predict(
    policy: Policy, adapted: Adapted, observation: Any, step: int, seed: int, draw: int | None = None
) -> Any:
    """The action at `step` for one observation, or int[N] for a batch [N, ...].

    The seed breaks ties, so equal observations give equal actions, unless the number of a `draw` is given.
    """
    rows, single = encode(adapted, observation, step)
    key = stream(jax.random.key(seed), "predict", step)
    key = key if draw is None else jax.random.fold_in(key, draw)
    actions = np.asarray(_act(policy, jnp.int32(step), padded(rows), key))[: len(rows)]
    return int(actions[0]) if single else actions


def padded(rows: np.ndarray) -> np.ndarray:
    """Rows repeated up to a power of two, at least 8, so that few sizes are ever compiled."""
    size = max(8, 1 << (len(rows) - 1).bit_length())
    return rows[np.minimum(np.arange(size), len(rows) - 1)]


@eqx.filter_jit
def _act(policy, step, observations, key):
    # One row at a time, because a matrix product may round differently from a matrix-vector product.
    return jax.lax.map(lambda observation: policy(step, observation, key), observations)


def encode(adapted: Adapted, observation: Any, step: int = 0) -> tuple[np.ndarray, bool]:
    """Observations as f32[N, *shape], and whether only one was given; `ValueError` if they do not fit,
    or if episodes have no such step.

    Accepts observations of the environment, one or a batch, and arrays that are encoded already.
    """
    shape, horizon = adapted.sampler.observation_shape, adapted.sampler.horizon
    step = whole_number("step", step, least=-sys.maxsize)
    if not 0 <= step < horizon:
        raise ValueError(f"step must be in 0..{horizon - 1}, for episodes have {horizon} steps, got {step}")
    if adapted.encoder is not None and not _is_encoded(adapted.encoder, observation, shape):
        batch = _batch_size(adapted.encoder, observation)
        return adapted.encoder(observation, batch).reshape(-1, *shape), batch is None
    array = _as_floats(observation)
    if array.shape != shape and array.shape[1:] != shape:
        raise ValueError(f"observation has shape {array.shape}, expected {shape} or (N, {str(shape)[1:]}")
    array, single = (array[None], True) if array.shape == shape else (array, False)
    if not np.isfinite(array).all():
        where = np.flatnonzero(~np.isfinite(array.reshape(len(array), -1)).all(axis=1)).tolist()
        kind = "NaN" if np.isnan(array).any() else "infinite"
        raise ValueError(f"observation has {kind} entries" + ("" if single else f" in rows {where}"))
    return array, single


def _as_floats(observation: Any) -> np.ndarray:
    try:
        return np.asarray(observation, np.float32)
    except (TypeError, ValueError):
        kind = type(observation).__name__
        raise ValueError(f"observation must be an array of numbers, got {kind}") from None


def _is_encoded(encoder: ObservationEncoder, observation: Any, shape: tuple[int, ...]) -> bool:
    array = np.asarray(observation) if not isinstance(observation, dict | tuple) else None
    if array is None or array.dtype.kind != "f" or shape not in (array.shape, array.shape[1:]):
        return False
    own = encoder.source
    return not (isinstance(own, gym.spaces.Box) and own.shape == shape and own.dtype != np.uint8)


def _batch_size(encoder: ObservationEncoder, observation: Any) -> int | None:
    """The number of observations in a batch; None if it is a single observation."""
    path, part = encoder.parts[0]
    value = observation
    for step in path:
        try:
            value = value[step]
        except (KeyError, IndexError, TypeError):
            raise ValueError(f"observation lacks {step!r} of the space {encoder.source}") from None
    array = np.asarray(value)
    return len(array) if array.ndim == len(part.shape or ()) + 1 else None


class NotRewardFreeError(ValueError):
    """Planning for a reward was asked of an agent that explored for another one."""


def plan(
    algorithm: Algorithm[S], state: S, function: Callable[..., Any], kind: PolicyKind = "greedy"
) -> tuple[float, float, Policy, Reward]:
    """Plan for a reward as `briee.algorithms.paper.reward_functions` describes it, without a new episode.

    Returns the first fields of a `RewardPlan`; a `ValueError` says what is wrong with the reward.
    """
    if not callable(function):
        raise ValueError(f"a reward must be a function, got {type(function).__name__}")
    if not algorithm.capabilities.plans_any_reward:
        advice = "train with --reward-free, or Agent(env, reward_free=True)"
        raise NotRewardFreeError(f"{algorithm.name} explores for the environment's reward alone: {advice}")
    sampler = algorithm.sampler
    reward = as_reward(function, sampler.num_actions, algorithm.reward_decoder(state))
    check_reward(reward, sampler.observation_shape, sampler.num_actions)
    began = time.perf_counter()
    policy = jax.block_until_ready(algorithm.plan_for(state, reward, kind))
    seconds = time.perf_counter() - began
    value = float(algorithm.start_value(state, policy))
    if not np.isfinite(value):
        raise ValueError("the reward is not a finite number for every recorded observation")
    return value, seconds, policy, reward


@dataclass(frozen=True)
class RewardPlan:
    """A policy for a reward, as `agent.plan(reward)` returns it, and the value it expects."""

    value: float
    """The expected sum of rewards in an episode, as planned; no episode was played for it."""
    seconds: float
    """Time that planning took."""
    policy: Policy = field(repr=False)
    """The policy itself, (level, observation, key) -> action."""
    reward: Reward = field(repr=False)
    adapted: Adapted = field(repr=False)
    seed: int = field(repr=False)

    def predict(self, observation: Any, step: int) -> Any:
        """The action at `step` for one observation, or int[N] for a batch [N, ...]."""
        return predict(self.policy, self.adapted, observation, step, self.seed)

    def evaluate(self, episodes: int = 100, seed: int = 0) -> Evaluation:
        """Play episodes and add up this plan's reward; nothing is learned from them."""
        episodes = whole_number("episodes", episodes)
        key = stream(jax.random.key(seed), "plan command")
        played = self.adapted.sampler.rollout(self.policy, key, episodes)
        earned = _earned(self.reward, played.observation[:, :-1], played.action)
        return Evaluation.of(np.asarray(earned, np.float64).sum(axis=1), None)


@eqx.filter_jit
def _earned(
    reward: Reward, observation: Float[Array, "E H ..."], action: Int[Array, "E H"]
) -> Float[Array, "E H"]:
    one = lambda level, s, a: reward(level, s)[a]  # noqa: E731
    return jax.vmap(jax.vmap(one), (None, 0, 0))(jnp.arange(action.shape[1]), observation, action)
