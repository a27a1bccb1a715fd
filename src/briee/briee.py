"""BRIEE, Algorithm 1: collect, learn features, explore where they are rare, plan, repeat.

Symbols: H horizon, D_h and D'_h data of level h (see `briee.data`), phi_h features, b_h bonus, pi policy. An
update is a pure function of the state: every random number comes from `state.key` and the iteration.
"""

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from briee.config import BrieeConfig
from briee.data import Buffers, Transitions, empty_buffers, insert
from briee.features import Decoder, Standard, at_level, standard_of
from briee.lsvi import Bonus, GreedyPolicy, QFunction, exploration_bonus, lsvi, upper_bound
from briee.networks import maker
from briee.randomness import stream
from briee.replearn import replearn
from briee.rollout import (
    MixturePolicy,
    Policy,
    Sampler,
    UniformPolicy,
    all_rows,
    collect_deviations,
    deepest_good_level,
    deviation_steps,
)


class BrieeState(eqx.Module):
    """Everything that one update hands to the next."""

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


class BRIEE:
    """Algorithm 1 on the environment behind `sampler`."""

    name = "briee"
    has_mixture = True

    def __init__(self, sampler: Sampler, config: BrieeConfig, network: Any = None):
        """`network` is the Equinox module meant by the decoder `custom`."""
        features, shape = config.features, sampler.observation_shape
        self.sampler = sampler
        self.config = config
        self.make_network = maker(features.decoder, shape, features.num_latents, network)

    def update(self, state: BrieeState) -> BrieeState:
        """One iteration n of Algorithm 1."""
        state = self.collect(state)  # Alg. 1, l. 4
        state = self.represent(state)  # Alg. 1, l. 5
        return self.plan(state)  # Alg. 1, l. 6 and 7

    def init(self, key: PRNGKeyArray) -> BrieeState:
        """Alg. 1, l. 2: empty buffers, random features, and a policy without preferences."""
        H, A, shape = self.sampler.horizon, self.sampler.num_actions, self.sampler.observation_shape
        K, lam = self.config.features.num_latents, self.config.lsvi.lam
        decoder = self.random_decoders(stream(key, "init"))
        factor = jnp.broadcast_to(jnp.eye(K) / jnp.sqrt(lam), (H, A, K, K))
        bonus = Bonus(factor, jnp.float32(self.config.bonus.alpha), upper_bound(self.config.bonus.cap))
        q = QFunction(decoder, jnp.zeros((H, A, K)), upper_bound(self.config.lsvi.clip))
        optimistic, M = replace(q, bonus=bonus), self.config.mixture_size
        zero, missing = np.asarray(0, np.int64), jnp.float32(jnp.nan)
        return BrieeState(
            key=key,
            iteration=zero,
            episodes=zero,
            env_steps=zero,
            buffers=empty_buffers(H, self.config.collect.buffer_size, shape),
            decoder=decoder,
            optimistic=optimistic,
            greedy=q,
            members=jax.tree.map(lambda x: jnp.stack([x] * M) if M else jnp.zeros((0, *x.shape)), optimistic),
            gaps=jnp.full(H, jnp.inf),
            rounds=jnp.zeros(H, jnp.int32),
            explore_return=missing,
            reached_level=missing,
        )

    def collect(self, state: BrieeState) -> BrieeState:
        """Alg. 1, l. 4: for every level, roll in with the policy, deviate once (D_h) and twice (D'_h)."""
        if state.iteration == 0:
            state = self.warm_up(state)
        H, m = self.sampler.horizon, self.config.collect.episodes_per_level
        key = stream(state.key, "collect", int(state.iteration))
        rows, trajectories = collect_deviations(self.sampler, self.policy(state, "optimistic"), key, m)
        explore_return = trajectories.reward[-m:].sum(axis=1).mean()
        reached_level = jnp.float32(deepest_good_level(self.sampler, trajectories))
        del trajectories  # hundreds of megabytes at H = 100, and the buffers are about to be copied
        return replace(
            state,
            episodes=state.episodes + H * m,
            env_steps=state.env_steps + deviation_steps(H, m),
            buffers=insert(state.buffers, rows),
            members=self.remember(state),
            explore_return=explore_return,
            reached_level=reached_level,
        )

    def remember(self, state: BrieeState) -> QFunction:
        """The mixture's members with the policy that collects next: a uniform sample of all so far."""
        n, M = int(state.iteration), self.config.mixture_size
        key = stream(state.key, "mixture", n)
        slot = n if n < M else int(jax.random.randint(key, (), 0, n + 1))
        if slot >= M:
            return state.members
        return jax.tree.map(lambda kept, new: kept.at[slot].set(new), state.members, state.optimistic)

    def warm_up(self, state: BrieeState) -> BrieeState:
        """Appendix E: full episodes of a uniformly random policy before the first update, in batches."""
        episodes, H = self.config.collect.warmup_episodes, self.sampler.horizon
        buffers = state.buffers
        for start in range(0, episodes, 1000):
            key = stream(state.key, "warm_up", start)
            batch = min(1000, episodes - start)
            trajectories = self.sampler.rollout(UniformPolicy(self.sampler.num_actions), key, batch)
            buffers = insert(buffers, all_rows(trajectories))
        return replace(
            state,
            episodes=state.episodes + episodes,
            env_steps=state.env_steps + episodes * H,
            buffers=buffers,
        )

    def represent(self, state: BrieeState) -> BrieeState:
        """Alg. 1, l. 5: RepLearn on D_h and D'_h, every level on its own, several levels at a time."""
        H, config = self.sampler.horizon, self.config.replearn
        key = stream(state.key, "replearn", int(state.iteration))
        start = state.decoder if config.start == "previous" else self.random_decoders(stream(key, "start"))
        rivals = self.random_decoders(stream(key, "rival"))

        def learn(h: int):
            level_key, data = jax.random.fold_in(key, h), state.buffers.level(h)
            players = at_level(start, h), at_level(rivals, h)
            return jax.block_until_ready(
                _replearn(level_key, data, players, config, self.sampler.num_actions)
            )

        with ThreadPoolExecutor(self.config.workers or len(os.sched_getaffinity(0))) as pool:
            results = list(pool.map(learn, range(H)))
        decoder = jax.tree.map(lambda *levels: jnp.stack(levels), *[r.decoder for r in results])
        gaps = jnp.stack([r.gaps[r.rounds - 1] for r in results])
        return replace(state, decoder=decoder, gaps=gaps, rounds=jnp.stack([r.rounds for r in results]))

    def plan(self, state: BrieeState) -> BrieeState:
        """Alg. 1, l. 6 and 7: the bonus, the optimistic plan that explores, and the plan without bonus."""
        optimistic, greedy = _plan(state.buffers.rows, state.decoder, self.config, self.sampler.num_actions)
        return replace(state, optimistic=optimistic, greedy=greedy, iteration=state.iteration + 1)

    def policy(
        self, state: BrieeState, kind: Literal["greedy", "optimistic", "mixture"] = "greedy"
    ) -> Policy:
        """The last policy, without bonus or with it as used for collecting data; or Theorem 1's mixture."""
        if kind == "mixture":
            size = min(int(state.iteration), self.config.mixture_size)
            if size == 0:
                raise ValueError("no past policy was kept: train with mixture_size >= 1 for the mixture")
            return MixturePolicy(GreedyPolicy(state.members), jnp.int32(size))
        return GreedyPolicy(state.greedy if kind == "greedy" else state.optimistic)

    def decode(
        self, state: BrieeState, level: int, observations: Float[Array, "n ..."]
    ) -> Float[Array, "n K"]:
        """Soft latent states of observations at one level."""
        return jax.vmap(at_level(state.decoder, level))(observations)

    def metrics(self, state: BrieeState) -> dict[str, float]:
        """What the last update did, for the run's table."""
        return {
            "explore_return": float(state.explore_return),
            "reached_level": float(state.reached_level),
            "replearn_gap": float(state.gaps.max()),
            "replearn_rounds": float(state.rounds.mean()),
            "levels_refit": self.sampler.horizon,
        }

    def random_decoders(self, key: PRNGKeyArray) -> Decoder:
        """Decoders of all levels with random weights, stacked."""
        H, features = self.sampler.horizon, self.config.features
        temperature = jnp.full(H, features.temperature).at[0].set(features.first_temperature)
        mean = jnp.zeros(self.sampler.observation_shape)
        standard = Standard(mean, jnp.float32(1)) if features.standardize else None
        make = lambda key, tau: Decoder(self.make_network(key), tau, standard)  # noqa: E731
        return jax.vmap(make)(jax.random.split(key, H), temperature)


@eqx.filter_jit
def _replearn(key, data: Transitions, players: tuple[Decoder, Decoder], config, num_actions: int):
    """RepLearn on one level, with standardised observations if the decoders have a standard."""
    decoder, rival = players
    if decoder.standard is not None:
        standard = standard_of(data.observation, data.valid)
        decoder, rival = replace(decoder, standard=standard), replace(rival, standard=standard)
        after = standard_of(data.next_observation, data.valid)
        data = replace(data, next_observation=jax.vmap(after)(data.next_observation))
    return replearn(key, data, decoder, rival, config, num_actions)


@eqx.filter_jit
def _plan(data: Transitions, decoder: Decoder, config: BrieeConfig, num_actions: int):
    lam, clip = config.lsvi.lam, config.lsvi.clip
    bonus = exploration_bonus(data, decoder, config.bonus, lam, num_actions)  # Alg. 1, l. 6
    optimistic = lsvi(data, decoder, lam, num_actions, bonus=bonus, clip=clip)  # Alg. 1, l. 7
    return optimistic, lsvi(data, decoder, lam, num_actions, clip=clip)
