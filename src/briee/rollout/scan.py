"""The compiled sampler: episodes of a pure environment as one scan over the steps.

`briee.rollout.host` is its counterpart for any other Gymnasium environment.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Int, PRNGKeyArray

from briee.compute import available_cores, quick_jit
from briee.envs.episode import episode_start, episode_step
from briee.envs.knowledge import knowledge_of
from briee.protocols import Environment, Policy
from briee.rollout.policies import choose_action
from briee.rollout.trajectories import Trajectories

CHUNK = 500
"""Episodes per chunk of a long rollout; this many fit the CPU's cache."""
FEW = 100
"""Below this many episodes per call, compiling costs more than running."""
SMALL_CHUNK = 5
"""Episodes per chunk of a short rollout whose number of episodes is a multiple of this."""
CALLS = 8
"""Up to this many calls, reusing the jitted function of a small chunk is faster than compiling another."""


class ScanSampler:
    """Runs episodes of a pure environment as compiled scans."""

    def __init__(self, pure: Environment):
        self.pure = pure
        self.horizon: int = pure.horizon
        self.num_actions: int = pure.num_actions
        self.observation_shape: tuple[int, ...] = pure.observation_shape
        self.optimal_return: float | None = pure.optimal_return
        self.knowledge = knowledge_of(pure)

    def rollout(
        self, policy: Policy, key: PRNGKeyArray, episodes: int, deviation: Int[Array, " E"] | None = None
    ) -> Trajectories:
        """See `Sampler.rollout`.

        Chunks of episodes run in parallel, one per core. Each episode has its own keys, and the chunk size
        depends only on `episodes`, so the result depends neither on earlier calls nor on the number of cores.
        """
        size = chunk_size(episodes)
        chunks, scan = -(-episodes // size), _scan_few if size < FEW else _scan_many

        def run(chunk: int) -> Trajectories:
            first = min(chunk * size, episodes - size)  # all chunks have the same length
            own = None if deviation is None else deviation[first : first + size]
            return scan(self.pure, policy, key, size, own, np.asarray(first, np.int32))

        if chunks == 1:
            return run(0)
        with ThreadPoolExecutor(available_cores()) as pool:
            parts = list(pool.map(lambda chunk: jax.block_until_ready(run(chunk)), range(chunks)))
        twice = chunks * size - episodes  # episodes that the last two chunks share
        join = lambda *leaves: jnp.asarray(np.concatenate([*leaves[:-1], leaves[-1][twice:]]))  # noqa: E731
        return jax.tree.map(join, *(jax.tree.map(np.asarray, part) for part in parts))


def chunk_size(episodes: int) -> int:
    """Number of episodes per chunk of a rollout of `episodes` episodes."""
    if episodes < 2 * CHUNK:
        small = episodes % SMALL_CHUNK == 0 and episodes <= CALLS * SMALL_CHUNK
        return SMALL_CHUNK if small else episodes
    return -(-episodes // -(-episodes // CHUNK))


def episode_keys(key: PRNGKeyArray, index: Int[ArrayLike, " E"]) -> PRNGKeyArray:
    """Environment and policy keys [2, E] of the episodes with these indices in the rollout of `key`."""
    return jax.vmap(jax.vmap(jax.random.fold_in, (None, 0)), (0, None))(jax.random.split(key), index)


def run_levels(
    pure: Environment, act: Callable, key: PRNGKeyArray, index: Int[ArrayLike, " E"]
) -> tuple[Array, Array, Array, Array, Any]:
    """Run the episodes with these indices level by level.

    `act` is called once per level: (level, observations, keys) -> (actions, extra). Returns observations
    [H + 1, E, ...], actions and rewards [H, E], latent states [H + 1, E], and the stacked extras.
    """
    env_keys, policy_keys = episode_keys(key, index)

    def step(carry, level):
        state, seen = carry
        action, extra = act(level, seen, policy_keys)
        state, seen, reward, _ = jax.vmap(episode_step, (None, 0, 0, 0))(pure, state, action, env_keys)
        return (state, seen), (seen, action, reward, jax.vmap(pure.latent)(state), extra)

    start, first = jax.vmap(episode_start, (None, 0))(pure, env_keys)
    _, (seen, action, reward, latent, extra) = jax.lax.scan(step, (start, first), jnp.arange(pure.horizon))
    latent = jnp.concatenate([jax.vmap(pure.latent)(start)[None], latent])
    return jnp.concatenate([first[None], seen]), action, reward, latent, extra


def _scan(pure, policy, key, episodes: int, deviation, first: Int[ArrayLike, ""] = 0) -> Trajectories:
    """Episodes `first`, `first` + 1, ... of the rollout of `key`."""
    axes = (None, None, None, 0, 0, None if deviation is None else 0)

    def act(level, seen, keys):
        chosen = jax.vmap(choose_action, axes)(policy, pure.num_actions, level, seen, keys, deviation)
        return chosen, None

    *levels, _ = run_levels(pure, act, key, first + jnp.arange(episodes))
    return Trajectories(*(jnp.swapaxes(x, 0, 1) for x in levels))


_scan_few, _scan_many = quick_jit(_scan), eqx.filter_jit(_scan)
