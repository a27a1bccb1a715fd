"""`briee doctor DIR`: whether the decoders of a run merge latent states that have different futures.

Given its latent state and the action, the next observation does not depend on anything else in the current
one. So where a decoded state and the action leave something open that the observation itself predicts, on
held-out episodes, the decoder has merged states: there are more of them than it can tell apart, or it has not
learned to yet. Episodes follow the run's own exploring policy up to the level in question, where the action
is drawn at random.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from briee.doctor import Finding, main_directions, ridge_predictions

NOTICEABLE = 0.05
"""Share of the variance that counts as predicted."""
FEWEST = 60
"""Rows of a cell, a decoded state with an action, that can tell anything."""
USED = 0.005
"""A decoded state with less than this share of a level's visits is not used."""


@dataclass(frozen=True)
class DecoderFacts:
    """What episodes of the exploring policy tell about the decoder of one level."""

    level: int
    used: int
    """Decoded states that occur."""
    left: float
    """Share of the variance of s' in held-out episodes that s predicts, after one decoded state and action,
    that where it is largest."""


def examine_decoders(algorithm: Any, state: Any, episodes: int = 4000, seed: int = 0) -> list[Finding]:
    """Findings about the decoders in `state`, at up to six levels; `ValueError` where there are none."""
    H = algorithm.sampler.horizon
    levels = np.unique(np.linspace(0, H - 1, min(H, 6)).astype(int))
    facts = [decoder_facts(algorithm, state, int(h), episodes, seed) for h in levels]
    return said_of(facts, _num_latents(algorithm, state))


def decoder_facts(algorithm: Any, state: Any, level: int, episodes: int, seed: int) -> DecoderFacts:
    """Roll in to one level, act at random there, and see what its decoder misses."""
    sampler = algorithm.sampler
    key = jax.random.fold_in(jax.random.key(seed), level)
    everywhere = jnp.full(episodes, level, jnp.int32)
    data = sampler.rollout(algorithm.policy(state, "optimistic"), key, episodes, everywhere)
    observation, action = np.asarray(data.observation)[:, level : level + 2], np.asarray(data.action)
    soft = np.asarray(_decode(algorithm, state, level, data.observation[:, level]))
    label, A = soft.argmax(axis=1), sampler.num_actions
    left = left_open(observation[:, 0], observation[:, 1], label * A + action[:, level])
    shares = np.bincount(label, minlength=soft.shape[1]) / episodes
    return DecoderFacts(level, int((shares >= USED).sum()), left)


def left_open(now: np.ndarray, later: np.ndarray, cell: np.ndarray) -> float:
    """The largest share, over cells, of the variance of `later` [E, ...] within a cell that `now` [E, ...]
    predicts on held-out rows; 0 where it predicts nothing."""
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
    """The facts in plain words."""
    merging = [fact for fact in facts if fact.left > NOTICEABLE]
    if not merging:
        told = "decoded state and action leave nothing open that the observation could tell"
        return [Finding("ok", f"{told}: num_latents={num_latents} is enough where the run has been")]
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


def _decode(algorithm: Any, state: Any, level: int, observations: Any) -> Any:
    try:
        return algorithm.decode(state, level, observations)
    except NotImplementedError:
        raise ValueError(f"{algorithm.name} has no decoders to examine") from None


def _num_latents(algorithm: Any, state: Any) -> int:
    one = jnp.zeros((1, *algorithm.sampler.observation_shape))
    return int(_decode(algorithm, state, 0, one).shape[1])
