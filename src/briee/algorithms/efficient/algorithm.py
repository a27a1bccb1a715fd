"""A sibling of Algorithm 1 for few episodes: the same loop with other parts; see docs/efficient.md.

Collect whole episodes and keep their transitions in strata (`strata`). Refit the decoders of the levels whose
data grew, by variable projection (`level_fit`). Plan on counts of cells (latent state, action) towards the
likeliest discovery (`cell_planning`). An update is a pure function of the state.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from math import prod
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from briee.algorithms.efficient.cell_planning import (
    CellPlan,
    CellPolicy,
    count_cells,
    plan_cells,
    trial_values,
)
from briee.algorithms.efficient.config import EfficientConfig, ExploreConfig
from briee.algorithms.efficient.level_fit import fit_level
from briee.algorithms.efficient.state_decoder import StateDecoder, unfitted
from briee.algorithms.efficient.strata import Strata, arrivals, empty_strata, insert
from briee.compute import available_cores, quick_jit
from briee.numerics.keys import stream
from briee.numerics.linalg import at_level
from briee.protocols import Algorithm, Capabilities, PhaseHook, PolicyKind, Sampler, no_phases
from briee.rollout.samplers import deepest_good_level
from briee.rollout.trajectories import StoredRows, Trajectories


class EfficientState(eqx.Module):
    """The state between two updates. Decoders and growth have H + 1 levels, data and plan H."""

    key: PRNGKeyArray
    iteration: Int[np.ndarray, ""]
    episodes: Int[np.ndarray, ""]
    env_steps: Int[np.ndarray, ""]
    strata: Strata
    decoder: StateDecoder
    plan: CellPlan
    growth: Float[Array, " decoders"]
    objective: Float[Array, " decoders"]
    levels_refit: Int[np.ndarray, ""]
    explore_return: Float[Array, ""]
    reached_level: Float[Array, ""]


S = TypeVar("S", bound=EfficientState)


class Efficient(Algorithm[EfficientState]):
    """BRIEE for few episodes, on the environment behind `sampler`; observations are flattened to vectors."""

    name = "efficient"
    capabilities = Capabilities(decodes=True, keeps_rows=True)
    config: EfficientConfig

    def __init__(self, sampler: Sampler, config: EfficientConfig):
        self.sampler = sampler
        self.config = config

    def update(self, state: EfficientState, phase: PhaseHook = no_phases) -> EfficientState:
        """One iteration: the steps of Algorithm 1."""
        phase("collect")
        state = self.collect(state)
        phase("represent")
        state = self.fit_levels(state)
        phase("plan")
        return self.plan(state)

    def compile(self, state: EfficientState) -> None:
        """Compile the level fit and the rollout, which take longest, in parallel, on a state without data."""
        episodes = self.config.explore.episodes // self.config.explore.rounds
        policy = self.policy(state, "optimistic")
        with ThreadPoolExecutor(2) as pool:
            fit = pool.submit(self.fit, state, 0)
            jax.block_until_ready(self.sampler.rollout(policy, state.key, episodes))
            fit.result()

    def init(self, key: PRNGKeyArray) -> EfficientState:
        """No data, decoders that tell nothing apart, and a policy without preferences."""
        H = self.sampler.horizon
        return EfficientState(**initial_fields(self.sampler, self.config, key, H, H + 1))

    def collect(self, state: EfficientState) -> EfficientState:
        """Run episodes towards the likeliest discovery and offer their transitions to the strata.

        Each round plans with the counts of those before, as the current decoders label them. Once little is
        left to discover, every second round is greedy.
        """
        key, explore = stream(state.key, "collect", int(state.iteration)), self.config.explore
        E, L, A = explore.episodes // explore.rounds, self.config.num_latents + 1, self.sampler.num_actions
        plan, cells, rounds = state.plan, _count(state.strata, L, A), []
        for i in range(explore.rounds):
            if i:
                cells = _count_further(cells, state.decoder, rounds[-1])
                plan = _plan(cells, explore)
            settled = i % 2 == 1 and float(plan.chance) < explore.settled
            policy = self.policy(replace(state, plan=plan), "greedy" if settled else "optimistic")
            rounds.append(self.sampler.rollout(policy, jax.random.fold_in(key, i), E))
        trajectories = joined(rounds)
        stratified = self.config.strata.stratified
        strata, growth = _insert(state, trajectories, stream(key, "priority"), A, stratified)
        explore_return = jnp.float32(np.asarray(rounds[0].reward).sum(axis=1).mean())
        state = replace(state, strata=strata, growth=growth, explore_return=explore_return)
        return counted(state, self.sampler, trajectories)

    def fit_levels(self, state: EfficientState) -> EfficientState:
        """Fit the decoders of the levels that grew most, and relabel the observations there."""
        levels = self.due(state)
        with ThreadPoolExecutor(self.config.workers or available_cores()) as pool:
            results = list(pool.map(partial(self.fit, state), levels))
        parts = (state.decoder, state.strata.label, state.strata.next_label, state.growth, state.objective)
        for h, result in zip(levels, results, strict=True):
            parts = _replace_level(parts, jnp.int32(h), result)
        decoder, label, next_label, growth, objective = parts
        return replace(
            state,
            strata=replace(state.strata, label=label, next_label=next_label),
            decoder=decoder,
            growth=growth,
            objective=objective,
            levels_refit=np.asarray(len(levels), np.int64),
        )

    def fit(self, state: EfficientState, level: int):
        """The results of `_refit` at one level."""
        key = jax.random.fold_in(stream(state.key, "represent", int(state.iteration)), level)
        A = self.sampler.num_actions
        found = _refit(state.strata, state.decoder, jnp.int32(level), key, self.config, A)
        return jax.block_until_ready(found)

    def due(self, state: EfficientState) -> list[int]:
        """Levels to fit now, in ascending order: first all of them, later those that grew most."""
        rule, growth = self.config.refit, np.asarray(state.growth)
        if int(state.episodes) < rule.min_rows:
            return []
        if not np.asarray(state.decoder.fitted).all():
            return list(range(len(growth)))
        order = np.argsort(-growth, kind="stable")[: rule.max_levels]
        return sorted(int(h) for h in order if growth[h] > rule.growth)

    def plan(self, state: EfficientState) -> EfficientState:
        """Plan on all cells, for exploration and for reward."""
        cells = _count(state.strata, self.config.num_latents + 1, self.sampler.num_actions)
        return replace(state, plan=_plan(cells, self.config.explore), iteration=state.iteration + 1)

    def policy(self, state: EfficientState, kind: PolicyKind = "greedy") -> CellPolicy:
        """`greedy` maximises the reward, `optimistic` the probability of a discovery."""
        return cell_policy(state, kind, self.config)

    def decode(
        self, state: EfficientState, level: int, observations: Float[Array, "n ..."]
    ) -> Float[Array, "n K"]:
        return decode(at_level(state.decoder, level), observations)

    def decode_levels(
        self, state: EfficientState, observations: Float[Array, "H n ..."]
    ) -> Float[Array, "H n K"]:
        return _decode_levels(state.decoder, observations)

    def stored_rows(self, state: EfficientState) -> StoredRows:
        return stored_rows(state.strata, self.sampler)

    def metrics(self, state: EfficientState) -> dict[str, float]:
        return metrics(state)


def initial_fields(
    sampler: Sampler, config: EfficientConfig, key: PRNGKeyArray, levels: int, decoders: int
) -> dict[str, Any]:
    """The fields of a state before the first episode, for this many levels with data and decoders."""
    sizes = config.num_latents, sampler.num_actions, config.strata.rows, prod(sampler.observation_shape)
    zero, missing = np.asarray(0, np.int64), jnp.float32(jnp.nan)
    counters = dict.fromkeys(("iteration", "episodes", "env_steps", "levels_refit"), zero)
    measured = dict.fromkeys(("explore_return", "reached_level"), missing)
    return {"key": key, **counters, **measured, **_no_data(levels, decoders, *sizes)}


@quick_jit
def _no_data(levels: int, decoders: int, K: int, A: int, rows: int, D: int) -> dict[str, Any]:
    """Data, decoders and plan before the first episode."""
    values = (levels, K + 1, A)
    return {
        "strata": empty_strata(levels, rows, D),
        "decoder": unfitted(decoders, K, D),
        "plan": CellPlan(jnp.ones(values), jnp.zeros(values), jnp.float32(1)),
        "growth": jnp.zeros(decoders),
        "objective": jnp.full(decoders, jnp.inf),
    }


def cell_policy(state: EfficientState, kind: PolicyKind, config: EfficientConfig) -> CellPolicy:
    """The exploring policy of a plan if `kind` is `optimistic`, else the greedy one."""
    if kind == "optimistic":
        tolerance = jnp.float32(config.explore.tolerance)
        return CellPolicy(state.decoder, state.plan.discovery, tolerance, jnp.array(False))
    return CellPolicy(state.decoder, state.plan.reward, jnp.float32(1), jnp.array(True))


def joined(batches: Sequence[Trajectories]) -> Trajectories:
    """The episodes of several rollouts."""
    return jax.tree.map(lambda *parts: np.concatenate(parts), *batches)


def counted(state: S, sampler: Sampler, trajectories: Trajectories) -> S:
    """The state with further episodes counted."""
    E = trajectories.action.shape[0]
    return replace(
        state,
        episodes=state.episodes + E,
        env_steps=state.env_steps + E * sampler.horizon,
        reached_level=jnp.float32(deepest_good_level(sampler, trajectories)),
    )


def stored_rows(rows: Strata, sampler: Sampler) -> StoredRows:
    """The strata as a table; the order of the rows is not kept."""
    shape = (*rows.action.shape, *sampler.observation_shape)
    observation, following = (x.reshape(shape) for x in (rows.observation, rows.next_observation))
    action, reward, valid = np.asarray(rows.action), np.asarray(rows.reward), np.asarray(rows.action >= 0)
    return StoredRows(observation, action, reward, following, valid, valid, None)


def metrics(state: EfficientState) -> dict[str, float]:
    """Measurements of the last update, for metrics.csv."""
    fitted = np.asarray(state.decoder.fitted)
    objective = np.asarray(state.objective)[fitted]
    return {
        "explore_return": float(state.explore_return),
        "reached_level": float(state.reached_level),
        "replearn_gap": float(objective.mean()) if fitted.any() else 0.0,
        "levels_refit": int(state.levels_refit),
        "discovery_chance": float(state.plan.chance),
    }


_count = quick_jit(count_cells)


@quick_jit
def _count_further(cells, decoder: StateDecoder, trajectories: Trajectories):
    """Counts and rewards of cells, with those of further episodes."""
    counts, rewards = cells
    label, action = _label(decoder, trajectories)[1], trajectories.action
    level = jnp.broadcast_to(jnp.arange(action.shape[1]), action.shape)
    cell = level, label[:, :-1], action
    return counts.at[*cell, label[:, 1:]].add(1.0), rewards.at[*cell].add(trajectories.reward)


def _label(decoder: StateDecoder, trajectories: Trajectories):
    """Observations as vectors [E, H+1, D], and their labels."""
    observation = trajectories.observation
    observation = observation.reshape(*observation.shape[:2], -1).astype(jnp.float32)
    return observation, jax.vmap(StateDecoder.label, (0, 1), 1)(decoder, observation)


@quick_jit
def _insert(state: EfficientState, trajectories: Trajectories, key, num_actions: int, stratified: bool):
    """The strata with these episodes, and the growth of each level.

    A new row in a stratum of n rows adds 1 / (n + 1), times the probability of a discovery from there
    relative to that of an episode, at most 1.
    """
    plan, decoder = state.plan, state.decoder
    observation, label = _label(decoder, trajectories)
    groups = (decoder.bias.shape[1] + 1) * num_actions
    action, reward = trajectories.action, trajectories.reward
    strata, tries = insert(
        state.strata, observation, action, reward, label, key, groups, num_actions, stratified
    )
    hope = jnp.take_along_axis(plan.discovery.max(-1), label[:, :-1].T, axis=1)
    weight = jnp.where(hope < plan.chance, hope / plan.chance, 1.0)
    grown = jnp.sum(weight / (tries + 1.0), axis=1)
    edge = partial(jnp.pad, mode="edge")  # a decoder sees its own level and the one that leads to it
    return strata, state.growth + edge(grown, (1, 0)) + edge(grown, (0, 1))


@quick_jit
def _refit(strata: Strata, decoder: StateDecoder, h, key, config: EfficientConfig, num_actions: int):
    """The new decoder of level h, its objective, and the labels it gives to that level's observations."""
    H = strata.action.shape[0]
    own, before = at_level(strata, jnp.minimum(h, H - 1)), at_level(strata, jnp.maximum(h - 1, 0))
    rows = jax.tree.map(partial(jnp.where, h < H), own, arrivals(before))  # level H has no step of its own
    after = at_level(decoder, jnp.minimum(h + 1, H))
    new, objective = fit_level(rows, at_level(decoder, h), after, key, config, num_actions)
    return new, objective, new.label(own.observation), new.label(before.next_observation)


