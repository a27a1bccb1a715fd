"""Exploration with the latent states behind any observation, whose number nobody tells; see docs/general.md.

Collect whole episodes towards the likeliest discovery. Refit the levels whose data grew: candidates propose
states, and the one that best predicts what came before and what follows wins (`candidates`). Plan on counts
of cells (state, action). An update is a pure function of the state.
"""

from dataclasses import replace
from math import prod

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from briee.algorithms.general import fresh_test, pooling, world_stage
from briee.algorithms.general.candidates import CHARGE
from briee.algorithms.general.config import GeneralConfig
from briee.algorithms.general.decoders import (
    StatePolicy,
    labels,
    no_decoders,
    probabilities,
    state_policy,
)
from briee.algorithms.general.level_fits import LevelFits
from briee.algorithms.general.planning import Cells, Plan, count_cells, discovery_curve, plan_cells
from briee.algorithms.general.reward_plans import RewardPlans
from briee.algorithms.general.state import (
    GeneralState,
    grow,
    insert,
    no_episodes,
    numpy_generator,
    planned,
    reward_bins,
    slots,
    used_states,
)
from briee.algorithms.general.world import POOLED, no_world
from briee.algorithms.general.world_plan import WorldPolicy
from briee.numerics.keys import stream
from briee.protocols import Capabilities, PhaseHook, PolicyKind, Sampler, no_phases
from briee.rollout.samplers import deepest_good_level
from briee.rollout.trajectories import StoredRows


