"""Gymnasium ids and the two thin shells, scalar and vector, over any pure environment.

Both shells are compiled, return NumPy arrays, and follow one key convention, by which their data match a
compiled rollout: an episode has one key k; its initial state is drawn with fold_in(k, 0), its step t with
fold_in(k, t + 1), split into transition, reward and observation.
"""

from __future__ import annotations

import inspect
from typing import Any, ClassVar

import equinox as eqx
import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium.vector.utils import batch_space
from jaxtyping import Array, Int, PRNGKeyArray

from . import render
from .entries import ENVIRONMENTS
from .values import check_values

RENDER_MODES = ("rgb_array", "ansi")

LATER_EPISODES = 0x7FFFFFFF
"""Episode n >= 1 after a seeded reset has the key fold_in(fold_in(k, LATER_EPISODES), n)."""


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
    check_values(entry.constructor, kwargs)
    arguments = entry.defaults | kwargs
    for key, value in arguments.items():
        if callable(value):
            arguments[key] = value(arguments["horizon"])
    return entry.constructor(**arguments)


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


@eqx.filter_jit
def _start(pure, keys):
    """Initial states of a batch of episodes: (state, observation, latent)."""
    state, observation = jax.vmap(lambda key: episode_start(pure, key))(keys)
    return state, observation, jax.vmap(pure.latent)(state)


@eqx.filter_jit
def _step(pure, state, actions, keys):
    """One step of a batch of episodes: (state, observation, reward, latent)."""
    step = jax.vmap(lambda state, action, key: episode_step(pure, state, action, key))
    state, observation, reward, _ = step(state, actions, keys)
    return state, observation, reward, jax.vmap(pure.latent)(state)


@jax.jit
def _later_keys(roots, episode):
    """The keys of the n-th episodes after those that have the keys `roots`."""
    fold = jax.vmap(jax.random.fold_in, (0, None))
    return fold(fold(roots, LATER_EPISODES), episode)


class EpisodeStream:
    """The episodes of one shell, in lockstep: n keys after a seed, then n others for every later reset."""

    def __init__(self, pure, num_envs: int):
        self.pure = pure
        self.num_envs = num_envs
        self.level = -1
        self._roots: Array | None = None
        self._keys: Array | None = None
        self._episode = 0
        self._state = None
        self._trail: tuple[list[np.ndarray], list[np.ndarray]] = ([], [])

    @property
    def seeded(self) -> bool:
        """Whether there is a seed to continue from."""
        return self._roots is not None

    @property
    def done(self) -> bool:
        """Whether the episodes have reached the horizon (they all do so at once)."""
        return self.level >= self.pure.horizon

    def seed(self, roots: Array) -> None:
        """Make these the keys of the next episodes."""
        self._roots, self._episode = roots, -1

    def start(self):
        """Begin the next episodes: (observation, latent)."""
        assert self._roots is not None
        self._episode += 1
        self._keys = self._roots
        if self._episode > 0:
            self._keys = _later_keys(self._roots, self._episode)
        self._state, observation, latent = _start(self.pure, self._keys)
        self.level = 0
        self._trail = ([np.asarray(latent)], [])
        return np.array(observation), np.array(latent)

    def step(self, actions: np.ndarray):
        """One step of all episodes: (observation, reward, latent)."""
        self._state, observation, reward, latent = _step(
            self.pure, self._state, actions.astype(np.int32), self._keys
        )
        self.level += 1
        self._trail[0].append(np.asarray(latent))
        self._trail[1].append(actions)
        return np.array(observation), np.array(reward), np.array(latent)

    def render(self, index: int, mode: str | None):
        """The episode so far, drawn as `mode` says."""
        if mode is None:
            return None
        if self.level < 0:
            raise gym.error.ResetNeeded("call reset() before render()")
        latents, actions = ([int(row[index]) for row in rows] for rows in self._trail)
        return getattr(render, mode)(self.pure, render.Trail(latents, actions))


def _observation_space(pure) -> gym.spaces.Box:
    low, high = pure.observation_bounds
    return gym.spaces.Box(low, high, shape=pure.observation_shape, dtype=np.float32)


def _check_render_mode(mode: str | None) -> None:
    if mode is not None and mode not in RENDER_MODES:
        raise ValueError(f"render_mode must be one of {', '.join(RENDER_MODES)}, got {mode!r}")


def _entropy(env: gym.Env | gym.vector.VectorEnv, seed: int | None) -> int:
    """The seed, or one from the environment's own generator."""
    return int(env.np_random.integers(2**32)) if seed is None else int(seed)


def _root_key(seed: int) -> PRNGKeyArray:
    return jax.random.key(np.uint32(seed & 0xFFFFFFFF))


