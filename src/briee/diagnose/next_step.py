"""What to try after a run that was not solved: the cause, with its measurement, and options, best first."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from briee.diagnose.environment_verdict import affordable, examined_levels
from briee.diagnose.merged_states import NOTICEABLE, USED, left_open
from briee.diagnose.state_count import count_states
from briee.protocols import Algorithm, S
from briee.rollout.samplers import ScanSampler

FEWEST_EPISODES = 100
"""After fewer training episodes nothing is measured: the budget is the cause."""
PLAYED = 200
"""Evaluation episodes that a run with random returns should have."""


class Step(NamedTuple):
    """Something to try."""

    cause: str
    """What was measured, in one sentence."""
    options: tuple[str, ...] = ()
    """Options that a new run gets."""
    more: bool = False
    """Whether the run should rather go on with twice the episodes."""
    budget: bool = False
    """Whether nothing was found but that the episodes were not enough."""


def next_steps(algorithm: Algorithm[S], state: S, target: float | None, seed: int = 0) -> list[Step]:
    """What to try next, best first; at least one step."""
    episodes = int(state.episodes)
    longer = Step(f"{episodes:,} episodes were not enough", more=True, budget=True)
    if episodes < FEWEST_EPISODES:
        return [longer]
    sampler, key = algorithm.sampler, jax.random.key(seed)
    policy = algorithm.policy(state, "optimistic")
    played = 1000 if isinstance(sampler, ScanSampler) else min(affordable(sampler, policy, key), 400)
    levels = np.array(examined_levels(sampler.horizon))
    deviation = jnp.asarray(levels[np.arange(played) % len(levels)], jnp.int32)
    data = sampler.rollout(policy, key, played, deviation, whole=True)
    observation, action = np.asarray(data.observation), np.asarray(data.action)
    steps = []
    if algorithm.capabilities.decodes:
        steps += _latent_states(algorithm, state, observation, action, levels)
    else:
        own = f"{episodes:,} episodes were not enough, and {algorithm.name} has no decoders to examine"
        steps += [Step(own, ("--algo", "efficient"))]
    steps += _random_returns(algorithm, state, target, key)
    if not np.asarray(data.reward).any():
        longer = Step(f"no reward in {played:,} exploring episodes", more=True)
    return [*steps, longer]


def _latent_states(
    algorithm: Algorithm[S], state: S, observation: np.ndarray, action: np.ndarray, levels: np.ndarray
) -> list[Step]:
    """Steps for decoders that merge states with different futures."""
    worst, K, most = (0.0, 0, 0), 1, 0
    for level in levels.tolist():
        soft = np.asarray(algorithm.decode(state, level, jnp.asarray(observation[:, level])))
        label, K = soft.argmax(axis=1), soft.shape[1]
        cell = label * algorithm.sampler.num_actions + action[:, level]
        left = left_open(observation[:, level], observation[:, level + 1], cell)
        used = int((np.bincount(label, minlength=K) >= USED * len(label)).sum())
        most = max(
            most, count_states(observation[:, level], action[:, level], observation[:, level + 1]) or 0
        )
        worst = max(worst, (left, level, used))
    left, level, used = worst
    if left <= NOTICEABLE and most <= K:
        return []
    what = f"at level {level} the observation predicts {left:.0%} of what decoded state and action leave open"
    if most > K:
        cause = f"num_latents={K} is too small: observations form {most} clusters at a level"
        return [Step(f"{cause}, and {what}", ("--num-latents", str(most + 1)))]
    if used < K:
        return [Step(f"the decoders merge latent states, using {used} of num_latents={K}: {what}", more=True)]
    return [Step(f"num_latents={K} looks too small: {what}", ("--num-latents", str(2 * K)))]


def _random_returns(algorithm: Algorithm[S], state: S, target: float | None, key: Any) -> list[Step]:
    """A step if the returns of the greedy policy vary between episodes and come near the target."""
    if target is None or algorithm.config.evaluation.tolerance is not None:
        return []
    played = algorithm.sampler.rollout(algorithm.policy(state, "greedy"), key, 64)
    returns = np.asarray(played.reward, np.float64).sum(axis=1)
    mean, spread = float(returns.mean()), float(returns.std())
    if spread < 1e-6 or mean + spread < target:
        return []
    cause = (
        f"returns of one policy vary, {mean:.3g} with a standard deviation of {spread:.2g}, and an episode"
    )
    cause += " that falls short breaks the row: if even an optimal policy sometimes fails, allow a tolerance"
    tolerance = 0.05 * abs(target) + 2 * spread / np.sqrt(
        PLAYED
    )  # what the mean of a good policy keeps within
    options = ("--evaluation.tolerance", f"{tolerance:.2g}", "--evaluation.episodes", str(PLAYED))
    return [Step(cause, options)]
