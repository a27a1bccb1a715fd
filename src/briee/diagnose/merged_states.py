"""`briee doctor DIR`: whether the decoders of a run merge latent states with different futures.

Given latent state and action, the next observation is independent of the current one. If, on held-out
episodes, the current observation still predicts part of the next one given decoded state and action, the
decoder has merged states: it has too few, or has not learned to separate them. Episodes follow the run's
exploring policy up to the examined level and take a random action there.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from briee.diagnose.environment_verdict import Finding, examined_levels, main_directions, ridge_predictions
from briee.protocols import Algorithm, S

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
        where = f"where the run has been, nothing speaks against num_latents={num_latents}"
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
