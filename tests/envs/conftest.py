"""Shared by the environment tests: a compiled rollout that keeps everything, latent states included."""

from __future__ import annotations

import math
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from briee.envs.block import episode_start, episode_step


class Episodes(NamedTuple):
    """E episodes: observation [E, H + 1, ...], latent, source [E, H + 1], action, reward, terminal [E, H]."""

    observation: np.ndarray
    latent: np.ndarray
    source: np.ndarray
    action: np.ndarray
    reward: np.ndarray
    terminal: np.ndarray


@eqx.filter_jit
def _roll(pure, policy, keys):
    def episode(key):
        start, observation = episode_start(pure, key)

        def body(carry, level):
            state, observation = carry
            action_key = jax.random.fold_in(jax.random.fold_in(key, 999), level)
            action = policy(pure, state, observation, action_key).astype(jnp.int32)
            following, seen, reward, done = episode_step(pure, state, action, key)
            source = getattr(following, "source", state.latent)
            return (following, seen), (seen, pure.latent(following), source, action, reward, done)

        _, out = jax.lax.scan(body, (start, observation), jnp.arange(pure.horizon))
        seen, latent, source, action, reward, done = out
        first = pure.latent(start)
        return (
            jnp.concatenate([observation[None], seen]),
            jnp.concatenate([first[None], latent]),
            jnp.concatenate([first[None], source]),
            action,
            reward,
            done,
        )

    return jax.vmap(episode)(keys)


@pytest.fixture(scope="session")
def roll():
    """`roll(pure, policy, episodes, seed)` with `policy(pure, state, observation, key) -> action`."""

    def run(pure, policy, episodes: int, seed: int = 0) -> Episodes:
        keys = jax.random.split(jax.random.key(seed), episodes)
        return Episodes(*(np.asarray(x) for x in _roll(pure, policy, keys)))

    return run


def uniform_policy(pure, state, observation, key):
    """Any action."""
    return jax.random.randint(key, (), 0, pure.num_actions)


def right_policy(pure, state, observation, key):
    """The right action of the true latent state; it cheats."""
    return pure.right_action(state.latent, state.level)


@pytest.fixture(scope="session")
def policies():
    """Policies that look at the latent state or at nothing."""
    return {"uniform": uniform_policy, "right": right_policy}


@pytest.fixture(scope="session")
def assert_frequency():
    """Hoeffding's bound: a true frequency fails this with probability at most 1e-6."""

    def check(hits: np.ndarray, probability: float) -> None:
        hits = np.asarray(hits, float).ravel()
        assert hits.size >= 200, "too few events to say anything"
        bound = math.sqrt(math.log(2 / 1e-6) / (2 * hits.size))
        assert abs(hits.mean() - probability) <= bound, (hits.mean(), probability, hits.size)

    return check
