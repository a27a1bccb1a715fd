"""Episodes of pure environments, and the convention by which their random keys are derived.

An episode has one key k. Its initial state is drawn with fold_in(k, 0) and step t with fold_in(k, t + 1),
split into transition, reward and observation. Gymnasium shells and compiled rollouts therefore agree.
"""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
from jax.typing import ArrayLike
from jaxtyping import Array, Int, PRNGKeyArray

from briee.protocols import Environment

LATER_EPISODES = 0x7FFFFFFF
"""Episode n >= 1 after a seeded reset has the key fold_in(fold_in(k, LATER_EPISODES), n)."""


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
def start_episodes(pure: Environment, keys: PRNGKeyArray):
    """Initial states of a batch of episodes, keys [n]: (state, observation, latent)."""
    state, observation = jax.vmap(lambda key: episode_start(pure, key))(keys)
    return state, observation, jax.vmap(pure.latent)(state)


@eqx.filter_jit
def step_episodes(pure: Environment, state: Any, actions: Int[ArrayLike, " n"], keys: PRNGKeyArray):
    """One step of a batch of episodes, keys [n]: (state, observation, reward, latent)."""
    step = jax.vmap(lambda state, action, key: episode_step(pure, state, action, key))
    state, observation, reward, _ = step(state, actions, keys)
    return state, observation, reward, jax.vmap(pure.latent)(state)


@jax.jit
def later_keys(roots: PRNGKeyArray, episode: Int[ArrayLike, ""]) -> PRNGKeyArray:
    """Keys [n] of the episodes with this number after the ones with the keys `roots` [n]."""
    fold = jax.vmap(jax.random.fold_in, (0, None))
    return fold(fold(roots, LATER_EPISODES), episode)
