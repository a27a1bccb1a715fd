"""Gymnasium ids and the two thin shells, scalar and vector, over any pure environment.

Both shells are compiled, return NumPy arrays, and follow one key convention, so that their data equal a
compiled rollout's number by number: an episode has one key k; its initial state is drawn with fold_in(k, 0), its
step t with fold_in(k, t + 1), split into transition, reward and observation.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium.vector.utils import batch_space
from jaxtyping import Array, Int, PRNGKeyArray

from .lock import CombinationLock

AUTORESET_STREAM = 0x7FFFFFFF
"""Episode n >= 1 after a seeded reset has the key fold_in(fold_in(k, AUTORESET_STREAM), n)."""


class Entry(NamedTuple):
    """One registered environment: Gymnasium id, constructor, default arguments, one sentence for listings."""

    id: str
    constructor: Callable[..., Any]
    defaults: dict[str, Any]
    summary: str


ENVIRONMENTS: dict[str, Entry] = {
    "lock": Entry(
        "briee/CombinationLock-v0",
        CombinationLock,
        {"horizon": 6},
        "reward 1 at the end, anti-shaped on the way (Section 5)",
    ),
    "lock-dense": Entry(
        "briee/CombinationLockDense-v0",
        CombinationLock,
        {"horizon": 30, "step_reward": 0.1, "anti_reward": 0.0},
        "0.1 per good step, 1 at the end",
    ),
    "lock-simplex": Entry(
        "briee/CombinationLockSimplex-v0",
        CombinationLock,
        {"horizon": 30, "temperature": 0.2},
        "a low-rank MDP: the latent state is resampled from the observation before each step",
    ),
}


def make(name: str, **kwargs):
    """The pure environment with this short name or Gymnasium id, e.g. `make("lock", horizon=12)`."""
    short = {entry.id: key for key, entry in ENVIRONMENTS.items()}.get(name, name)
    if short not in ENVIRONMENTS:
        raise ValueError(f"unknown environment {name!r}: pure environments are {', '.join(ENVIRONMENTS)}")
    entry = ENVIRONMENTS[short]
    known = list(inspect.signature(entry.constructor).parameters)
    for argument in kwargs:
        if argument not in known:
            raise ValueError(f"{name!r} has no argument {argument!r}: it has {', '.join(known)}")
    return entry.constructor(**(entry.defaults | kwargs))


def episode_step(pure, state, action: Int[Array, ""], key: PRNGKeyArray):
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


def episode_start(pure, key: PRNGKeyArray):
    """The initial state of the episode with this key, and its observation."""
    start, observation = jax.random.split(jax.random.fold_in(key, 0))
    state = pure.initial(start)
    return state, pure.observation(state, observation)


def episode_key(root: PRNGKeyArray, episode: Int[Array, ""]) -> PRNGKeyArray:
    """The key of the n-th episode since `root` was seeded; episode 0 has `root` itself."""
    later = jax.random.fold_in(jax.random.fold_in(root, AUTORESET_STREAM), episode)
    data = jnp.where(episode == 0, jax.random.key_data(root), jax.random.key_data(later))
    return jax.random.wrap_key_data(data)


@eqx.filter_jit
def _start(pure, roots, episodes):
    state, observation = jax.vmap(lambda root, n: episode_start(pure, episode_key(root, n)))(roots, episodes)
    return state, observation, jax.vmap(pure.latent)(state), jax.vmap(pure.level)(state)


@eqx.filter_jit
def _step(pure, state, actions, roots, episodes, done):
    """A batch of steps; an episode that was done before starts anew instead, as episode number `episodes`."""

    def one(state, action, root, episode, done):
        key = episode_key(root, episode)
        stepped = episode_step(pure, state, action, key)
        fresh, observation = episode_start(pure, key)
        restarted = (fresh, observation, jnp.zeros_like(stepped[2]), jnp.zeros_like(stepped[3]))
        return jax.tree.map(lambda new, old: jnp.where(done, new, old), restarted, stepped)

    state, observation, reward, terminated = jax.vmap(one)(state, actions, roots, episodes, done)
    return state, observation, reward, terminated, jax.vmap(pure.latent)(state), jax.vmap(pure.level)(state)


def _observation_space(pure) -> gym.spaces.Box:
    low, high = pure.observation_bounds
    return gym.spaces.Box(low, high, shape=pure.observation_shape, dtype=np.float32)


def _root_key(seed: int) -> PRNGKeyArray:
    return jax.random.key(np.uint32(seed & 0xFFFFFFFF))


class PureEnv(gym.Env):
    """A pure environment behind Gymnasium's scalar interface; `.pure` is the environment itself."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": []}

    def __init__(self, pure, render_mode: str | None = None):
        self.pure = pure
        self.render_mode = render_mode
        self.observation_space = _observation_space(pure)
        self.action_space = gym.spaces.Discrete(pure.num_actions)
        self._roots: PRNGKeyArray | None = None
        self._episode = 0
        self._state = None
        self._done = False

    @property
    def optimal_return(self) -> float:
        """Best expected return, by dynamic programming on the latent model."""
        return self.pure.optimal_return

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        """Start the episode with the key `jax.random.key(seed)`, or without a seed the next in its stream."""
        super().reset(seed=seed)
        if seed is not None or self._roots is None:
            root = seed if seed is not None else int(self.np_random.integers(2**32))
            self._roots, self._episode = _root_key(root)[None], 0
        else:
            self._episode += 1
        self._state, observation, latent, level = _start(self.pure, self._roots, np.array([self._episode]))
        self._done = False
        return np.array(observation[0]), {"latent": int(latent[0]), "level": int(level[0])}

    def step(self, action):
        """One step; raises `ResetNeeded` before the first reset and after the end of an episode."""
        if self._state is None or self._done:
            raise gym.error.ResetNeeded("the episode has ended or not begun: call reset() before step()")
        if not self.action_space.contains(action):
            raise ValueError(f"action must be an integer in [0, {self.pure.num_actions}), got {action!r}")
        self._state, observation, reward, terminated, latent, level = _step(
            self.pure,
            self._state,
            np.array([action], np.int32),
            self._roots,
            np.array([self._episode]),
            np.array([False]),
        )
        self._done = bool(terminated[0])
        info = {"latent": int(latent[0]), "level": int(level[0])}
        return np.array(observation[0]), float(reward[0]), self._done, False, info


