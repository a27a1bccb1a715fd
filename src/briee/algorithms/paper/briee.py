"""BRIEE, Algorithm 1: collect, learn features, add a bonus for rare ones, plan, repeat.

Symbols: H horizon, D_h and D'_h data of level h (see `buffers`), phi_h features, b_h bonus. An update is a
pure function of the state: every random number comes from `state.key` and the iteration.
"""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from math import prod
from typing import Any, TypeVar, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from briee.algorithms.bonus import Bonus, exploration_bonus, upper_bound
from briee.algorithms.paper.buffers import Buffers, Transitions, empty_buffers, insert
from briee.algorithms.paper.collection import (
    all_rows,
    collect_deviations,
    collect_episodes,
    deviation_steps,
)
from briee.algorithms.paper.config import BrieeConfig
from briee.algorithms.paper.decoders import Decoder, Encoded, Standard, encode, maker, standard_of
from briee.algorithms.paper.level_features import growth, learn_level, with_levels
from briee.algorithms.paper.lsvi import QFunction, lsvi
from briee.algorithms.paper.replearn import Discriminator, first_discriminators, replearn
from briee.algorithms.paper.softness import is_due, softness
from briee.compute import available_cores
from briee.numerics.keys import stream
from briee.numerics.linalg import at_level
from briee.protocols import Algorithm, Capabilities, PhaseHook, Policy, PolicyKind, Sampler, no_phases
from briee.rollout.policies import GreedyPolicy, MixturePolicy, UniformPolicy
from briee.rollout.samplers import deepest_good_level
from briee.rollout.trajectories import StoredRows

LEVELS_AT_ONCE = 16
"""Levels whose discriminators are initialised at once; all of them together may need too much memory."""


class BrieeState(eqx.Module):
    """State between two updates."""

    key: PRNGKeyArray
    iteration: Int[np.ndarray, ""]
    episodes: Int[np.ndarray, ""]
    env_steps: Int[np.ndarray, ""]
    buffers: Buffers
    decoder: Decoder
    optimistic: QFunction
    greedy: QFunction
    members: QFunction
    gaps: Float[Array, " H"]
    rounds: Int[Array, " H"]
    explore_return: Float[Array, ""]
    reached_level: Float[Array, ""]
    growth: Float[Array, " H"] | None = eqx.field(default=None, kw_only=True)
    """Growth of log det Sigma since a level was learned last, if the episodes are whole; infinite before."""


B = TypeVar("B", bound=BrieeState)


