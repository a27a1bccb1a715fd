"""Verdict on a run: latent states that its decoders merge, and what to try if it was not solved.

Given latent state and action, the next observation is independent of the current one. If, on held-out
episodes, the current observation still predicts part of the next one given decoded state and action, the
decoder has merged states: it has too few, or has not learned to separate them. Episodes follow the run's
exploring policy up to the examined level and take a random action there. What to try is the cause, with its
measurement, and options, best first.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from briee.diagnose.environment_verdict import (
    Finding,
    affordable,
    examined_levels,
    main_directions,
    ridge_predictions,
)
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
    """The measurement, in one sentence."""
    options: tuple[str, ...] = ()
    """Options that a new run gets."""
    more: bool = False
    """Whether the run should rather go on with twice the episodes."""
    budget: bool = False
    """Whether nothing was found but that the episodes were not enough."""


def next_steps(algorithm: Algorithm[S], state: S, target: float | None, seed: int = 0) -> list[Step]:
    """Steps to try next, best first; at least one."""
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
        steps += [Step(own, ("--algo", "general"))]
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
    error = 2 * spread / np.sqrt(PLAYED)  # the mean of a good policy keeps within it
    tolerance = f"{0.05 * abs(target) + error:.2g}"
    return [Step(cause, ("--evaluation.tolerance", tolerance, "--evaluation.episodes", str(PLAYED)))]


NOTICEABLE = 0.05
"""Smallest share of explained variance that is reported."""
FEWEST = 60
"""Fewest rows of a cell (decoded state and action) that are examined."""
USED = 0.005
"""A decoded state counts as used from this share of a level's visits."""


@dataclass(frozen=True)
class DecoderFacts:
    """Measurements of the decoder of one level on episodes of the exploring policy."""

    level: int
    used: int
    """Number of decoded states in use."""
    left: float
    """Share of the variance of s' that s predicts given decoded state and action, in the worst cell."""


def examine_decoders(algorithm: Algorithm[S], state: S, episodes: int = 4000, seed: int = 0) -> list[Finding]:
    """Findings about the decoders in `state`, at up to six levels; `ValueError` if there are none."""
    if not algorithm.capabilities.decodes:
        raise ValueError(f"{algorithm.name} has no decoders to examine")
    levels = examined_levels(algorithm.sampler.horizon)
    facts = [decoder_facts(algorithm, state, h, episodes, seed) for h in levels]
    one = jnp.zeros((1, *algorithm.sampler.observation_shape))
    return said_of(facts, algorithm.decode(state, 0, one).shape[1])


def decoder_facts(algorithm: Algorithm[S], state: S, level: int, episodes: int, seed: int) -> DecoderFacts:
    """Roll in to one level, act at random there, and measure what its decoder misses."""
    sampler = algorithm.sampler
    key = jax.random.fold_in(jax.random.key(seed), level)
    everywhere = jnp.full(episodes, level, jnp.int32)
    data = sampler.rollout(algorithm.policy(state, "optimistic"), key, episodes, everywhere)
    observation, action = np.asarray(data.observation)[:, level : level + 2], np.asarray(data.action)
    soft = np.asarray(algorithm.decode(state, level, data.observation[:, level]))
    label, A = soft.argmax(axis=1), sampler.num_actions
    left = left_open(observation[:, 0], observation[:, 1], label * A + action[:, level])
    shares = np.bincount(label, minlength=soft.shape[1]) / episodes
    return DecoderFacts(level, int((shares >= USED).sum()), left)


def left_open(now: np.ndarray, later: np.ndarray, cell: np.ndarray) -> float:
    """The largest share, over cells, of the variance of `later` [E, ...] within a cell that `now` [E, ...]
    predicts on held-out rows."""
    before, after = (main_directions(rows.reshape(len(rows), -1)) for rows in (now, later))
    if before is None or after is None:
        return 0.0
    phi, largest = np.hstack([before, np.ones((len(before), 1))]), 0.0
    for found in np.unique(cell):
        rows = np.flatnonzero(cell == found)
        if len(rows) < FEWEST:
            continue
        one, two = rows[::2], rows[1::2]
        centred = after - after[one].mean(axis=0)
        error = centred[two] - ridge_predictions(phi[one], centred[one], phi[two])
        total = float((centred[two] ** 2).sum())
        largest = max(largest, 1 - float((error**2).sum()) / total if total > 1e-9 else 0.0)
    return largest


def said_of(facts: list[DecoderFacts], num_latents: int) -> list[Finding]:
    """The facts as sentences."""
    merging = [fact for fact in facts if fact.left > NOTICEABLE]
    if not merging:
        told = "decoded state and action leave nothing open that the observation could tell"
        used = max((fact.used for fact in facts), default=num_latents)
        where = f"where the run has been, nothing speaks against num_latents={num_latents}"
        where += f", of which a level uses at most {used}" if used < num_latents else ""
        return [Finding("ok", f"{told}: {where}")]
    full = [fact for fact in merging if fact.used >= num_latents]
    worst = max(full or merging, key=lambda fact: fact.left)
    what = (
        f"at level {worst.level} the observation predicts {worst.left:.0%} of what one decoded state and "
        "action leave open, so that decoder merges latent states with different futures"
    )
    if full:
        return [Finding("warning", f"num_latents={num_latents} is too small, or the run too short: {what}")]
    spare = f"it uses {worst.used} of num_latents={num_latents}, so it needs more data or training"
    return [Finding("note", f"{what}; {spare}")]
