"""The doctor's verdict on an environment: check within a minute whether it looks like a block MDP.

On uniformly random episodes, it measures at each level how much better the next observation is predicted from
observation and action than from the action alone, and how many distinct predictions there are. In a block MDP
there is one per latent state with a different future. The findings hold only where random play gets.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

import jax
import numpy as np

from briee.diagnose.state_count import count_states
from briee.protocols import Policy, Sampler
from briee.rollout.policies import UniformPolicy
from briee.rollout.samplers import HOST_ENVIRONMENTS, Adapted, ScanSampler, adapt

SECONDS, MEMORY = 15.0, 5e8
"""Time and bytes for the random episodes of an environment that is stepped on the host."""
Mark = Literal["ok", "note", "warning"]
DISCRIMINATORS = 8
"""Number of random functions of the next observation that are predicted."""
COMPONENTS = 16
"""Number of principal directions that are kept; the others count as noise."""


@dataclass(frozen=True)
class Finding:
    """One sentence of the doctor."""

    mark: Mark
    text: str


@dataclass(frozen=True)
class LevelFacts:
    """Measurements of one level on random episodes."""

    level: int
    explained: float
    """Share of the variance of s' in held-out episodes that (s, a) predicts beyond a alone."""
    rank: int
    """Directions of the prediction above the level of shuffled data; about one less than latent states."""
    distinct: int | None
    """Number of different observations; None if nearly every one is new."""
    states: int | None = None
    """Number of observations that repeat and of clusters, which look like states; None without clusters."""


def examine(
    env: Any,
    horizon: int | None = None,
    episodes: int | None = None,
    seed: int = 0,
    num_latents: int | None = None,
    tell: Callable[[Finding], None] = lambda finding: None,
) -> list[Finding]:
    """Findings about an environment, by name or as an object; `ValueError` if it cannot be used at all.

    With `num_latents`, also whether this many latent states are too few for what random play shows. `tell`
    gets each finding as soon as it is known.
    """
    adapted = adapt(env, horizon)
    sampler = adapted.sampler
    findings = Told(tell)
    findings += [Finding("ok", f"{adapted.name}: {sampler.num_actions} actions, observations of shape "
        f"{sampler.observation_shape}, episodes of {sampler.horizon} steps")]  # fmt: skip
    policy, key = UniformPolicy(sampler.num_actions), jax.random.key(seed)
    again = [np.asarray(sampler.rollout(policy, key, 8).observation) for _ in range(2)]
    findings += [_repeatable(np.array_equal(again[0], again[1]))]
    if episodes is None:
        episodes = 2000 if isinstance(sampler, ScanSampler) else affordable(sampler, policy, key)
    sampler.rollout(policy, key, episodes if isinstance(sampler, ScanSampler) else 8)  # compiles
    began = time.perf_counter()
    data = sampler.rollout(policy, key, episodes)
    observation, action, reward = (np.asarray(x) for x in (data.observation, data.action, data.reward))
    seconds = time.perf_counter() - began
    findings += [
        _speed(adapted, episodes * sampler.horizon / seconds),
        _rewards(reward, sampler.optimal_return),
        *_horizon(observation, sampler.horizon),
    ]
    levels = examined_levels(sampler.horizon)
    facts = [level_facts(observation, action, h, sampler.num_actions, seed) for h in levels]
    findings += _predictability(facts) + enough_latents(facts, num_latents)
    return findings


class Told(list[Finding]):
    """Findings, each of which is told as it is added."""

    def __init__(self, tell: Callable[[Finding], None]):
        super().__init__()
        self.tell = tell

    def __repr__(self) -> str:
        return "\n".join(lines(self))

    def __iadd__(self, findings: Iterable[Finding]) -> "Told":
        for finding in findings:
            self.append(finding)
            self.tell(finding)
        return self


def affordable(sampler: Sampler, policy: Policy, key: jax.Array) -> int:
    """Episodes of a host environment that take about `SECONDS` and fit into `MEMORY`, from 100 to 1,000."""
    began = time.perf_counter()
    sampler.rollout(policy, key, HOST_ENVIRONMENTS)
    each = (time.perf_counter() - began) / HOST_ENVIRONMENTS
    size = 4 * (sampler.horizon + 1) * int(np.prod(sampler.observation_shape))
    return int(np.clip(min(SECONDS / each, MEMORY / size), 100, 1000))


def examined_levels(horizon: int) -> list[int]:
    """Up to six levels, evenly spaced."""
    return np.unique(np.linspace(0, horizon - 1, min(horizon, 6)).astype(int)).tolist()