class BrieeAlgorithm(Algorithm[B]):
    """Algorithm 1 on the environment behind `sampler`."""

    name = "briee"
    capabilities = Capabilities(decodes=True, mixture=True, keeps_rows=True)
    config: BrieeConfig

    def __init__(self, sampler: Sampler, config: BrieeConfig, network: Any = None):
        """`network` is the Equinox module that the decoder `custom` stands for."""
        self.sampler = sampler
        self.config = config
        features, shape = config.features, sampler.observation_shape
        self.make_network = maker(features.decoder, shape, features.num_latents, network)
        self.encoded: tuple[Decoder, Transitions, Transitions] | None = None

    def update(self, state: B, phase: PhaseHook = no_phases) -> B:
        """One iteration n of Algorithm 1."""
        phase("collect")
        state = self.collect(state)  # Alg. 1, l. 4
        phase("represent")
        state = self.learn_features(state)  # Alg. 1, l. 5
        phase("plan")
        bonus = self.bonus(state)  # Alg. 1, l. 6
        return self.plan(state, bonus)  # Alg. 1, l. 7

    def init(self, key: PRNGKeyArray) -> B:
        """Alg. 1, l. 2: empty buffers, random features, and a policy without preferences."""
        H, A, shape = self.sampler.horizon, self.sampler.num_actions, self.sampler.observation_shape
        K, lam = self.config.features.num_latents, self.config.bonus_lam
        decoder = self.random_decoders(stream(key, "init"))
        if self.config.replearn.solver == "held_out":
            decoder = replace(decoder, temperature=self.temperature() * self.config.held_out.temperatures[0])
        factor = jnp.broadcast_to(jnp.eye(K) / jnp.sqrt(lam), (H, A, K, K))
        bonus = Bonus(factor, jnp.float32(self.config.bonus.alpha), upper_bound(self.config.bonus.cap))
        q = QFunction(decoder, jnp.zeros((H, A, K)), upper_bound(self.config.lsvi.clip))
        optimistic, M = replace(q, bonus=bonus), self.config.mixture_size
        zero, missing = np.asarray(0, np.int64), jnp.float32(jnp.nan)
        whole = self.config.collect.episodes is not None
        state = BrieeState(
            key=key,
            iteration=zero,
            episodes=zero,
            env_steps=zero,
            buffers=empty_buffers(H, self.config.collect.buffer_size, shape, whole),
            decoder=decoder,
            optimistic=optimistic,
            greedy=q,
            members=jax.tree.map(lambda x: jnp.stack([x] * M) if M else jnp.zeros((0, *x.shape)), optimistic),
            gaps=jnp.full(H, jnp.inf),
            rounds=jnp.zeros(H, jnp.int32),
            explore_return=missing,
            reached_level=missing,
            growth=jnp.full(H, jnp.inf) if whole else None,
        )
        return cast(B, state)

    def collect(self, state: B) -> B:
        """Alg. 1, l. 4: for every level, roll in with the policy, deviate once (D_h) and twice (D'_h)."""
        if state.iteration == 0:
            state = self.warm_up(state)
        if self.config.collect.episodes is not None:
            return self.collect_rounds(state, self.config.collect.episodes)
        H, m = self.sampler.horizon, self.config.collect.episodes_per_level
        key = stream(state.key, "collect", int(state.iteration))
        rows, trajectories = collect_deviations(self.sampler, self.policy(state, "optimistic"), key, m)
        explore_return = trajectories.reward[-m:].sum(axis=1).mean()
        reached_level = jnp.float32(deepest_good_level(self.sampler, trajectories))
        del trajectories  # hundreds of megabytes at H = 100, freed before the buffers are copied
        return replace(
            state,
            episodes=state.episodes + H * m,
            env_steps=state.env_steps + deviation_steps(H, m),
            buffers=state.buffers.with_rows(rows),
            members=self.remember(state),
            explore_return=explore_return,
            reached_level=reached_level,
        )

    def collect_rounds(self, state: B, episodes: int) -> B:
        """Alg. 1, l. 4 with whole episodes, a few at a time; bonus and plan follow the data after each round,
        with the features of the last update."""
        config, H = self.config.collect, self.sampler.horizon
        key = stream(state.key, "collect", int(state.iteration))
        codes = replace(state.buffers, rows=self.codes(state))
        members, rows, returns, reached = self.remember(state), [], [], []
        for i in range(config.rounds):
            policy, round_key = self.policy(state, "optimistic"), jax.random.fold_in(key, i)
            new, trajectories = collect_episodes(
                self.sampler, policy, round_key, episodes // config.rounds, config.deviating
            )
            codes = insert(codes, encode(state.decoder, new))
            state = self.replan(state, codes.rows)
            rows.append(new)
            returns.append(trajectories.reward.sum(axis=1).mean())
            reached.append(deepest_good_level(self.sampler, trajectories))
        together = jax.tree.map(lambda *parts: np.concatenate(parts, axis=1), *rows)
        return replace(
            state,
            episodes=state.episodes + episodes,
            env_steps=state.env_steps + episodes * H,
            buffers=state.buffers.with_rows(together),
            members=members,
            explore_return=jnp.float32(np.mean(returns)),
            reached_level=jnp.float32(max(reached)),
        )

    def remember(self, state: B) -> QFunction:
        """Add the policy that collects next to the mixture's members, a uniform sample of all so far."""
        n, M = int(state.iteration), self.config.mixture_size
        key = stream(state.key, "mixture", n)
        slot = n if n < M else int(jax.random.randint(key, (), 0, n + 1))
        if slot >= M:
            return state.members
        return jax.tree.map(lambda kept, new: kept.at[slot].set(new), state.members, state.optimistic)

    def warm_up(self, state: B) -> B:
        """Appendix E: full episodes of a uniformly random policy before the first update, in batches."""
        episodes, H = self.config.collect.warmup_episodes, self.sampler.horizon
        buffers = state.buffers
        for start in range(0, episodes, 1000):
            key = stream(state.key, "warm_up", start)
            batch = min(1000, episodes - start)
            trajectories = self.sampler.rollout(UniformPolicy(self.sampler.num_actions), key, batch)
            rows = all_rows(trajectories)
            no = None if buffers.rows.roll_in is None else jnp.zeros_like(rows.valid)
            buffers = buffers.with_rows(replace(rows, roll_in=no))
        return replace(
            state,
            episodes=state.episodes + episodes,
            env_steps=state.env_steps + episodes * H,
            buffers=buffers,
        )

    def learn_features(self, state: B) -> B:
        """Alg. 1, l. 5: RepLearn on D_h and D'_h, level by level, several levels in parallel."""
        H, config = self.sampler.horizon, self.config.replearn
        if config.solver == "held_out":
            return self.play_held_out(state)
        key = stream(state.key, "replearn", int(state.iteration))
        start = state.decoder if config.start == "previous" else self.random_decoders(stream(key, "start"))
        rivals, A = self.random_decoders(stream(key, "rival")), self.sampler.num_actions
        rows = state.buffers.rows.only(config.rows)
        level_keys = [jax.random.fold_in(key, h) for h in range(H)]

        def learn(h: int, first: Discriminator):
            data, decoder, rival = (at_level(tree, h) for tree in (rows, start, rivals))
            data = data if data.roll_in is None else data.first_valid()
            return jax.block_until_ready(_replearn(level_keys[h], data, decoder, rival, config, A, first))

        results, dimension = [], prod(self.sampler.observation_shape)
        with ThreadPoolExecutor(self.config.workers or available_cores()) as pool:
            for start_level in range(0, H, LEVELS_AT_ONCE):
                levels = range(start_level, min(start_level + LEVELS_AT_ONCE, H))
                first = [_first_discriminators(level_keys[h], dimension, config) for h in levels]
                results += pool.map(learn, levels, jax.block_until_ready(first))
        decoder = jax.tree.map(lambda *levels: jnp.stack(levels), *[r.decoder for r in results])
        gaps = jnp.stack([r.gaps[r.rounds - 1] for r in results])
        return replace(state, decoder=decoder, gaps=gaps, rounds=jnp.stack([r.rounds for r in results]))

    def play_held_out(self, state: B) -> B:
        """Alg. 1, l. 5 by the game on held-out rows, at the levels that have data which grew."""
        config, rows = self.config.replearn, state.buffers.rows.only(self.config.replearn.rows)
        key = stream(state.key, "replearn", int(state.iteration))
        table = self.temperature()
        factor = np.asarray(state.decoder.temperature / table).max()
        before = replace(state.decoder, temperature=table)  # the game finds states, not how soft they are
        assert state.growth is not None
        grown = (np.asarray(state.growth) > (config.growth or 0)) & np.asarray(rows.valid).any(-1)
        due = np.flatnonzero(grown).tolist()
        ranks, rows = state.buffers.ranks(), jax.tree.map(np.asarray, rows)
        learn = lambda h: learn_level(  # noqa: E731
            at_level(rows, h), ranks[h], before, h, jax.random.fold_in(key, h), self.config.held_out,
            self.sampler.num_actions,
        )  # fmt: skip
        with ThreadPoolExecutor(self.config.workers or available_cores()) as pool:
            results = list(pool.map(learn, due))
        decoder, gaps, rounds = with_levels(before, state.gaps, due, results)
        if is_due(int(state.iteration) + 1):
            factor = softness(decoder, rows, self.config.held_out, self.sampler.num_actions)
        decoder = replace(decoder, temperature=table * factor)
        growth = jnp.asarray(np.where(grown, np.float32(0), state.growth))
        return replace(state, decoder=decoder, gaps=gaps, rounds=rounds, growth=growth)

    def bonus(self, state: B) -> Bonus:
        """Alg. 1, l. 6: the bonus, from the covariance of the features at each level."""
        return self.bonus_of(self.codes(state))

    def codes(self, state: B) -> Transitions:
        """The rows with features in place of observations, which bonus, plan and the next update's first
        round need; the last ones are kept, because encoding is the largest part of a plan."""
        decoder, rows = state.decoder, state.buffers.rows
        if self.encoded is None or self.encoded[0] is not decoder or self.encoded[1] is not rows:
            self.encoded = decoder, rows, encode(decoder, rows)
        return self.encoded[2]

    def bonus_of(self, codes: Transitions) -> Bonus:
        """Alg. 1, l. 6 on encoded rows."""
        config, counted = self.config.bonus, codes.counted(self.config.bonus.covariance)
        A, alpha, cap = self.sampler.num_actions, config.alpha, config.cap
        return exploration_bonus(
            codes.observation, codes.action, counted, A, self.config.bonus_lam, alpha, cap
        )

    def plan(self, state: B, bonus: Bonus) -> B:
        """Alg. 1, l. 7: LSVI with the bonus, for exploration, and without it."""
        rows, psi = state.buffers.rows, state.decoder
        if state.growth is not None:  # the rounds planned with codes, which round differently
            rows, psi = self.codes(state), Encoded()
        optimistic, greedy = (self.q_function(state.decoder, rows, psi, b) for b in (bonus, None))
        return replace(state, optimistic=optimistic, greedy=greedy, iteration=state.iteration + 1)

    def q_function(
        self, decoder: Decoder, rows: Transitions, psi: Decoder | Encoded, bonus: Bonus | None
    ) -> QFunction:
        """Algorithm 3 on rows whose features are `psi`, for a policy that decodes with `decoder`."""
        config, A = self.config.lsvi, self.sampler.num_actions
        q = lsvi(rows.only(config.rows), psi, config.lam, A, bonus, clip=config.clip, prior=config.prior)
        return replace(q, decoder=decoder)

    def replan(self, state: B, codes: Transitions) -> B:
        """Bonus and exploring policy after a round of new data; the features are the same."""
        bonus, before = self.bonus_of(codes), state.optimistic.bonus
        assert state.growth is not None
        assert before is not None
        grown = state.growth + growth(before, bonus)
        optimistic = self.q_function(state.decoder, codes, Encoded(), bonus)
        return replace(state, optimistic=optimistic, growth=grown)

    def policy(self, state: B, kind: PolicyKind = "greedy") -> Policy:
        """The last plan without bonus, the one with bonus, which collects data, or Theorem 1's mixture."""
        if kind == "mixture":
            size = min(int(state.iteration), self.config.mixture_size)
            if size == 0:
                raise ValueError("no past policy was kept: train with mixture_size >= 1 for the mixture")
            return MixturePolicy(GreedyPolicy(state.members), jnp.int32(size))
        return GreedyPolicy(state.greedy if kind == "greedy" else state.optimistic)

    def decode(self, state: B, level: int, observations: Float[Array, "n ..."]) -> Float[Array, "n K"]:
        """Soft latent states of observations at one level."""
        return state.decoder.at(level, observations)

    def decode_levels(self, state: B, observations: Float[Array, "H n ..."]) -> Float[Array, "H n K"]:
        """Soft latent states of observations at each level."""
        return jnp.stack([self.decode(state, h, rows) for h, rows in enumerate(observations)])

    def stored_rows(self, state: B) -> StoredRows:
        """The replay buffers; `bonus.covariance` says which rows the bonus counts: D_h, or all of them."""
        rows, config = state.buffers.rows, self.config.bonus
        action, reward, valid = (np.asarray(leaf) for leaf in (rows.action, rows.reward, rows.valid))
        return StoredRows(
            rows.observation, action, reward, rows.next_observation, valid,
            counted=np.asarray(rows.counted(config.covariance)), rank=state.buffers.ranks(),
            bonus=(self.config.bonus_lam, config.alpha, config.cap),
        )  # fmt: skip

    def metrics(self, state: B) -> dict[str, float]:
        """Measurements of the last update, for metrics.csv."""
        gaps, measured = np.asarray(state.gaps), {}
        if state.growth is not None:  # infinite at levels that had no row yet
            gaps = gaps[np.isfinite(np.asarray(state.growth))]
            measured = {"temperature": float(state.decoder.temperature[-1])}
        return {
            "explore_return": float(state.explore_return),
            "reached_level": float(state.reached_level),
            "replearn_gap": float(gaps.max()) if len(gaps) else 0.0,
            "replearn_rounds": float(state.rounds.mean()),
            "levels_refit": int((np.asarray(state.rounds) > 0).sum()),
            **measured,
        }

    def temperature(self) -> Float[Array, " H"]:
        """tau of each level, as configured (Table 2)."""
        features = self.config.features
        return jnp.full(self.sampler.horizon, features.temperature).at[0].set(features.first_temperature)

    def random_decoders(self, key: PRNGKeyArray) -> Decoder:
        """Decoders of all levels with random weights, stacked."""
        H, features = self.sampler.horizon, self.config.features
        temperature = self.temperature()
        mean = jnp.zeros(self.sampler.observation_shape)
        standard = Standard(mean, jnp.float32(1)) if features.standardize else None
        bias = jnp.zeros(features.num_latents) if features.bias else None
        make = lambda key, tau: Decoder(self.make_network(key), tau, standard, bias)  # noqa: E731
        return jax.vmap(make)(jax.random.split(key, H), temperature)


_first_discriminators = eqx.filter_jit(first_discriminators)


@eqx.filter_jit
def _replearn(key, data: Transitions, decoder: Decoder, rival: Decoder, config, num_actions: int, first=None):
    """RepLearn on one level, with standardised observations if the decoders have a standard."""
    if decoder.standard is not None:
        standard = standard_of(data.observation, data.valid)
        decoder, rival = replace(decoder, standard=standard), replace(rival, standard=standard)
        after = standard_of(data.next_observation, data.valid)
        data = replace(data, next_observation=jax.vmap(after)(data.next_observation))
    return replearn(key, data, decoder, rival, config, num_actions, first)