class PureVectorEnv(gym.vector.VectorEnv):
    """`num_envs` copies of a pure environment in one compiled step; `.pure` is the environment itself.

    An episode that ended starts anew at the next step (Gymnasium's next-step autoreset).
    """

    metadata: ClassVar[dict[str, Any]] = {
        "render_modes": [],
        "autoreset_mode": gym.vector.AutoresetMode.NEXT_STEP,
    }

    def __init__(self, pure, num_envs: int = 1, render_mode: str | None = None):
        if num_envs < 1:
            raise ValueError(f"num_envs must be >= 1, got {num_envs}")
        self.pure = pure
        self.num_envs = int(num_envs)
        self.render_mode = render_mode
        self.single_observation_space = _observation_space(pure)
        self.single_action_space = gym.spaces.Discrete(pure.num_actions)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self._roots: PRNGKeyArray | None = None
        self._episodes = np.zeros(self.num_envs, np.int32)
        self._state = None
        self._done = np.zeros(self.num_envs, bool)

    @property
    def optimal_return(self) -> float:
        """Best expected return, by dynamic programming on the latent model."""
        return self.pure.optimal_return

    def reset(self, *, seed=None, options: dict[str, Any] | None = None):
        """Start all episodes with split(jax.random.key(seed), num_envs), or with key(s) each for a list."""
        if isinstance(seed, (list, tuple)):
            if len(seed) != self.num_envs or any(s is None for s in seed):
                raise ValueError(
                    f"seed must be one integer or a list of {self.num_envs} integers, got {seed}"
                )
            super().reset(seed=seed[0])
            self._roots = jnp.stack([_root_key(int(s)) for s in seed if s is not None])
            self._episodes = np.zeros(self.num_envs, np.int32)
        elif seed is not None or self._roots is None:
            super().reset(seed=seed)
            root = seed if seed is not None else int(self.np_random.integers(2**32))
            self._roots = jax.random.split(_root_key(root), self.num_envs)
            self._episodes = np.zeros(self.num_envs, np.int32)
        else:
            self._episodes = self._episodes + 1
        self._state, observation, latent, level = _start(self.pure, self._roots, self._episodes)
        self._done = np.zeros(self.num_envs, bool)
        return np.array(observation), self._info(latent, level)

    def step(self, actions):
        """One step of every episode; those that had ended start anew, with reward 0."""
        if self._state is None:
            raise gym.error.ResetNeeded("call reset() before step()")
        actions = np.asarray(actions)
        if actions.shape != (self.num_envs,) or not np.issubdtype(actions.dtype, np.integer):
            raise ValueError(f"actions must be {self.num_envs} integers, got {actions.dtype}{actions.shape}")
        if ((actions < 0) | (actions >= self.pure.num_actions)).any():
            raise ValueError(f"actions must be in [0, {self.pure.num_actions}), got {actions}")
        self._episodes = self._episodes + self._done.astype(np.int32)
        self._state, observation, reward, terminated, latent, level = _step(
            self.pure, self._state, actions.astype(np.int32), self._roots, self._episodes, self._done
        )
        self._done = np.array(terminated)
        truncated = np.zeros(self.num_envs, bool)
        info = self._info(latent, level)
        return np.array(observation), np.array(reward), self._done.copy(), truncated, info

    def _info(self, latent, level) -> dict[str, Any]:
        everywhere = np.ones(self.num_envs, bool)
        return {
            "latent": np.array(latent),
            "_latent": everywhere,
            "level": np.array(level),
            "_level": everywhere.copy(),
        }


def make_scalar(name: str, render_mode: str | None = None, **kwargs) -> PureEnv:
    """Entry point of `gym.make`."""
    return PureEnv(make(name, **kwargs), render_mode)


def make_vector(name: str, num_envs: int = 1, render_mode: str | None = None, **kwargs) -> PureVectorEnv:
    """Entry point of `gym.make_vec`."""
    return PureVectorEnv(make(name, **kwargs), num_envs, render_mode)


def register_all() -> None:
    """Register every pure environment with Gymnasium, once."""
    for name, entry in ENVIRONMENTS.items():
        if entry.id not in gym.registry:
            gym.register(
                id=entry.id,
                entry_point="briee.envs.registration:make_scalar",
                vector_entry_point="briee.envs.registration:make_vector",
                kwargs={"name": name},
            )
