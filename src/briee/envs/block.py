"""Pure block MDPs: H steps in which the agent sees only emissions of a latent state. Their base class, the
finite MDP of their latent states, and episodes of any pure environment.

An episode has one key k. Its initial state is drawn with fold_in(k, 0) and step t with fold_in(k, t + 1),
split into transition, reward and observation. Gymnasium shells and compiled rollouts therefore agree.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int, Key, PRNGKeyArray

from briee.envs.emission import Index
from briee.envs.exogenous import ExogenousEmission
from briee.protocols import Environment, Knowledge

POSSIBLE = 1e-6
"""Smaller probabilities are rounding errors of float32 tables."""

LATER_EPISODES = 0x7FFFFFFF
"""Episode n >= 1 after a seeded reset has the key fold_in(fold_in(k, LATER_EPISODES), n)."""


class BlockState(eqx.Module):
    """The state of an episode: latent state, level, and the observation emitted on arrival."""

    latent: Int[Array, ""]
    level: Int[Array, ""]
    emission: Float[Array, ...]
    exogenous: Float[Array, " coordinates"] | None = eqx.field(default=None, kw_only=True)
    """Coordinates with dynamics of their own, if the environment has any."""


EXOGENOUS = 0x65786F67
"""Folded into the key of an observation to draw its exogenous coordinates."""

DECODED = 2_000
"""Observations of each latent state and level from which the errors of the best decoder are estimated."""


class Block(eqx.Module):
    """Episodes of `horizon` steps whose latent states are observed only through `emission`."""

    emission: eqx.AbstractVar[Any]
    horizon: eqx.AbstractVar[int]
    num_latents: eqx.AbstractVar[int]

    def observation(self, state: BlockState, rng: PRNGKeyArray) -> Float[Array, ...]:
        """The observation emitted on arrival; it is part of the state because the simplex lock acts on it."""
        return state.emission

    def arrive(
        self, latent: Int[Array, ""], level: Int[Array, ""], before: BlockState | None, rng: PRNGKeyArray
    ) -> tuple[Float[Array, ...], Float[Array, " coordinates"] | None]:
        """The observation of a new latent state, and the exogenous coordinates after a step of their own.

        `before` is the state that was left, None at the start of an episode.
        """
        if not isinstance(self.emission, ExogenousEmission):
            return self.emission(latent, level, rng), None
        own = jax.random.fold_in(rng, EXOGENOUS)
        if before is None:
            process = self.emission.start(own)
        else:
            assert before.exogenous is not None
            process = self.emission.move(before.exogenous, own)
        return self.emission.show(latent, level, process, rng), process

    def terminal(self, state: BlockState, rng: PRNGKeyArray) -> Bool[Array, ""]:
        """True at level H."""
        return state.level >= self.horizon

    @property
    def observation_shape(self) -> tuple[int, ...]:
        """Shape of one observation."""
        return self.emission.shape

    @property
    def observation_bounds(self) -> tuple[float, float]:
        """Lower and upper bound of every coordinate of an observation."""
        return self.emission.bounds

    @property
    def optimal_return(self) -> float:
        """Best expected return, by dynamic programming on the latent states.

        With heavy-tailed noise, that of the same policy acting on the most likely latent state of each
        observation: no decoder is always right there.
        """
        if self.emission.degrees_of_freedom is None:
            return self.latent_model().optimal_return()
        return self.latent_model().decoded_return(confusion(self))

    @property
    def held_out(self) -> Block | None:
        """The same environment with observations kept apart for evaluation; None if there are none."""
        other = self.emission.held_out
        return None if other is None else eqx.tree_at(lambda block: block.emission, self, other)

    # -- ground truth, for diagnostics, oracles and tests ----------------------------------------------

    def latent(self, state: BlockState) -> Int[Array, ""]:
        """The latent state, for diagnostics only."""
        return state.latent

    def level(self, state: BlockState) -> Int[Array, ""]:
        """The level, 0 to H."""
        return state.level

    def emit(self, latent: Index, level: Index, rng: PRNGKeyArray) -> Float[Array, ...]:
        """One observation of a given latent state at a given level."""
        return self.emission(jnp.asarray(latent, jnp.int32), jnp.asarray(level, jnp.int32), rng)

    def ground_truth_features(
        self, level: Index, observation: Float[Array, ...]
    ) -> Float[Array, " num_latents"]:
        """ψ*(s): the one-hot vector of the latent state."""
        return jax.nn.one_hot(self.emission.decode(level, observation), self.num_latents)

    def latent_model(self) -> LatentModel:
        """Tables of the latent states, without observations."""
        raise NotImplementedError


def cdf(table: np.ndarray) -> np.ndarray:
    """Cumulative probabilities along the last axis, f32, ending in exactly 1."""
    total = np.cumsum(table, axis=-1)
    return np.where(total >= total[..., -1:] - 1e-12, 1.0, total).astype(np.float32)


def probabilities(cumulative: Float[Array, "... n"]) -> np.ndarray:
    """The inverse of `cdf`, f64[..., n]."""
    return np.diff(np.asarray(cumulative, np.float64), axis=-1, prepend=0.0)


def sample_cdf(cumulative: Float[Array, " n"], rng: PRNGKeyArray) -> Int[Array, ""]:
    """One index, from one uniform number; an index of probability 0 is never drawn."""
    return jnp.sum(jax.random.uniform(rng) >= cumulative).astype(jnp.int32)


@dataclass(frozen=True)
class LatentModel:
    """The finite MDP of Z latent states, A actions and H levels; dynamic programming in NumPy, float64.

    initial [Z]: start distribution; transition [H, Z, A, Z]: probabilities; reward [H, Z, A]: expectations.
    """

    initial: np.ndarray
    transition: np.ndarray
    reward: np.ndarray

    @property
    def horizon(self) -> int:
        """Number of levels H."""
        return self.reward.shape[0]

    def q_values(self, features: np.ndarray | None = None) -> np.ndarray:
        """Q*[H, Z, A] of the latent states.

        With `features` f64[Z, N, Z], the agent observes one of N equally likely weight vectors w over latent
        states instead of z, and the latent state is resampled from w before the transition:
        V(z) = mean_n max_a Σ_z' w_n(z') Q(z', a).
        """
        q = np.zeros_like(self.reward)
        value = np.zeros(self.reward.shape[1])
        for h in reversed(range(self.horizon)):
            q[h] = self.reward[h] + self.transition[h] @ value
            value = state_value(q[h], features)
        return q

    def optimal_return(self, features: np.ndarray | None = None) -> float:
        """Value of the optimal policy from the start distribution."""
        return float(self.initial @ state_value(self.q_values(features)[0], features))

    def decoded_return(self, decoded: np.ndarray) -> float:
        """Value of the optimal policy if it acts on decoded states: f64[H, Z, Z] says how z is decoded."""
        value = np.zeros(self.reward.shape[1])
        for h, best in reversed([*enumerate(self.q_values().argmax(axis=2))]):
            value = np.sum(decoded[h] * (self.reward[h] + self.transition[h] @ value)[:, best], axis=1)
        return float(self.initial @ value)

    def sure_return(self) -> float:
        """The largest return that some policy reaches in every episode, if rewards are deterministic."""
        value = np.zeros(self.reward.shape[1])
        for transition, reward in zip(self.transition[::-1], self.reward[::-1], strict=True):
            worst = np.where(transition > POSSIBLE, value, np.inf).min(axis=-1)
            value = (reward + worst).max(axis=1)
        return float(value[self.initial > POSSIBLE].min())

    def reachable(self) -> np.ndarray:
        """bool[H + 1, Z]: latent states that some policy reaches with positive probability."""
        reached = [self.initial > 0]
        for step in self.transition:
            reached.append((step[reached[-1]] > 0).any(axis=(0, 1)))
        return np.stack(reached)


def state_value(q: np.ndarray, features: np.ndarray | None) -> np.ndarray:
    """V[Z] from Q[Z, A]: the maximum over actions, averaged over weight vectors (see `q_values`)."""
    if features is None:
        return q.max(axis=1)
    # Equal columns are compared once: a lock has few distinct ones.
    return (features @ np.unique(q, axis=1)).max(axis=2).mean(axis=1)


@eqx.filter_jit
def _decoded(pure: Block, key: PRNGKeyArray, samples: int) -> Float[Array, "H Z Z"]:
    def share(level: Int[Array, ""], latent: Int[Array, ""]) -> Float[Array, " Z"]:
        keys = jax.random.split(jax.random.fold_in(jax.random.fold_in(key, level), latent), samples)
        guess = jax.vmap(lambda key: pure.emission.decode(level, pure.emit(latent, level, key)))(keys)
        return jnp.mean(jax.nn.one_hot(guess, pure.num_latents), axis=0)

    latents = jnp.arange(pure.num_latents)
    return jax.lax.map(
        lambda level: jax.vmap(share, (None, 0))(level, latents), jnp.arange(pure.horizon, dtype=jnp.int32)
    )


def confusion(pure: Block, samples: int = DECODED) -> np.ndarray:
    """f64[H, Z, Z]: how often the best decoder takes z for each state, from `samples` observations."""
    return np.asarray(_decoded(pure, jax.random.key(0), samples), np.float64)


def episode_step(pure: Environment, state: Any, action: Int[Array, ""], key: PRNGKeyArray):
    """One step with the episode's own key: (next state, observation, reward, terminated)."""
    step_key = jax.random.fold_in(key, pure.level(state) + 1)
    transition, reward, observation = jax.random.split(step_key, 3)
    next_state = pure.transition(state, action, transition)
    return (
        next_state,
        pure.observation(next_state, observation),
        pure.reward(state, action, next_state, reward),
        pure.terminal(next_state, observation),
    )


def episode_start(pure: Environment, key: PRNGKeyArray):
    """The initial state of the episode with this key, and its observation."""
    start, observation = jax.random.split(jax.random.fold_in(key, 0))
    state = pure.initial(start)
    return state, pure.observation(state, observation)


@eqx.filter_jit
def start_episodes(pure: Environment, keys: Key[Array, " n"]):
    """Initial states of a batch of episodes, keys [n]: (state, observation, latent)."""
    state, observation = jax.vmap(lambda key: episode_start(pure, key))(keys)
    return state, observation, jax.vmap(pure.latent)(state)


@eqx.filter_jit
def step_episodes(pure: Environment, state: Any, actions: Int[ArrayLike, " n"], keys: Key[Array, " n"]):
    """One step of a batch of episodes, keys [n]: (state, observation, reward, latent)."""
    step = jax.vmap(lambda state, action, key: episode_step(pure, state, action, key))
    state, observation, reward, _ = step(state, actions, keys)
    return state, observation, reward, jax.vmap(pure.latent)(state)


@jax.jit
def later_keys(roots: Key[Array, " n"], episode: Int[ArrayLike, ""]) -> Key[Array, " n"]:
    """Keys [n] of the episodes with this number after the ones with the keys `roots` [n]."""
    fold = jax.vmap(jax.random.fold_in, (0, None))
    return fold(fold(roots, LATER_EPISODES), episode)


def is_pure(env: Any) -> bool:
    """Whether an object looks like a pure environment."""
    return all(hasattr(env, name) for name in ("initial", "transition", "observation", "horizon"))


def is_dense(pure: Environment) -> bool:
    """Whether an environment says that it rewards every good step."""
    return bool(getattr(pure, "dense", False))


def knowledge_of(pure: Environment) -> Knowledge:
    """Collect the optional members of a pure environment, possibly a user's own; nothing else probes it."""
    latent_model = getattr(pure, "latent_model", None)
    return Knowledge(
        latent_model=None if latent_model is None else latent_model(),
        features=hasattr(pure, "ground_truth_features"),
        soft=getattr(pure, "temperature", None) is not None,
        dense=is_dense(pure),
        exact=getattr(pure, "block", None),
        held_out=getattr(pure, "held_out", None),
    )
