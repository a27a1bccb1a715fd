"""The stationary variant: one decoder for all levels, their data pooled, and a discounted plan.

For environments whose dynamics do not depend on the step, such as FrozenLake and MiniGrid. The parts are
those of `algorithm`: transitions of all levels are rows of one store, one decoder is fitted to it, and the
counts of cells (latent state, action) give one model, on which value iteration with a discount plans.
"""

from dataclasses import replace
from math import prod

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from briee.algorithms.efficient import algorithm as shared
from briee.algorithms.efficient.algorithm import EfficientState
from briee.algorithms.efficient.cell_planning import (
    CellPlan,
    CellPolicy,
    count_cells,
    plan_discounted,
    trial_values,
)
from briee.algorithms.efficient.config import ExploreConfig, StationaryConfig
from briee.algorithms.efficient.level_fit import fit_level
from briee.algorithms.efficient.state_decoder import StateDecoder
from briee.algorithms.efficient.strata import Strata, insert
from briee.numerics.keys import stream
from briee.numerics.linalg import at_level
from briee.protocols import Algorithm, Capabilities, PhaseHook, PolicyKind, Sampler, no_phases
from briee.rollout.trajectories import StoredRows, Trajectories


class StationaryState(EfficientState):
    """An `EfficientState` with one level, and the first observations of the last episodes."""

    first: Float[Array, "E D"]


class Stationary(Algorithm[StationaryState]):
    """BRIEE with one representation for all levels, on the environment behind `sampler`."""

    name = "stationary"
    capabilities = Capabilities(decodes=True, keeps_rows=True)
    config: StationaryConfig

    def __init__(self, sampler: Sampler, config: StationaryConfig):
        self.sampler = sampler
        self.config = config

    def update(self, state: StationaryState, phase: PhaseHook = no_phases) -> StationaryState:
        """One iteration: the steps of Algorithm 1."""
        phase("collect")
        state = self.collect(state)
        phase("represent")
        state = self.fit(state)
        phase("plan")
        return self.plan(state)

    def init(self, key: PRNGKeyArray) -> StationaryState:
        """No data, a decoder that tells nothing apart, and a policy without preferences."""
        first = jnp.zeros((self.config.explore.episodes, prod(self.sampler.observation_shape)))
        return StationaryState(**shared.initial_fields(self.sampler, self.config, key, 1, 1), first=first)

    def collect(self, state: StationaryState) -> StationaryState:
        """Run episodes towards the likeliest discovery and offer their transitions, whatever their level, to
        the store. Once little is left to discover, the second half of the episodes is greedy."""
        key, explore = stream(state.key, "collect", int(state.iteration)), self.config.explore
        settled = float(state.plan.chance) < explore.settled
        halves = [
            self.sampler.rollout(self.policy(state, kind), jax.random.fold_in(key, i), explore.episodes // 2)
            for i, kind in enumerate(("optimistic", "greedy" if settled else "optimistic"))
        ]
        trajectories = shared.joined(halves)
        A, stratified = self.sampler.num_actions, self.config.strata.stratified
        strata, grown = _insert(
            state.strata, state.decoder, trajectories, stream(key, "priority"), A, stratified
        )
        first = jnp.asarray(trajectories.observation[:, 0], jnp.float32).reshape(explore.episodes, -1)
        explore_return = jnp.asarray(halves[0].reward.sum(axis=1).mean())
        state = replace(
            state, strata=strata, growth=state.growth + grown, first=first, explore_return=explore_return
        )
        return shared.counted(state, self.sampler, trajectories)

    def fit(self, state: StationaryState) -> StationaryState:
        """Fit the decoder if the data have grown enough, and relabel all observations."""
        rule = self.config.refit
        if int(state.episodes) < rule.min_rows or float(state.growth[0]) < rule.growth:
            return replace(state, levels_refit=np.asarray(0, np.int64))
        key, A = stream(state.key, "represent", int(state.iteration)), self.sampler.num_actions
        decoder, objective, strata = _refit(state.strata, state.decoder, key, self.config, A)
        state = replace(state, decoder=decoder, objective=objective, strata=strata)
        return replace(state, growth=jnp.zeros(1), levels_refit=np.asarray(1, np.int64))

    def plan(self, state: StationaryState) -> StationaryState:
        """Plan on all cells, for exploration and for reward, discounted."""
        explore, A, discount = self.config.explore, self.sampler.num_actions, self.config.discount
        plan = _plan(state.strata, state.decoder, state.first, A, explore, discount)
        return replace(state, plan=plan, iteration=state.iteration + 1)

    def policy(self, state: StationaryState, kind: PolicyKind = "greedy") -> CellPolicy:
        """`greedy` maximises the reward, `optimistic` the probability of a discovery, at any level."""
        return shared.cell_policy(state, kind, self.config)

    def decode(
        self, state: StationaryState, level: int, observations: Float[Array, "n ..."]
    ) -> Float[Array, "n K"]:
        return shared.decode(at_level(state.decoder, 0), observations)

    def decode_levels(
        self, state: StationaryState, observations: Float[Array, "H n ..."]
    ) -> Float[Array, "H n K"]:
        H, n = observations.shape[:2]
        return self.decode(state, 0, observations.reshape(H * n, -1)).reshape(H, n, -1)

    def stored_rows(self, state: StationaryState) -> StoredRows:
        return shared.stored_rows(state.strata, self.sampler)

    def metrics(self, state: StationaryState) -> dict[str, float]:
        return shared.metrics(state)


@eqx.filter_jit
def _insert(
    strata: Strata, decoder: StateDecoder, trajectories: Trajectories, key, num_actions: int, stratified: bool
):
    """The store with every transition, as an episode of one step, and how much it has grown."""
    E, levels = trajectories.observation.shape[:2]
    observation = trajectories.observation.reshape(E, levels, -1).astype(jnp.float32)
    pairs = jnp.stack([observation[:, :-1], observation[:, 1:]], 2).reshape(E * (levels - 1), 2, -1)
    label = at_level(decoder, 0).label(pairs)
    action, reward = trajectories.action.reshape(-1, 1), trajectories.reward.reshape(-1, 1)
    groups = (decoder.bias.shape[1] + 1) * num_actions
    strata, tries = insert(strata, pairs, action, reward, label, key, groups, num_actions, stratified)
    return strata, jnp.sum(1 / (tries + 1.0), axis=1)


@eqx.filter_jit
def _refit(strata: Strata, decoder: StateDecoder, key, config: StationaryConfig, num_actions: int):
    """The new decoder, its objective, and the store with its labels."""
    rows, old = at_level(strata, 0), at_level(decoder, 0)
    new, objective = fit_level(rows, old, old, key, config, num_actions)
    label, next_label = new.label(strata.observation), new.label(strata.next_observation)
    one = jax.tree.map(lambda leaf: leaf[None], new)
    return one, objective[None], replace(strata, label=label, next_label=next_label)


@eqx.filter_jit
def _plan(
    strata: Strata,
    decoder: StateDecoder,
    first: Float[Array, "E D"],
    num_actions: int,
    explore: ExploreConfig,
    discount: float,
) -> CellPlan:
    counts, rewards = (table[0] for table in count_cells(strata, decoder.bias.shape[1] + 1, num_actions))
    U, Q = plan_discounted(counts, rewards, trial_values(counts, explore), discount)
    chance = U.max(-1)[at_level(decoder, 0).label(first)].mean()
    return CellPlan(U[None], Q[None], chance)