class PureEnv(gym.Env):
    """A pure environment behind Gymnasium's scalar interface; `.pure` is the environment itself."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": list(RENDER_MODES), "render_fps": 4}

    def __init__(self, pure, render_mode: str | None = None):
        _check_render_mode(render_mode)
        self.pure = pure
        self.render_mode = render_mode
        self.observation_space = _observation_space(pure)
        self.action_space = gym.spaces.Discrete(pure.num_actions)
        self._stream = EpisodeStream(pure, 1)

    @property
    def optimal_return(self) -> float:
        """Best expected return, by dynamic programming on the latent model."""
        return self.pure.optimal_return

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        """Start the episode with the key `jax.random.key(seed)`, or without a seed the next in its stream."""
        super().reset(seed=seed)
        if seed is not None or not self._stream.seeded:
            self._stream.seed(_root_key(_entropy(self, seed))[None])
        observation, latent = self._stream.start()
        return observation[0], {"latent": int(latent[0]), "level": 0}

    def step(self, action):
        """One step; raises `ResetNeeded` before the first reset and after the end of an episode."""
        if self._stream.level < 0 or self._stream.done:
            raise gym.error.ResetNeeded("the episode has ended or not begun: call reset() before step()")
        if not self.action_space.contains(action):
            raise ValueError(f"action must be an integer in [0, {self.pure.num_actions}), got {action!r}")
        observation, reward, latent = self._stream.step(np.array([action]))
        info = {"latent": int(latent[0]), "level": self._stream.level}
        return observation[0], float(reward[0]), self._stream.done, False, info

    def render(self):
        """The episode so far: a picture (`rgb_array`) or text (`ansi`)."""
        return self._stream.render(0, self.render_mode)


class PureVectorEnv(gym.vector.VectorEnv):
    """`num_envs` copies of a pure environment in one compiled step; `.pure` is the environment itself.

    All episodes have H steps, so all end together; the next step starts new ones (next-step autoreset).
    """

    metadata: ClassVar[dict[str, Any]] = {
        "render_modes": list(RENDER_MODES),
        "render_fps": 4,
        "autoreset_mode": gym.vector.AutoresetMode.NEXT_STEP,
    }

    def __init__(self, pure, num_envs: int = 1, render_mode: str | None = None):
        if num_envs < 1:
            raise ValueError(f"num_envs must be >= 1, got {num_envs}")
        _check_render_mode(render_mode)
        self.pure = pure
        self.num_envs = int(num_envs)
        self.render_mode = render_mode
        self.single_observation_space = _observation_space(pure)
        self.single_action_space = gym.spaces.Discrete(pure.num_actions)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self._stream = EpisodeStream(pure, self.num_envs)

    @property
    def optimal_return(self) -> float:
        """Best expected return, by dynamic programming on the latent model."""
        return self.pure.optimal_return

    def reset(self, *, seed=None, options: dict[str, Any] | None = None):
        """Start all episodes with split(jax.random.key(seed), num_envs), or with key(s) each for a list.

        `options={"keys": keys}` gives the keys of the episodes themselves.
        """
        if options and options.get("keys") is not None:
            self._stream.seed(options["keys"])
        elif isinstance(seed, (list, tuple)):
            if len(seed) != self.num_envs:
                raise ValueError(f"seed must be one integer or {self.num_envs} of them, got {seed}")
            super().reset(seed=seed[0])
            self._stream.seed(jnp.stack([_root_key(int(s)) for s in seed]))
        elif seed is not None or not self._stream.seeded:
            super().reset(seed=seed)
            self._stream.seed(jax.random.split(_root_key(_entropy(self, seed)), self.num_envs))
        observation, latent = self._stream.start()
        return observation, self._info(latent)

    def step(self, actions):
        """One step of every episode; after the end of the horizon all start anew, with reward 0."""
        if self._stream.level < 0:
            raise gym.error.ResetNeeded("call reset() before step()")
        actions = np.asarray(actions)
        if actions.shape != (self.num_envs,) or not np.issubdtype(actions.dtype, np.integer):
            raise ValueError(f"actions must be {self.num_envs} integers, got {actions.dtype}{actions.shape}")
        if ((actions < 0) | (actions >= self.pure.num_actions)).any():
            raise ValueError(f"actions must be in [0, {self.pure.num_actions}), got {actions}")
        if self._stream.done:
            observation, latent = self._stream.start()
            reward = np.zeros(self.num_envs, np.float32)
        else:
            observation, reward, latent = self._stream.step(actions)
        terminated = np.full(self.num_envs, self._stream.done)
        return observation, reward, terminated, np.zeros(self.num_envs, bool), self._info(latent)

    def render(self):
        """One picture or text per episode."""
        if self.render_mode is None:
            return None
        return tuple(self._stream.render(index, self.render_mode) for index in range(self.num_envs))

    def _info(self, latent: np.ndarray) -> dict[str, Any]:
        return {
            "latent": latent,
            "_latent": np.ones(self.num_envs, bool),
            "level": np.full(self.num_envs, self._stream.level, np.int32),
            "_level": np.ones(self.num_envs, bool),
        }


def make_scalar(name: str, render_mode: str | None = None, **kwargs) -> PureEnv:
    """Entry point of `gym.make`."""
    return PureEnv(make(name, **kwargs), render_mode)


def make_vector(name: str, num_envs: int = 1, render_mode: str | None = None, **kwargs) -> PureVectorEnv:
    """Entry point of `gym.make_vec`."""
    return PureVectorEnv(make(name, **kwargs), num_envs, render_mode)
