"""The loop that the level-by-level rivals share: explore the levels, plan, check the policy, and start again.

An update is one level, so that a run can be evaluated, saved and stopped after each. When an attempt is over,
its policy plays a few episodes. If the run goes on, another attempt begins with new random numbers. The
policy of a state is that of the best attempt, or the plan of the first one as far as it has come.
"""

from dataclasses import replace
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from briee.algorithms.baselines.psdp import Gathered
from briee.numerics.keys import stream
from briee.protocols import Algorithm, PhaseHook, Policy, PolicyKind, Sampler, no_phases
from briee.rollout.samplers import deepest_good_level

CHECKS = 5
"""Updates that play the finished policy of an attempt, as many as a run needs to count as solved."""


class AttemptState(eqx.Module):
    """State between two updates; each rival adds what it learns."""

    key: PRNGKeyArray
    iteration: Int[np.ndarray, ""]
    episodes: Int[np.ndarray, ""]
    env_steps: Int[np.ndarray, ""]
    explore_return: Float[Array, ""]
    reached_level: Float[Array, ""]
    best_return: Float[Array, ""]
    """Mean return of the best attempt's policy in its first check; -inf before."""
    learned: Any
    """The parts of this attempt's policy."""
    best: Any
    """The same of the best attempt."""


T = TypeVar("T", bound=AttemptState)
COUNTERS = (
    "key",
    "iteration",
    "episodes",
    "env_steps",
    "explore_return",
    "reached_level",
    "best_return",
    "best",
)
"""Fields that a new attempt keeps."""


class Attempts(Algorithm[T]):
    """A rival that explores in `explore_updates` updates and plans in `plan_updates` more."""

    explore_updates: int
    plan_updates: int

    def __init__(self, sampler: Sampler, config: Any):
        self.sampler, self.config = sampler, config

    def fresh(self, key: PRNGKeyArray, **common: Any) -> T:
        """The state at the start of an attempt, given the fields that all rivals have."""
        raise NotImplementedError

    def blank(self, key: PRNGKeyArray) -> Any:
        """`learned` before anything is learned."""
        raise NotImplementedError

    def explore(self, state: T, step: int, key: PRNGKeyArray, phase: PhaseHook) -> T:
        """One update of exploration."""
        raise NotImplementedError

    def plan(self, state: T, step: int, key: PRNGKeyArray, phase: PhaseHook) -> T:
        """One update of planning."""
        raise NotImplementedError

    def as_policy(self, learned: Any) -> Policy:
        """The policy that `learned` stands for."""
        raise NotImplementedError

    def init(self, key: PRNGKeyArray) -> T:
        """No data, and a policy without preferences."""
        zero, missing = np.asarray(0, np.int64), jnp.float32(jnp.nan)
        learned = self.blank(key)
        return self.fresh(
            key, iteration=zero, episodes=zero, env_steps=zero, explore_return=missing, reached_level=missing,
            best_return=jnp.float32(-jnp.inf), learned=learned, best=learned,
        )  # fmt: skip

    def update(self, state: T, phase: PhaseHook = no_phases) -> T:
        """One level of exploration or planning, or one check."""
        plan_from, check_from = self.explore_updates, self.explore_updates + self.plan_updates
        attempt, step = divmod(int(state.iteration), check_from + CHECKS)
        key = stream(state.key, "attempt", attempt)
        if step == 0 and attempt > 0:
            kept = {name: getattr(state, name) for name in COUNTERS}
            state = replace(self.init(stream(key, "init")), **kept)
        if step < plan_from:
            state = self.explore(state, step, stream(key, "explore", step), phase)
        elif step < check_from:
            state = self.plan(state, step - plan_from, stream(key, "plan", step - plan_from), phase)
        else:
            state = self.check(state, step == check_from, stream(key, "check", step), phase)
        return replace(state, iteration=state.iteration + 1)

    def check(self, state: T, first: bool, key: PRNGKeyArray, phase: PhaseHook) -> T:
        """Play the finished policy; the first check of an attempt decides whether it is the best one."""
        phase("collect")
        n, H = self.config.check_episodes, self.sampler.horizon
        trajectories = self.sampler.rollout(self.as_policy(state.learned), key, n)
        mean = trajectories.reward.sum(axis=1).mean()
        better = first and bool(mean > state.best_return)
        return replace(
            state,
            episodes=state.episodes + n,
            env_steps=state.env_steps + n * H,
            explore_return=mean,
            reached_level=jnp.float32(deepest_good_level(self.sampler, trajectories)),
            best=state.learned if better else state.best,
            best_return=mean if better else state.best_return,
        )

    def policy(self, state: T, kind: PolicyKind = "greedy") -> Policy:
        """The policy of the best attempt; before the end of the first one, the plan so far."""
        known = state.best_return > -jnp.inf
        choose = lambda best, learned: jnp.where(known, best, learned)  # noqa: E731
        return self.as_policy(jax.tree.map(choose, state.best, state.learned))

    def metrics(self, state: T) -> dict[str, float]:
        """Measurements of the last update, for metrics.csv."""
        length = self.explore_updates + self.plan_updates + CHECKS
        return {
            "explore_return": float(state.explore_return),
            "reached_level": float(state.reached_level),
            "attempt": (int(state.iteration) - 1) // length + 1,
        }


def counted(state: T, rows: Gathered, steps: int, **changes: Any) -> T:
    """`state` with these episodes counted and further fields changed."""
    return replace(
        state,
        episodes=state.episodes + len(rows.action),
        env_steps=state.env_steps + len(rows.action) * steps,
        explore_return=rows.total.mean(),
        reached_level=jnp.where(jnp.isnan(rows.reached[0]), jnp.nan, rows.reached.max()),  # XLA's skips NaN
        **changes,
    )
