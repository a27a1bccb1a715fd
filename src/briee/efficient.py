"""The sample-efficient sibling of Algorithm 1: the same loop, other parts; see docs/efficient.md.

Collect whole episodes and keep all their transitions in strata (`briee.strata`); refit the decoders of
levels whose data grew, by variable projection (`briee.varpro`); plan on counts of (latent state, action)
cells to where a discovery is likeliest (`briee.cells`). An update is a pure function of the state.
"""

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from math import prod
from threading import Thread
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from briee.cells import CellPolicy, Plan, count_cells, plan_cells, trial_values
from briee.efficient_config import EfficientConfig, ExploreConfig
from briee.features import at_level
from briee.quick import quick_jit
from briee.randomness import stream
from briee.rollout import Sampler, Trajectories, deepest_good_level
from briee.states import StateDecoder, unfitted
from briee.strata import Strata, empty_strata, insert
from briee.varpro import fit_level


class EfficientState(eqx.Module):
    """What one update hands to the next. Decoders and growth have H + 1 levels, data and plan H."""

    key: PRNGKeyArray
    iteration: Int[np.ndarray, ""]
    episodes: Int[np.ndarray, ""]
    env_steps: Int[np.ndarray, ""]
    strata: Strata
    decoder: StateDecoder
    plan: Plan
    growth: Float[Array, " H+1"]
    objective: Float[Array, " H+1"]
    levels_refit: Int[np.ndarray, ""]
    explore_return: Float[Array, ""]
    reached_level: Float[Array, ""]


class Efficient:
    """BRIEE for few episodes, on the environment behind `sampler`; observations are taken as vectors."""

    name = "efficient"

    def __init__(self, sampler: Sampler, config: EfficientConfig):
        self.sampler = sampler
        self.config = config

    def update(self, state: EfficientState) -> EfficientState:
        """One iteration: the verbs of Algorithm 1."""
        state = self.collect(state)
        state = self.represent(state)
        return self.plan(state)

    def init(self, key: PRNGKeyArray) -> EfficientState:
        """No data, decoders that tell nothing apart, and a policy without preferences."""
        H = self.sampler.horizon
        return EfficientState(**self.start(key, H, H + 1))

    def start(self, key: PRNGKeyArray, levels: int, decoders: int) -> dict[str, Any]:
        """The fields of a state before the first episode."""
        sampler, config = self.sampler, self.config
        sizes = config.num_latents, sampler.num_actions, config.strata.rows, prod(sampler.observation_shape)
        zero, missing = np.asarray(0, np.int64), jnp.float32(jnp.nan)
        return {
            "key": key,
            "iteration": zero,
            "episodes": zero,
            "env_steps": zero,
            **_nothing_known(levels, decoders, *sizes),
            "levels_refit": zero,
            "explore_return": missing,
            "reached_level": missing,
        }

    def collect(self, state: EfficientState) -> EfficientState:
        """Run episodes to where a discovery is likeliest, every second round of them greedily once little is
        left to discover; offer all their transitions to the strata. What a round tried counts as tried for
        the next, by the decoders as they are."""
        if not state.iteration:
            Thread(target=self.fit, args=(state, 0)).start()  # compiles meanwhile what takes longest
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
        trajectories = jax.tree.map(lambda *parts: np.concatenate(parts), *rounds)
        strata, growth = _insert(
            state, trajectories, stream(key, "priority"), A, self.config.strata.stratified
        )
        return replace(
            state,
            episodes=state.episodes + explore.rounds * E,
            env_steps=state.env_steps + explore.rounds * E * self.sampler.horizon,
            strata=strata,
            growth=growth,
            explore_return=jnp.float32(np.asarray(rounds[0].reward).sum(axis=1).mean()),
            reached_level=jnp.float32(deepest_good_level(self.sampler, trajectories)),
        )

    def represent(self, state: EfficientState) -> EfficientState:
        """Fit the decoders of the levels that grew most, and relabel the observations there."""
        levels = self.due(state)
        with ThreadPoolExecutor(self.config.workers or len(os.sched_getaffinity(0))) as pool:
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
        """What `_refit` finds at one level."""
        key = jax.random.fold_in(stream(state.key, "represent", int(state.iteration)), level)
        A = self.sampler.num_actions
        found = _refit(state.strata, state.decoder, jnp.int32(level), key, self.config, A)
        return jax.block_until_ready(found)

    def due(self, state: EfficientState) -> list[int]:
        """Levels to fit now, in ascending order: at first all, then those that grew most."""
        rule, growth = self.config.refit, np.asarray(state.growth)
        if int(state.episodes) < rule.min_rows:
            return []
        if not np.asarray(state.decoder.fitted).all():
            return list(range(len(growth)))
        order = np.argsort(-growth, kind="stable")[: rule.max_levels]
        return sorted(int(h) for h in order if growth[h] > rule.growth)

    def plan(self, state: EfficientState) -> EfficientState:
        """Values of every cell for exploration and for reward."""
        cells = _count(state.strata, self.config.num_latents + 1, self.sampler.num_actions)
        return replace(state, plan=_plan(cells, self.config.explore), iteration=state.iteration + 1)

    def policy(self, state: EfficientState, kind: Literal["greedy", "optimistic"] = "greedy") -> CellPolicy:
        """`greedy` maximises the reward, `optimistic` the chance of a discovery."""
        if kind == "optimistic":
            tolerance = jnp.float32(self.config.explore.tolerance)
            return CellPolicy(state.decoder, state.plan.discovery, tolerance, jnp.array(False))
        return CellPolicy(state.decoder, state.plan.reward, jnp.float32(1), jnp.array(True))

    def decode(
        self, state: EfficientState, level: int, observations: Float[Array, "n ..."]
    ) -> Float[Array, "n K"]:
        """Soft latent states of observations at one level."""
        return _decode(at_level(state.decoder, level), observations)

    def decode_levels(
        self, state: EfficientState, observations: Float[Array, "H n ..."]
    ) -> Float[Array, "H n K"]:
        """Soft latent states of observations at each of the H levels."""
        return _decode_levels(state.decoder, observations)

    def metrics(self, state: EfficientState) -> dict[str, float]:
        """What the last update did, for the run's table."""
        fitted = np.asarray(state.decoder.fitted)
        objective = np.asarray(state.objective)[fitted]
        return {
            "explore_return": float(state.explore_return),
            "reached_level": float(state.reached_level),
            "replearn_gap": float(objective.mean()) if fitted.any() else 0.0,
            "levels_refit": int(state.levels_refit),
            "discovery_chance": float(state.plan.chance),
        }


