"""Gymnasium's scalar and vector interface for any pure environment.

Both shells are compiled, return NumPy arrays, and follow the key convention of `briee.envs.block`.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium.vector.utils import batch_space
from jaxtyping import Array, PRNGKeyArray

from briee.envs import render
from briee.envs.block import later_keys, start_episodes, step_episodes
from briee.envs.registry import make
from briee.protocols import Environment

RENDERERS = {"rgb_array": render.rgb_array, "ansi": render.ansi}
METADATA = {"render_modes": list(RENDERERS), "render_fps": 4}


class EpisodeStream:
    """The episodes of one shell, in lockstep: the keys of a seed, then new ones at every later reset."""

    def __init__(self, pure: Environment):
        self.pure = pure
        self.level = -1
        self.roots: Array | None = None
        self._episode = 0
        self._trail: tuple[list[np.ndarray], list[np.ndarray]] = ([], [])

    @property
    def done(self) -> bool:
        """Whether the episodes have reached the horizon, which they do together."""
        return self.level >= self.pure.horizon

    def seed(self, roots: Array) -> None:
        """Use these keys for the next episodes."""
        self.roots, self._episode = roots, -1

    def start(self) -> tuple[np.ndarray, np.ndarray]:
        """Begin the next episodes: (observation, latent)."""
        assert self.roots is not None
        self._episode += 1
        self._keys = self.roots if self._episode == 0 else later_keys(self.roots, self._episode)
        self._state, observation, latent = start_episodes(self.pure, self._keys)
        self.level = 0
        self._trail = ([np.asarray(latent)], [])
        return np.array(observation), np.array(latent)

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """One step of all episodes: (observation, reward, latent)."""
        self._state, observation, reward, latent = step_episodes(
            self.pure, self._state, actions.astype(np.int32), self._keys
        )
        self.level += 1
        self._trail[0].append(np.asarray(latent))
        self._trail[1].append(actions)
        return np.array(observation), np.array(reward), np.array(latent)

    def render(self, index: int, mode: str | None) -> Any:
        """The steps taken so far in one episode, drawn in this mode."""
        if mode is None:
            return None
        if self.level < 0:
            raise gym.error.ResetNeeded("call reset() before render()")
        latents, actions = ([int(row[index]) for row in rows] for rows in self._trail)
        return RENDERERS[mode](self.pure, render.Trail(latents, actions))


class _Shell:
    """The members that both shells share."""

    def __init__(self, pure: Environment, render_mode: str | None):
        if render_mode is not None and render_mode not in RENDERERS:
            raise ValueError(f"render_mode must be one of {', '.join(RENDERERS)}, got {render_mode!r}")
        self.pure = pure
        self.render_mode = render_mode
        self._stream = EpisodeStream(pure)

    @property
    def horizon(self) -> int:
        """Steps per episode."""
        return self.pure.horizon

    @property
    def optimal_return(self) -> float:
        """Best expected return."""
        return self.pure.optimal_return

    def _spaces(self) -> tuple[gym.spaces.Box, gym.spaces.Discrete]:
        """Observation and action space of one episode."""
        low, high = self.pure.observation_bounds
        shape = self.pure.observation_shape
        return gym.spaces.Box(low, high, shape, np.float32), gym.spaces.Discrete(self.pure.num_actions)


def _root_key(seed: int) -> PRNGKeyArray:
    return jax.random.key(np.uint32(seed & 0xFFFFFFFF))


def _entropy(env: gym.Env | gym.vector.VectorEnv, seed: int | None) -> int:
    """The seed, or one drawn from the environment's own generator."""
    return int(env.np_random.integers(2**32)) if seed is None else int(seed)


class PureEnv(_Shell, gym.Env):
    """A pure environment behind Gymnasium's scalar interface; `.pure` is the environment itself."""

    metadata: dict[str, Any] = METADATA

    def __init__(self, pure: Environment, render_mode: str | None = None):
        super().__init__(pure, render_mode)
        self.observation_space, self.action_space = self._spaces()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        """Start the episode of the key `jax.random.key(seed)`; without a seed, the next episode."""
        gym.Env.reset(self, seed=seed)
        if seed is not None or self._stream.roots is None:
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
        """The episode so far, as an image (`rgb_array`) or text (`ansi`)."""
        return self._stream.render(0, self.render_mode)


class PureVectorEnv(_Shell, gym.vector.VectorEnv):
    """`num_envs` copies of a pure environment in one compiled step; `.pure` is the environment itself.

    All episodes end together after H steps; the next step starts new ones (next-step autoreset).
    """

    metadata: dict[str, Any] = METADATA | {"autoreset_mode": gym.vector.AutoresetMode.NEXT_STEP}

    def __init__(self, pure: Environment, num_envs: int = 1, render_mode: str | None = None):
        if num_envs < 1:
            raise ValueError(f"num_envs must be >= 1, got {num_envs}")
        super().__init__(pure, render_mode)
        self.num_envs = int(num_envs)
        self.single_observation_space, self.single_action_space = self._spaces()
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)

    def reset(self, *, seed=None, options: dict[str, Any] | None = None):
        """Start all episodes with split(jax.random.key(seed), num_envs), or with key(s) for each s of a list.

        `options={"keys": keys}` sets the keys of the episodes directly.
        """
        if options and options.get("keys") is not None:
            self._stream.seed(options["keys"])
        elif isinstance(seed, (list, tuple)):
            if len(seed) != self.num_envs:
                raise ValueError(f"seed must be one integer or {self.num_envs} of them, got {seed}")
            gym.vector.VectorEnv.reset(self, seed=seed[0])
            self._stream.seed(jnp.stack([_root_key(int(s)) for s in seed]))
        elif seed is not None or self._stream.roots is None:
            gym.vector.VectorEnv.reset(self, seed=seed)
            self._stream.seed(jax.random.split(_root_key(_entropy(self, seed)), self.num_envs))
        observation, latent = self._stream.start()
        return observation, self._info(latent)

    def step(self, actions):
        """One step of every episode; after the end of the horizon all start again, with reward 0."""
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

    def render(self) -> tuple[Any, ...] | None:
        """One image or text per episode."""
        if self.render_mode is None:
            return None
        return tuple(self._stream.render(index, self.render_mode) for index in range(self.num_envs))

    def _info(self, latent: np.ndarray) -> dict[str, Any]:
        every = np.ones(self.num_envs, bool)
        level = np.full(self.num_envs, self._stream.level, np.int32)
        return {"latent": latent, "_latent": every, "level": level, "_level": every.copy()}


def make_scalar(name: str, render_mode: str | None = None, **kwargs: Any) -> PureEnv:
    """Entry point of `gym.make`."""
    return PureEnv(make(name, **kwargs), render_mode)


def make_vector(name: str, num_envs: int = 1, render_mode: str | None = None, **kwargs: Any) -> PureVectorEnv:
    """Entry point of `gym.make_vec`."""
    return PureVectorEnv(make(name, **kwargs), num_envs, render_mode)