class General(RewardPlans[GeneralState]):
    """States from any observation of the environment behind `sampler`; observations are flattened."""

    name = "general"
    capabilities = Capabilities(decodes=True, keeps_rows=True, plans_any_reward=True)
    config: GeneralConfig

    def __init__(self, sampler: Sampler, config: GeneralConfig):
        self.sampler = sampler
        self.config = config
        self.levels = LevelFits(sampler, config)
        if config.explore.reward_free:
            self.capabilities = replace(self.capabilities, stops_when_solved=False)

    def update(self, state: GeneralState, phase: PhaseHook = no_phases) -> GeneralState:
        """One iteration."""
        phase("collect")
        state = self.collect(state)
        pools = not self.config.explore.reward_free  # its plans are made with the states of each level
        pools &= int(state.data.size) > 0
        if pools and pooling.due(state.world, int(state.iteration), int(state.episodes)):
            phase("represent")
            state = self.pool(state)
        if world_stage.is_on(state.world):
            phase("plan")
            return replace(state, world=world_stage.with_reward(state.world), iteration=state.iteration + 1)
        phase("represent")
        state = self.levels.fit_levels(state)
        phase("plan")
        state = planned(state, self.plan(self.cells(state), state))
        return replace(state, iteration=state.iteration + 1)

    def compile(self, state: GeneralState) -> None:
        """Compile the rollout."""
        episodes = self.config.explore.episodes // self.config.explore.rounds
        jax.block_until_ready(self.sampler.rollout(self.policy(state, "optimistic"), state.key, episodes))

    def init(self, key: PRNGKeyArray) -> GeneralState:
        """No data, one state a level, and a policy without preferences."""
        H, A, D = self.sampler.horizon, self.sampler.num_actions, prod(self.sampler.observation_shape)
        most, kept = self.config.num_latents, self.config.data
        slots = int(np.clip(kept.megabytes * 2**18 // ((H + 1) * D), 1, kept.episodes))
        zero, missing = np.asarray(0, np.int64), np.asarray(np.nan, np.float32)
        return GeneralState(
            key=key,
            iteration=zero,
            episodes=zero,
            env_steps=zero,
            data=no_episodes(slots, H, D),
            decoders=no_decoders(H, self.sampler.observation_shape, most, kept.fit_rows, kept.shared_rows),
            discovery=np.ones((H, most + 1, A), np.float32),
            reward=np.zeros((H, most + 1, A), np.float32),
            chance=np.asarray(1.0, np.float32),
            growth=np.zeros(H, np.float32),
            value=np.zeros(H, np.float32),
            charge=np.full(H, CHARGE, np.float32),
            race=np.zeros(H, np.int32),
            choice=np.zeros(H, np.int32),
            taught=np.zeros(H, np.float32),
            fresh_rows=np.zeros(H, np.int64),
            fresh_score=np.zeros(H, np.float32),
            raced_at=np.zeros(H, np.int64),
            transfer=np.asarray(0, np.float32),
            share_from=zero,
            levels_refit=zero,
            explore_return=missing,
            reached_level=missing,
            world=no_world(self.config.world_states, H, A, D),
        )

    def collect(self, state: GeneralState) -> GeneralState:
        """Run episodes towards the likeliest discovery, and keep them.

        Each round plans with the counts of those before. Once little is left to discover, every second round
        is greedy.
        """
        key, explore = stream(state.key, "collect", int(state.iteration)), self.config.explore
        if world_stage.is_on(state.world):
            return self.collect_world(state, key, 0)
        rng, E = numpy_generator(stream(key, "store")), explore.episodes // explore.rounds
        names = "data", "growth", "fresh_rows", "fresh_score"  # changed in place
        state = replace(state, **{name: getattr(state, name).copy() for name in names})
        returns, reached = [], []
        for i in range(explore.rounds):
            settled = i % 2 == 1 and float(state.chance) < explore.settled and not explore.reward_free
            policy = self.policy(state, "greedy" if settled else "optimistic")
            episodes = self.sampler.rollout(policy, jax.random.fold_in(key, i), E)
            if not int(state.iteration) and not i and not explore.reward_free:
                state = replace(state, world=world_stage.begin(state.world, episodes))
                if world_stage.is_on(state.world):
                    return self.collect_world(state, key, 1)
            self.keep(state, episodes, rng)
            state = planned(state, self.plan(self.cells(state), state))
            returns.append(float(np.asarray(episodes.reward).sum(1).mean()))
            reached.append(deepest_good_level(self.sampler, episodes))
        return replace(
            state,
            episodes=state.episodes + explore.episodes,
            env_steps=state.env_steps + explore.episodes * self.sampler.horizon,
            explore_return=np.asarray(returns[0], np.float32),
            reached_level=np.asarray(max(reached), np.float32),
        )

    def collect_world(self, state: GeneralState, key: PRNGKeyArray, first: int) -> GeneralState:
        """Run the rounds from `first` on in a world whose states are the same at every level."""
        found = world_stage.collect(state.world, self.sampler, self.config, key, first)
        E = self.config.explore.episodes
        if int(found.world.mode) == POOLED:
            state = replace(state, data=state.data.copy())
            world_stage.keep(state.data, found.episodes)
        return replace(
            state,
            world=found.world,
            episodes=state.episodes + E,
            env_steps=state.env_steps + E * self.sampler.horizon,
            levels_refit=np.asarray(0, np.int64),
            explore_return=np.asarray(found.explore_return, np.float32),
        )

    def pool(self, state: GeneralState) -> GeneralState:
        """Find states of all levels together, and use them if they predict fresh episodes better."""
        rng = numpy_generator(stream(state.key, "pool", int(state.iteration)))
        reward = state.data.filled()[2]
        bins = reward_bins(reward.ravel()).reshape(reward.shape)
        world = pooling.pooled_world(state.world, state.data, bins, int(state.episodes), rng)
        if world_stage.is_on(world):
            world = world_stage.with_discovery(world, self.config)
        return replace(state, world=world)

    def keep(self, state: GeneralState, episodes, rng: np.random.Generator) -> None:
        """Label further episodes, offer them to the store and note which levels grew, in place."""
        action, reward = np.asarray(episodes.action), np.asarray(episodes.reward)
        x = np.asarray(episodes.observation, np.float32).reshape(*action.shape[:1], action.shape[1] + 1, -1)
        label = np.zeros(x.shape[:2], np.int32)
        for h in range(action.shape[1]):
            label[:, h] = labels(state.decoders, h, x[:, h])
        if self.config.fit.fresh_test:
            fresh_test.observe(state, x, label, action, self.sampler.num_actions)
        grow(state, label, action)
        insert(state.data, x, action, reward, label, self.sampler.num_actions, rng)
        n = int(state.data.size)
        state.data.label[:n, -1] = self.levels.bins(state.data.reward[:n, -1])

    def cells(self, state: GeneralState) -> Cells:
        """Counts and rewards of the kept episodes."""
        label, action, reward = state.data.filled()
        return count_cells(label, action, reward, slots(state.decoders) + 1, self.sampler.num_actions)

    def plan(self, cells: Cells, state: GeneralState) -> Plan:
        """Plan on all cells, for exploration and for reward."""
        explore = self.config.explore
        blind = np.append(self.levels.blind(state)[1:], 0.0)
        curve = discovery_curve(cells.counts, explore.max_tries, explore.prior_cells)
        return plan_cells(cells, curve, blind, explore.blind_tries)

    def policy(self, state: GeneralState, kind: PolicyKind = "greedy") -> StatePolicy | WorldPolicy:
        """`greedy` maximises the reward, `optimistic` the probability of a discovery."""
        if world_stage.is_on(state.world):
            return world_stage.policy(state.world, kind, self.config)
        greedy, most = kind != "optimistic", slots(state.decoders)
        value = (state.reward if greedy else state.discovery)[:, : most + 1]
        tolerance = 1.0 if greedy else self.config.explore.tolerance
        return state_policy(state.decoders, most, value, tolerance, greedy)

    def decode(
        self, state: GeneralState, level: int, observations: Float[Array, "n ..."]
    ) -> Float[Array, "n K"]:
        x = np.asarray(observations).reshape(len(observations), -1)
        if world_stage.is_on(state.world):
            return jnp.asarray(world_stage.decoded(state.world, level, x))
        return jnp.asarray(probabilities(state.decoders, level, x), jnp.float32)

    def decode_levels(
        self, state: GeneralState, observations: Float[Array, "H n ..."]
    ) -> Float[Array, "H n K"]:
        return jnp.stack([self.decode(state, h, own) for h, own in enumerate(observations)])

    def stored_rows(self, state: GeneralState) -> StoredRows:
        data, shape = state.data, self.sampler.observation_shape
        x = np.swapaxes(data.observation, 0, 1).reshape(*data.observation.shape[1::-1], *shape)
        valid = np.broadcast_to(np.arange(len(data.action)) < int(data.size), data.action.T.shape)
        return StoredRows(
            jnp.asarray(x[:-1]), data.action.T, data.reward.T, jnp.asarray(x[1:]), valid, valid, None
        )

    def metrics(self, state: GeneralState) -> dict[str, float]:
        """Measurements of the last update, for metrics.csv."""
        on = world_stage.is_on(state.world)
        states = state.world.size[:1] if on else used_states(state)
        return {
            "representation": int(state.world.mode),
            "explore_return": float(state.explore_return),
            "reached_level": float(state.reached_level),
            "replearn_gap": float(state.value.mean()),
            "levels_refit": int(state.levels_refit),
            "discovery_chance": float(state.world.chance if on else state.chance),
            "states_mean": float(states.mean()),
            "states_most": int(states.max()),
        }