@quick_jit
def _replace_level(parts, h, result):
    """Decoders, labels, growth and objectives, with the results of a fit of level h."""
    decoder, label, next_label, growth, objective = parts
    new_decoder, new_objective, new_label, new_next_label = result
    H = label.shape[0]
    return (
        jax.tree.map(lambda old, new: old.at[h].set(new), decoder, new_decoder),
        label.at[h].set(new_label, mode="drop"),
        next_label.at[jnp.where(h > 0, h - 1, H)].set(new_next_label, mode="drop"),
        growth.at[h].set(0.0),
        objective.at[h].set(new_objective),
    )


@quick_jit
def _plan(cells, explore: ExploreConfig) -> CellPlan:
    counts, rewards = cells
    return plan_cells(counts, rewards, trial_values(counts, explore))


@quick_jit
def decode(decoder: StateDecoder, observations: Float[Array, "n ..."]) -> Float[Array, "n K"]:
    """Soft latent states of observations, by one decoder."""
    return decoder.probabilities(observations.reshape(observations.shape[0], -1))


@quick_jit
def _decode_levels(decoder: StateDecoder, observations: Float[Array, "H n ..."]) -> Float[Array, "H n K"]:
    H, n = observations.shape[:2]
    levels = jax.tree.map(lambda leaf: leaf[:H], decoder)
    return jax.vmap(StateDecoder.probabilities)(levels, observations.reshape(H, n, -1))
