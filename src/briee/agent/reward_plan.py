"""A policy for a reward that came after exploration."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from briee.agent.prediction import predict
from briee.algorithms.paper.reward_functions import as_reward, check_reward
from briee.configuration import whole_number
from briee.numerics.keys import stream
from briee.protocols import Algorithm, Policy, PolicyKind, Reward, S
from briee.rollout.samplers import Adapted, Evaluation


class NotRewardFreeError(ValueError):
    """Planning for a reward was asked of an agent that explored for another one."""


def plan(
    algorithm: Algorithm[S], state: S, function: Callable[..., Any], kind: PolicyKind = "greedy"
) -> tuple[float, float, Policy, Reward]:
    """Plan for a reward as `briee.algorithms.paper.reward_functions` describes it, without a new episode.

    Returns the first fields of a `RewardPlan`; a `ValueError` says what is wrong with the reward.
    """
    if not algorithm.capabilities.plans_any_reward:
        advice = 'train with --reward-free, or Agent(env, algo="reward-free")'
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
