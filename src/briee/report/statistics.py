"""Statistics of episodes to solve over seeds. A run that was not solved is censored: it needs more episodes.

Censored runs stay in every number through the Kaplan-Meier estimate of F(t), the share of runs solved within
t episodes. Intervals are percentiles of a bootstrap that draws seeds anew within each world. A drawn sample
is a vector of weights, how often each run was drawn, so all samples are computed at once.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

SAMPLES = 2_000
LEVEL = 0.95
ROUNDING = 1e-9


class Sample(NamedTuple):
    """The runs of one algorithm in one world, sorted by time; solved ones come first among equals."""

    times: np.ndarray
    """f64[n]: episodes to solve, or all episodes of a run that was not solved."""
    solved: np.ndarray
    """bool[n]"""

    @classmethod
    def of(cls, times: Sequence[float], solved: Sequence[bool]) -> "Sample":
        """The sample of runs in any order."""
        t, s = np.asarray(times, float), np.asarray(solved, bool)
        order = np.lexsort(np.stack([~s, t]))
        return cls(t[order], s[order])

    def draw(self, rng: np.random.Generator, samples: int = SAMPLES) -> np.ndarray:
        """i64[samples, n]: how often each run is drawn."""
        n = len(self.times)
        return rng.multinomial(n, np.full(n, 1 / n), samples)


class Estimate(NamedTuple):
    """A number with its interval; infinite if too few runs were solved to tell."""

    value: float
    low: float
    high: float


Statistic = Callable[[Sample, np.ndarray | None], np.ndarray]
"""A number of a sample, or of each sample that the weights describe."""


def solved_within(sample: Sample, weights: np.ndarray | None = None) -> np.ndarray:
    """f64[..., n]: Kaplan-Meier estimate of the share of runs solved up to each time of the sample."""
    w = np.ones(len(sample.times)) if weights is None else weights.astype(float)
    at_risk = np.cumsum(w[..., ::-1], axis=-1)[..., ::-1]
    fails = np.where(sample.solved, w / np.maximum(at_risk, 1), 0.0)
    return 1 - np.cumprod(1 - fails, axis=-1)


def median(sample: Sample, weights: np.ndarray | None = None) -> np.ndarray:
    """f64[...]: the first time at which half of the runs are solved; infinite if there is none."""
    reached = solved_within(sample, weights) >= 0.5 - ROUNDING
    return np.where(reached.any(-1), sample.times[reached.argmax(-1)], np.inf)


def interquartile_mean(sample: Sample, weights: np.ndarray | None = None) -> np.ndarray:
    """f64[...]: mean time of the middle half of the runs; infinite if under three quarters are solved."""
    share = solved_within(sample, weights)
    inside = np.clip(share, 0.25, 0.75)
    part = np.diff(inside, axis=-1, prepend=0.25)
    return np.where(share[..., -1] >= 0.75 - ROUNDING, 2 * (part * sample.times).sum(-1), np.inf)


def interval(values: np.ndarray, axis: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """The percentiles that leave out the same share at both ends; values may be infinite."""
    ordered = np.sort(values, axis=axis)
    last = values.shape[axis] - 1
    low = round(last * (1 - LEVEL) / 2)
    return ordered.take(low, axis), ordered.take(last - low, axis)


def estimate(statistic: Statistic, sample: Sample, rng: np.random.Generator) -> Estimate:
    """A statistic of a sample with its bootstrap interval."""
    low, high = interval(statistic(sample, sample.draw(rng)))
    return Estimate(float(statistic(sample, None)), float(low), float(high))


def profile(
    samples: Mapping[str, Sample], best: Mapping[str, float], factors: np.ndarray, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """f64[factors] three times: share of runs solved within `factor` times the best median of their world,
    averaged over worlds, and its interval. A world that nobody solves counts as zero."""

    def shares(world: str, weights: np.ndarray | None) -> np.ndarray:
        sample = samples[world]
        share = solved_within(sample, weights)
        share = np.concatenate([np.zeros((*share.shape[:-1], 1)), share], axis=-1)
        limits = factors * (best[world] if np.isfinite(best[world]) else 0)
        return share[..., np.searchsorted(sample.times, limits * (1 + ROUNDING), side="right")]

    drawn = np.mean([shares(world, sample.draw(rng)) for world, sample in samples.items()], axis=0)
    return (np.mean([shares(world, None) for world in samples], axis=0), *interval(drawn))


def improvement(
    ours: Mapping[str, Sample], theirs: Mapping[str, Sample], rng: np.random.Generator
) -> Estimate:
    """The probability that a run of ours needs fewer episodes than one of theirs, averaged over the worlds
    that both have. A comparison that censoring leaves open counts one half."""
    worlds = [world for world in ours if world in theirs]
    values, drawn = [], []
    for world in worlds:
        x, y = ours[world], theirs[world]
        earlier = x.solved[:, None] & (x.times[:, None] < y.times + ~y.solved)
        later = y.solved & (y.times < x.times[:, None] + ~x.solved[:, None])
        wins = 0.5 + 0.5 * earlier - 0.5 * later
        values.append(wins.mean())
        drawn.append(np.einsum("bi,ij,bj->b", x.draw(rng), wins, y.draw(rng)) / wins.size)
    return Estimate(float(np.mean(values)), *map(float, interval(np.mean(drawn, axis=0))))