def level_facts(
    observation: np.ndarray, action: np.ndarray, level: int, num_actions: int, seed: int
) -> LevelFacts:
    """Predict the main directions of the observation after `level`, [E, H + 1, ...], on held-out episodes."""
    rng, distinct = np.random.default_rng([seed, level]), _distinct(observation, level)
    flat = observation.reshape(*observation.shape[:2], -1)
    now, later = main_directions(flat[:, level]), main_directions(flat[:, level + 1])
    if now is None or later is None:
        return LevelFacts(level, 0.0, 0, distinct)
    phi = np.hstack([now, np.ones((len(now), 1))])
    target = np.hstack([later, np.tanh(later @ rng.normal(size=(later.shape[1], DISCRIMINATORS)))])
    half = len(phi) // 2
    predicted, shuffled, left, before = [], [], 0.0, 0.0
    for a in range(num_actions):
        rows = np.flatnonzero(action[:, level] == a)
        one, two = rows[rows < half], rows[rows >= half]
        if len(one) < 8 or len(two) < 8:
            continue
        centred = target - target[one].mean(0)
        guess, mixed = ridge_predictions(phi[one], centred[one], phi), rng.permutation(one)
        predicted.append(guess)
        shuffled.append(ridge_predictions(phi[one], centred[mixed], phi))
        left += float(((centred - guess)[two] ** 2).sum())
        before += float((centred[two] ** 2).sum())
    if before == 0.0:
        return LevelFacts(level, 0.0, 0, distinct)
    real, noise = _singular_values(np.hstack(predicted)), _singular_values(np.hstack(shuffled))
    states = count_states(observation[:, level], action[:, level], observation[:, level + 1])
    rank = int((real > 1.5 * noise[0]).sum())
    return LevelFacts(level, max(0.0, 1 - left / before), rank, distinct, states)


def _predictability(facts: list[LevelFacts]) -> list[Finding]:
    told = [fact for fact in facts if fact.explained > 0.05]
    if not told:
        return [Finding("warning", "the next observation looks unrelated to the current one beyond the "
            "action, on random episodes: either one latent state per level is all that random play sees, or "
            "there are too few episodes for so rich observations")]  # fmt: skip
    best = max(fact.explained for fact in told)
    predicted = Finding("ok", "the next observation is predicted on held-out "
        f"episodes, up to {best:.0%} of what the action leaves open ({_levels(told)})")  # fmt: skip
    rest = [fact for fact in facts if fact not in told]
    silent = Finding("note", "one latent state only, or nothing that random episodes could tell, at "
        f"{_levels(rest)}; exploration may find more there")  # fmt: skip
    distinct = [fact.distinct for fact in facts if fact.distinct is not None]
    if len(distinct) == len(facts):
        counted = [Finding("ok", f"random play saw at most {max(distinct)} different observations at a "
            "level: no more latent states than that can be told apart there")]  # fmt: skip
    elif (states := counted_states(told)) is not None:
        counted = [Finding("ok", f"observations form up to {states} clusters at a level, with gaps between "
            "them: they look like as many latent states; random play may miss others. The default algorithm "
            f"finds their number; `efficient` needs num_latents={states + 1} or more")]  # fmt: skip
    else:
        counted = _estimate(max(fact.rank for fact in told) + 1, best)
    return [predicted, *counted, *([silent] if rest else [])]


def counted_states(facts: list[LevelFacts]) -> int | None:
    """The largest number of states at a level, if at least half of the levels have clusters."""
    found = [fact.states for fact in facts if fact.states is not None]
    return max(found) if found and 2 * len(found) >= len(facts) else None


def _estimate(latents: int, best: float) -> list[Finding]:
    """Findings about the number of latent states, for observations that never repeat."""
    found = [Finding("ok", f"what follows tells about {latents} latent states apart, in the level that "
        "shows most of them; random play may miss others. The default algorithm finds their number; "
        f"`efficient` needs num_latents={latents + 1} or more")]  # fmt: skip
    if best > 0.9:
        found.append(Finding("warning", "the next observation is almost a linear function of the current "
            "one: that looks like continuous dynamics, for which BRIEE is not made and the number above "
            "means nothing, unless it is latent states with hardly any noise"))  # fmt: skip
    elif latents > 10:
        found.append(Finding("note", "so many directions can also mean that the dynamics are continuous: "
            "the estimate cannot tell a large block MDP from one that is none"))  # fmt: skip
    return found


