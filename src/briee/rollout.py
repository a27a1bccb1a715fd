"""Episodes: roll in, deviate, collect; evaluate a policy.

A sampler turns a policy and a key into `Trajectories`. The compiled one here runs pure environments as a
single scan; `briee.envs.host` has its twin for every other Gymnasium environment.
"""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int, PRNGKeyArray

from briee.data import Transitions
from briee.envs.registration import episode_start, episode_step
from briee.quick import quick_jit

MEMBER = 0x6D656D62  # no level is this large
CHUNK = 500
"""Episodes of a long rollout that are run together."""
FEW = 100
"""With fewer episodes at a time, to compile takes longer than to run."""
CALLS = 8
"""So many calls of a program take less time than compiling another one."""

Policy = Callable[[Int[Array, ""], Float[Array, "..."], PRNGKeyArray], Int[Array, ""]]
"""(level, observation, key) -> action; an `equinox.Module`, unbatched."""


class Trajectories(eqx.Module):
    """E episodes of H steps. Latent states are for diagnostics only, -1 where the environment does not
    tell."""

    observation: Float[Array, "E levels ..."]
    action: Int[Array, "E H"]
    reward: Float[Array, "E H"]
    latent: Int[Array, "E levels"]


@runtime_checkable
class Sampler(Protocol):
    """What an algorithm needs of an environment."""

    horizon: int
    num_actions: int
    observation_shape: tuple[int, ...]
    pure: Any

    @property
    def optimal_return(self) -> float | None:
        """The best expected return, where it is known."""
        ...

    def rollout(
        self, policy: Policy, key: PRNGKeyArray, episodes: int, deviation: Int[Array, " E"] | None = None
    ) -> Trajectories:
        """Run `episodes` episodes. With `deviation`, actions at levels d and d + 1 are uniform, and what
        happens after level d + 1 does not count."""
        ...


class UniformPolicy(eqx.Module):
    """Every action with the same probability."""

    num_actions: int = eqx.field(static=True)

    def __call__(self, level, observation, key) -> Int[Array, ""]:
        return jax.random.randint(key, (), 0, self.num_actions)


class MixturePolicy(eqx.Module):
    """The uniform mixture of several policies, as in Thm. 1: one member per episode.

    `members` is a policy whose every array has a leading axis; its first `size` entries are the members.
    """

    members: Any
    size: Int[Array, ""]

    def draw(self, key: PRNGKeyArray) -> Policy:
        """A member, uniformly at random."""
        index = jax.random.randint(key, (), 0, self.size)
        return jax.tree.map(lambda leaf: leaf[index], self.members)

    def __call__(self, level, observation, key) -> Int[Array, ""]:
        """The action of a member drawn for this call; samplers draw one per episode instead."""
        draw_key, action_key = jax.random.split(key)
        return self.draw(draw_key)(level, observation, action_key)


