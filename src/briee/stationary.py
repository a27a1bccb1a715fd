"""The stationary variant: one decoder for all levels, their data pooled, and a discounted plan.

For environments whose dynamics do not depend on the step, as FrozenLake's and MiniGrid's. The parts are those
of `briee.efficient`: a transition of any level is a row of one store, the decoder is fitted to it once, and
counts of cells (latent state, action) give one model for all levels, on which value iteration with a discount
plans for an infinite horizon.
"""

from dataclasses import replace
from math import ceil, log, prod
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from briee.cells import UNTRIED, CellPolicy, Plan, best_tried, count_cells, estimate, trial_values
from briee.efficient import Efficient, EfficientState
from briee.efficient_config import ExploreConfig
from briee.features import at_level
from briee.randomness import stream
from briee.rollout import Trajectories, deepest_good_level
from briee.states import StateDecoder
from briee.stationary_config import StationaryConfig
from briee.strata import Strata, insert
from briee.varpro import fit_level


class StationaryState(EfficientState):
    """The state of `briee.efficient` with one level, and the first observations of the last episodes."""

    first: Float[Array, "E D"]


class AnyLevel(eqx.Module):
    """A policy that does the same at every level."""

    policy: CellPolicy

    def __call__(
        self, level: Int[Array, ""], observation: Float[Array, "..."], key: PRNGKeyArray
    ) -> Int[Array, ""]:
        return self.policy(jnp.int32(0), observation, key)


class Stationary(Efficient):
    """BRIEE with one representation for all levels, on the environment behind `sampler`."""

    name = "stationary"
    config: StationaryConfig

    def init(self, key: PRNGKeyArray) -> StationaryState:
        """No data, a decoder that tells nothing apart, and a policy without preferences."""
        first = jnp.zeros((self.config.explore.episodes, prod(self.sampler.observation_shape)))
        return StationaryState(**self.start(key, 1, 1), first=first)

    def collect(self, state: StationaryState) -> StationaryState:  # type: ignore[override]
        """As the efficient sibling; the transitions of all levels go into one store."""
        key = stream(state.key, "collect", int(state.iteration))
        batches = self.episodes(state, key)
        trajectories = jax.tree.map(lambda *parts: jnp.concatenate(parts), *batches)
        A, E = self.sampler.num_actions, trajectories.action.shape[0]
        strata, grown = _insert(
            state.strata,
            state.decoder,
            trajectories,
            stream(key, "priority"),
            A,
            self.config.strata.stratified,
        )
        return replace(
            state,
            episodes=state.episodes + E,
            env_steps=state.env_steps + E * self.sampler.horizon,
            strata=strata,
            growth=state.growth + grown,
            first=trajectories.observation[:, 0].reshape(E, -1).astype(jnp.float32),
            explore_return=batches[0].reward.sum(axis=1).mean(),
            reached_level=jnp.float32(deepest_good_level(self.sampler, trajectories)),
        )

    def episodes(self, state: StationaryState, key: PRNGKeyArray) -> list[Trajectories]:
        """Exploring episodes, and as many more: greedy ones once little is left to discover."""
        settled = float(state.plan.chance) < self.config.explore.settled
        kinds = ("optimistic", "greedy" if settled else "optimistic")
        half = self.config.explore.episodes // 2
        return [
            self.sampler.rollout(self.policy(state, kind), jax.random.fold_in(key, i), half)
            for i, kind in enumerate(kinds)
        ]

    def represent(self, state: StationaryState) -> StationaryState:  # type: ignore[override]
        """Fit the decoder when the data have grown enough, and relabel all observations."""
        rule = self.config.refit
        if int(state.episodes) < rule.min_rows or float(state.growth[0]) < rule.growth:
            return replace(state, levels_refit=np.asarray(0, np.int64))
        key = stream(state.key, "represent", int(state.iteration))
        decoder, objective, strata = _refit(
            state.strata, state.decoder, key, self.config, self.sampler.num_actions
        )
        return replace(
            state,
            decoder=decoder,
            objective=objective,
            strata=strata,
            growth=jnp.zeros(1),
            levels_refit=np.asarray(1, np.int64),
        )

    def plan(self, state: StationaryState) -> StationaryState:  # type: ignore[override]
        """Values of every cell for exploration and for reward, discounted."""
        explore, A = self.config.explore, self.sampler.num_actions
        plan = _plan(
            state.strata, state.decoder, state.first, A, explore,
            self.config.discount,
        )  # fmt: skip
        return replace(state, plan=plan, iteration=state.iteration + 1)

    def policy(  # type: ignore[override]
        self, state: EfficientState, kind: Literal["greedy", "optimistic"] = "greedy"
    ) -> AnyLevel:
        """`greedy` maximises the reward, `optimistic` the chance of a discovery."""
        return AnyLevel(super().policy(state, kind))

    def decode(
        self, state: EfficientState, level: int, observations: Float[Array, "n ..."]
    ) -> Float[Array, "n K"]:
        """Soft latent states; the level does not matter."""
        return super().decode(state, 0, observations)

    def decode_levels(
        self, state: EfficientState, observations: Float[Array, "H n ..."]
    ) -> Float[Array, "H n K"]:
        """Soft latent states of observations at each level."""
        H, n = observations.shape[:2]
        return self.decode(state, 0, observations.reshape(H * n, -1)).reshape(H, n, -1)