def enough_latents(facts: list[LevelFacts], num_latents: int | None) -> list[Finding]:
    """Whether K latent states are too few: their predictions span at most K - 1 directions, so a level with
    more directions has more latent states with different futures. Random play never confirms a number."""
    told = [fact for fact in facts if fact.explained > 0.05]
    if num_latents is None or not told:
        return []
    most = max(told, key=lambda fact: fact.rank)
    states = counted_states(told)
    if states is not None and num_latents < states:
        return [Finding("warning", f"num_latents={num_latents} is too small: the observations of one level "
            f"form {states} clusters, so take num_latents={states} or more")]  # fmt: skip
    if num_latents > most.rank:
        return [Finding("note", f"random play shows no more than num_latents={num_latents} latent states; "
            "exploration may find more")]  # fmt: skip
    return [Finding("warning", f"num_latents={num_latents} is too small: at level {most.level} random play "
        f"already tells about {most.rank + 1} latent states apart, and a decoder would have to merge some "
        "that have different futures")]  # fmt: skip


def _distinct(observation: np.ndarray, level: int) -> int | None:
    """The number of different observations at a level, [E, H + 1, ...]; None if most occur only once."""
    rows = observation[:, level].reshape(len(observation), -1)
    found = len(np.unique(rows, axis=0))
    return found if 4 * found <= len(rows) else None


def _levels(facts: list[LevelFacts]) -> str:
    return f"level{'s' * (len(facts) > 1)} " + ", ".join(str(fact.level) for fact in facts)


def _repeatable(same: bool) -> Finding:
    if same:
        return Finding("ok", "one seed gives one episode: runs are repeatable")
    return Finding("warning", "one seed gave two different episodes: the environment ignores the seed of "
        "reset, so no run on it is repeatable")  # fmt: skip


def _speed(adapted: Adapted, steps: float) -> Finding:
    how = "compiled" if adapted.sampler.pure is not None else "stepped on the host"
    need = 50 * adapted.sampler.horizon * adapted.sampler.horizon
    return Finding("ok" if need / steps < 60 else "warning", f"{steps:,.0f} random steps per second, {how}: "
        f"about {need / steps:.2g} s to collect 50 episodes for each level")  # fmt: skip


def _rewards(reward: np.ndarray, optimal: float | None) -> Finding:
    returns = reward.sum(axis=1)
    best = "" if optimal is None else f"; the optimal return is {optimal:.3g}"
    if not reward.any():
        return Finding("note", "random play never saw a reward: exploration has to find it" + best)
    return Finding("ok", f"returns of random play: mean {returns.mean():.3g}, best {returns.max():.3g}{best}")


def _horizon(observation: np.ndarray, horizon: int) -> list[Finding]:
    """Findings about levels at which observations no longer change, and about very long horizons."""
    changed = observation[:, 1:] != observation[:, :-1]
    moving = changed.reshape(len(observation), horizon, -1).any(axis=(0, 2))
    last = int(np.flatnonzero(moving).max(initial=-1)) + 1
    if last == 0:
        return [Finding("warning", "no observation ever changed")]
    found = []
    if last < horizon:
        found.append(Finding("note", f"no random episode went beyond step {last} of {horizon}: a shorter "
            "horizon would do for what random play sees"))  # fmt: skip
    if horizon > 100:
        found.append(Finding("warning", f"{horizon} steps mean {horizon} decoders to learn; pass a shorter "
            "horizon if the task allows it"))  # fmt: skip
    return found


def main_directions(rows: np.ndarray) -> np.ndarray | None:
    """The principal components of rows [E, D], scaled by one number; None if nothing varies."""
    centred = rows - rows.mean(axis=0)
    if rows.shape[1] > 256:  # images: directions from a sample of the rows
        basis = np.linalg.svd(centred[:512], full_matrices=False)[2][:COMPONENTS]
    else:
        basis = np.linalg.eigh(centred.T @ centred)[1][:, ::-1][:, :COMPONENTS].T
    found = centred @ basis.T
    spread = found.std(axis=0).max(initial=0.0)
    return found / spread if spread > 1e-6 else None


def _singular_values(rows: np.ndarray) -> np.ndarray:
    """Singular values of the centred rows, descending."""
    centred = rows - rows.mean(0)
    return np.sqrt(np.maximum(np.linalg.eigvalsh(centred.T @ centred)[::-1], 0.0))


def ridge_predictions(phi: np.ndarray, target: np.ndarray, where: np.ndarray) -> np.ndarray:
    """Ridge regression of `target` on `phi`, evaluated at `where`."""
    lam = 0.01 * len(phi)
    return where @ np.linalg.solve(phi.T @ phi + lam * np.eye(phi.shape[1]), phi.T @ target)


def lines(findings: Iterable[Finding]) -> list[str]:
    """The findings as the command prints them."""
    signs = {"ok": "+", "note": "·", "warning": "!"}
    return [f"{signs[finding.mark]} {finding.text}" for finding in findings]