class ScanSampler:
    """Episodes of a pure environment, compiled into one scan over the steps."""

    def __init__(self, pure):
        self.pure = pure
        self.horizon: int = pure.horizon
        self.num_actions: int = pure.num_actions
        self.observation_shape: tuple[int, ...] = pure.observation_shape
        self.optimal_return: float | None = pure.optimal_return
        self._compiled: dict[Any, int] = {}

    def rollout(
        self, policy: Policy, key: PRNGKeyArray, episodes: int, deviation: Int[Array, " E"] | None = None
    ) -> Trajectories:
        """See `Sampler.rollout`. Many episodes run in chunks that fit the processor's cache, one per core at
        a time, and a few in chunks that a program was compiled for before; each episode has keys of its own,
        so that changes nothing."""
        size = self._chunk(jax.tree.structure((policy, deviation)), episodes)
        chunks, scan = -(-episodes // size), _scan_few if size < FEW else _scan_many

        def run(chunk: int) -> Trajectories:
            first = min(chunk * size, episodes - size)  # the last chunk is as long as all others
            own = None if deviation is None else deviation[first : first + size]
            return scan(self.pure, policy, key, size, own, np.asarray(first, np.int32))

        if chunks == 1:
            return run(0)
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            parts = list(pool.map(lambda chunk: jax.block_until_ready(run(chunk)), range(chunks)))
        twice = chunks * size - episodes  # episodes of the last chunk that the one before has, too
        join = lambda *leaves: jnp.asarray(np.concatenate([*leaves[:-1], leaves[-1][twice:]]))  # noqa: E731
        return jax.tree.map(join, *(jax.tree.map(np.asarray, part) for part in parts))

    def _chunk(self, kind: Any, episodes: int) -> int:
        """How many episodes to run at a time, with a policy of this structure."""
        known = self._compiled.setdefault(kind, episodes)
        if episodes < 2 * CHUNK:
            return known if episodes % known == 0 and episodes <= CALLS * known else episodes
        return -(-episodes // -(-episodes // CHUNK))


def episode_keys(key: PRNGKeyArray, index: Int[ArrayLike, " E"]) -> PRNGKeyArray:
    """Keys of the environment and of the policy in some of the episodes that `key` stands for: [2, E]."""
    return jax.vmap(jax.vmap(jax.random.fold_in, (None, 0)), (0, None))(jax.random.split(key), index)


def run_levels(
    pure, act: Callable, key: PRNGKeyArray, index: Int[ArrayLike, " E"]
) -> tuple[Array, Array, Array, Array, Any]:
    """Some of the episodes that `key` stands for, level by level: observations [levels, E, ...], actions and
    rewards [H, E], latent states [levels, E], and what `act` says besides. It is asked once for each level:
    (level, observations, keys) -> (actions, anything)."""
    env_keys, policy_keys = episode_keys(key, index)

    def step(carry, level):
        state, seen = carry
        action, besides = act(level, seen, policy_keys)
        state, seen, reward, _ = jax.vmap(episode_step, (None, 0, 0, 0))(pure, state, action, env_keys)
        return (state, seen), (seen, action, reward, jax.vmap(pure.latent)(state), besides)

    start, first = jax.vmap(episode_start, (None, 0))(pure, env_keys)
    _, (seen, action, reward, latent, besides) = jax.lax.scan(step, (start, first), jnp.arange(pure.horizon))
    latent = jnp.concatenate([jax.vmap(pure.latent)(start)[None], latent])
    return jnp.concatenate([first[None], seen]), action, reward, latent, besides


def _scan(pure, policy, key, episodes: int, deviation, first: Int[ArrayLike, ""] = 0) -> Trajectories:
    """Episodes `first`, `first` + 1, ... of those that `key` stands for."""
    of_each = (None, None, None, 0, 0, None if deviation is None else 0)

    def act(level, seen, keys):
        chosen = jax.vmap(choose_action, of_each)(policy, pure.num_actions, level, seen, keys, deviation)
        return chosen, None

    *levels, _ = run_levels(pure, act, key, first + jnp.arange(episodes))
    return Trajectories(*(jnp.swapaxes(x, 0, 1) for x in levels))


_scan_few, _scan_many = quick_jit(_scan), eqx.filter_jit(_scan)


def choose_action(policy: Policy, num_actions: int, level, observation, key, deviation) -> Int[Array, ""]:
    """The policy's action at one level of one episode, or a uniform one at the two levels of its
    deviation. `deviation` may be None: then nothing is drawn for it."""
    if isinstance(policy, MixturePolicy):
        policy = policy.draw(
            jax.random.fold_in(key, MEMBER)
        )  # the episode's own key: the same at every level
    policy_key, uniform_key = jax.random.split(jax.random.fold_in(key, level))
    action = policy(level, observation, policy_key).astype(jnp.int32)
    if deviation is None:
        return action
    uniform = jax.random.randint(uniform_key, (), 0, num_actions)
    deviates = (level == deviation) | (level == deviation + 1)
    return jnp.where(deviates, uniform, action)


def collect_deviations(sampler: Sampler, policy: Policy, key: PRNGKeyArray, episodes_per_level: int):
    """Alg. 1, l. 4 for every level at once.

    An episode that deviates at level h gives s ~ d_h, a uniform, s' to D_h, and its next transition, which
    had two uniform actions, to D'_{h+1}. Returns the new rows [H, 2 m] and the trajectories [H m].
    """
    H, m = sampler.horizon, episodes_per_level
    deviation = jnp.repeat(jnp.arange(H, dtype=jnp.int32), m)
    trajectories = sampler.rollout(policy, key, H * m, deviation)
    seen = jnp.arange(H + 1) <= deviation[:, None] + 2
    trajectories = replace(trajectories, latent=jnp.where(seen, trajectories.latent, -1))
    return _rows_of_deviations(trajectories, H, m), trajectories


@eqx.filter_jit
def _rows_of_deviations(trajectories: Trajectories, H: int, m: int) -> Transitions:
    grouped = jax.tree.map(lambda x: x.reshape(H, m, *x.shape[1:]), trajectories)
    level = jnp.arange(H)

    def take(group, valid, on_policy):
        """The transition at each level h, from the episodes that deviated first at level group[h]."""
        return Transitions(
            observation=grouped.observation[group, :, level],
            action=grouped.action[group, :, level],
            reward=grouped.reward[group, :, level],
            next_observation=grouped.observation[group, :, level + 1],
            on_policy=jnp.full((H, m), on_policy),
            valid=jnp.broadcast_to(valid[:, None], (H, m)),
        )

    one = take(level, jnp.ones(H, bool), True)  # D_h
    two = take(level - 1, level > 0, False)  # D'_h, which level 0 does not have
    return jax.tree.map(lambda a, b: jnp.concatenate([a, b], axis=1), one, two)


def all_rows(trajectories: Trajectories) -> Transitions:
    """Every transition of full episodes, by level: [H, E, ...]."""
    by_level = lambda x: jnp.swapaxes(x, 0, 1)  # noqa: E731
    action = by_level(trajectories.action)
    return Transitions(
        observation=by_level(trajectories.observation[:, :-1]),
        action=action,
        reward=by_level(trajectories.reward),
        next_observation=by_level(trajectories.observation[:, 1:]),
        on_policy=jnp.ones(action.shape, bool),
        valid=jnp.ones(action.shape, bool),
    )


def deviation_steps(horizon: int, episodes_per_level: int) -> int:
    """Environment steps of `collect_deviations`: an episode stops after its second uniform action."""
    return episodes_per_level * sum(min(h + 2, horizon) for h in range(horizon))


def evaluate(sampler: Sampler, policy: Policy, key: PRNGKeyArray, episodes: int) -> Float[np.ndarray, " E"]:
    """The returns of full episodes."""
    return np.asarray(sampler.rollout(policy, key, episodes).reward, np.float64).sum(axis=1)


def deepest_good_level(sampler: Sampler, trajectories: Trajectories) -> float:
    """The deepest level at which an episode was still on the way to the goal; nan where nobody can tell."""
    if sampler.pure is None:
        return float("nan")
    latent = np.asarray(trajectories.latent)
    good = np.asarray(sampler.pure.good(latent)) & (latent >= 0)
    return float(np.flatnonzero(good.any(axis=0)).max(initial=0))