@eqx.filter_jit
def _insert(
    strata: Strata, decoder: StateDecoder, trajectories: Trajectories, key, num_actions: int, stratified: bool
):
    """Every transition is an episode of one step, whatever its level."""
    E, levels = trajectories.observation.shape[:2]
    observation = trajectories.observation.reshape(E, levels, -1).astype(jnp.float32)
    pairs = jnp.stack([observation[:, :-1], observation[:, 1:]], 2).reshape(E * (levels - 1), 2, -1)
    label = at_level(decoder, 0).label(pairs)
    column = lambda x: x.reshape(-1, 1)  # noqa: E731
    groups = (decoder.bias.shape[1] + 1) * num_actions
    strata, tries = insert(
        strata, pairs, column(trajectories.action), column(trajectories.reward), label, key, groups,
        num_actions, stratified,
    )  # fmt: skip
    return strata, jnp.sum(1 / (tries + 1.0), axis=1)


@eqx.filter_jit
def _refit(strata: Strata, decoder: StateDecoder, key, config: StationaryConfig, num_actions: int):
    """The new decoder, its objective, and the store with its labels."""
    rows, old = at_level(strata, 0), at_level(decoder, 0)
    new, objective = fit_level(rows, rows, old, old, key, config, num_actions)
    label, next_label = new.label(strata.observation), new.label(strata.next_observation)
    one = jax.tree.map(lambda leaf: leaf[None], new)
    return one, objective[None], replace(strata, label=label, next_label=next_label)


@eqx.filter_jit
def _plan(
    strata: Strata, decoder: StateDecoder, first: Float[Array, "E D"], num_actions: int,
    explore: ExploreConfig, discount: float,
) -> Plan:  # fmt: skip
    labels = decoder.bias.shape[1] + 1
    counts, rewards = (table[0] for table in count_cells(strata, labels, num_actions))
    curve = trial_values(counts, explore)
    U, Q = plan_discounted(counts, rewards, curve, discount)
    chance = U.max(-1)[at_level(decoder, 0).label(first)].mean()
    return Plan(U[None], Q[None], chance)


def plan_discounted(
    counts: Float[Array, "L A L"], rewards: Float[Array, "L A"], curve: Float[Array, " n"], discount: float
) -> tuple[Float[Array, "L A"], Float[Array, "L A"]]:
    """The fixed points, to 1e-6, of `briee.cells.plan_cells`'s recursions with a discount:

    U(c, a) = max(u_{n(c,a)}, discount sum_c' P(c'|c,a) max_a' U(c', a'))       discovery, no reward
    Q(c, a) = r(c, a) + discount sum_c' P(c'|c,a) max_a' Q(c', a')              over cells that were tried
    """
    P, r, u, tries = estimate(counts, rewards, curve)

    def sweep(_, values):
        U, Q = values
        further = r + discount * P @ best_tried(Q)
        return jnp.maximum(u, discount * P @ U.max(-1)), jnp.where(tries > 0, further, UNTRIED)

    sweeps = ceil(log(1e-6) / log(discount)) if discount > 0 else 1
    return jax.lax.fori_loop(0, sweeps, sweep, (u, jnp.where(tries > 0, r, UNTRIED)))
