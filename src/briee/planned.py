"""A policy for a reward that came after exploration, as a user holds it."""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float, Int

from briee.acting import Evaluation, act, checked_step
from briee.adapt import Adapted, encode
from briee.lsvi import Reward
from briee.randomness import stream
from briee.reward_free import Kind
from briee.rewards import as_reward, check_reward
from briee.rollout import Policy, Sampler


class NotRewardFreeError(ValueError):
    """Planning for a reward was asked of an agent that explored for another one."""


class Planned(NamedTuple):
    """A policy, the reward it maximises, the value it expects of an episode, and the time planning took."""

    policy: Policy
    reward: Reward
    value: float
    seconds: float


def plan(algorithm: Any, state: Any, function: Callable[..., Any], kind: Kind = "greedy") -> Planned:
    """Plan for a reward as `briee.rewards` describes it, without a new episode; one sentence in a
    `ValueError` says what is wrong with it."""
    if not hasattr(algorithm, "plan_for"):
        advice = 'train with --reward-free, or BRIEE(env, algorithm="reward-free")'
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
    return Planned(policy, reward, value, seconds)


def returns(sampler: Sampler, planned: Planned, key, episodes: int) -> Float[np.ndarray, " E"]:
    """Sums of the planned reward in new episodes of its policy."""
    trajectories = sampler.rollout(planned.policy, key, episodes)
    earned = _earned(planned.reward, trajectories.observation[:, :-1], trajectories.action)
    return np.asarray(earned, np.float64).sum(axis=1)


@eqx.filter_jit
def _earned(
    reward: Reward, observation: Float[Array, "E H ..."], action: Int[Array, "E H"]
) -> Float[Array, "E H"]:
    levels = jax.numpy.arange(action.shape[1])
    one = lambda level, s, a: reward(level, s)[a]  # noqa: E731
    return jax.vmap(jax.vmap(one), (None, 0, 0))(levels, observation, action)


class Plan:
    """What `agent.plan(reward)` returns: a policy for that reward, and what it expects of it."""

    def __init__(self, planned: Planned, adapted: Adapted, seed: int):
        self._planned, self._adapted, self._seed = planned, adapted, seed

    @property
    def value(self) -> float:
        """The expected sum of rewards in an episode, as planned; no episode was played for it."""
        return self._planned.value

    @property
    def seconds(self) -> float:
        """Time that planning took."""
        return self._planned.seconds

    @property
    def policy(self) -> Policy:
        """The policy itself, (level, observation, key) -> action."""
        return self._planned.policy

    def predict(self, observation: Any, step: int) -> Any:
        """The action at `step` for one observation, or int[N] for a batch [N, ...]."""
        checked_step(step, self._adapted.sampler.horizon)
        rows, single = encode(self._adapted, observation)
        actions = act(self.policy, rows, step, self._seed)
        return int(actions[0]) if single else actions

    def evaluate(self, episodes: int = 100, seed: int = 0) -> Evaluation:
        """Play episodes and add up this plan's reward; nothing is learned from them."""
        if episodes < 1:
            raise ValueError(f"episodes must be >= 1, got {episodes}")
        key = stream(jax.random.key(seed), "plan command")
        return Evaluation.of(returns(self._adapted.sampler, self._planned, key, episodes), None)

    def __repr__(self) -> str:
        return f"<plan with expected return {self.value:.4g}>"