@quick_jit
def _nothing_known(levels: int, decoders: int, K: int, A: int, rows: int, D: int) -> dict[str, Any]:
    """Data, decoders and plan before the first episode."""
    values = (levels, K + 1, A)
    return {
        "strata": empty_strata(levels, rows, D),
        "decoder": unfitted(decoders, K, D),
        "plan": Plan(jnp.ones(values), jnp.zeros(values), jnp.float32(1)),
        "growth": jnp.zeros(decoders),
        "objective": jnp.full(decoders, jnp.inf),
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
    """The strata with these episodes, and how much each level has grown: the sum over new rows of
    1 / (n + 1), n the size of their strata, each as far as a discovery was still likely from there."""
    strata, decoder, plan = state.strata, state.decoder, state.plan
    observation, label = _label(decoder, trajectories)
    groups = (decoder.bias.shape[1] + 1) * num_actions
    action, reward = trajectories.action, trajectories.reward
    strata, tries = insert(strata, observation, action, reward, label, key, groups, num_actions, stratified)
    hope = jnp.take_along_axis(plan.discovery.max(-1), label[:, :-1].T, axis=1)
    weight = jnp.where(hope < plan.chance, hope / plan.chance, 1.0)
    grown = jnp.sum(weight / (tries + 1.0), axis=1)
    edge = partial(jnp.pad, mode="edge")  # a level's own data, and those that lead to it
    return strata, state.growth + edge(grown, (1, 0)) + edge(grown, (0, 1))


@quick_jit
def _refit(strata: Strata, decoder: StateDecoder, h, key, config: EfficientConfig, num_actions: int):
    """The new decoder of level h, its objective, and the labels it gives to that level's observations."""
    H = strata.action.shape[0]
    own, before = at_level(strata, jnp.minimum(h, H - 1)), at_level(strata, jnp.maximum(h - 1, 0))
    own = replace(own, action=jnp.where(h < H, own.action, -1))
    before = replace(before, action=jnp.where(h > 0, before.action, -1))
    after = at_level(decoder, jnp.minimum(h + 1, H))
    new, objective = fit_level(own, before, at_level(decoder, h), after, key, config, num_actions)
    return new, objective, new.label(own.observation), new.label(before.next_observation)


@quick_jit
def _replace_level(parts, h, result):
    """What level h has after its fit: decoder, labels there, no growth, objective."""
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
def _plan(cells, explore: ExploreConfig) -> Plan:
    counts, rewards = cells
    return plan_cells(counts, rewards, trial_values(counts, explore))


@quick_jit
def _decode(decoder: StateDecoder, observations: Float[Array, "n ..."]) -> Float[Array, "n K"]:
    return decoder.probabilities(observations.reshape(observations.shape[0], -1))


@quick_jit
def _decode_levels(decoder: StateDecoder, observations: Float[Array, "H n ..."]) -> Float[Array, "H n K"]:
    H, n = observations.shape[:2]
    levels = jax.tree.map(lambda leaf: leaf[:H], decoder)
    return jax.vmap(StateDecoder.probabilities)(levels, observations.reshape(H, n, -1))
