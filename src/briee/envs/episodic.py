"""Any Gymnasium environment with discrete actions as episodes of exactly H steps of float32 arrays.

An episode that ends early shows its last observation and then an absorbing one, with reward 0, up to
level H; a longer one is cut at H. To the learner an episode is `terminated` after H steps and never
before; what the environment itself said is in `info` as `original_terminated` and `original_truncated`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space

from briee.foreign import environment_name, own_horizon, own_optimum

from .encoding import ObservationEncoder, UnsupportedSpaceError, discrete_actions


class EnvironmentStepError(RuntimeError):
    """A user's environment raised, or broke its promises, in `reset` or `step`; names it and the step."""


def find_horizon(env: gym.Env | gym.vector.VectorEnv, horizon: int | None) -> int:
    """The given horizon, or the environment's own: its `horizon`, its time limit, its `max_steps`."""
    if horizon is None:
        horizon = own_horizon(env)
    if horizon is None:
        raise ValueError(
            f"horizon is missing: {environment_name(env)} has no time limit, so pass horizon=..."
        )
    if horizon < 1:
        raise ValueError(f"horizon must be >= 1, got {horizon}")
    return int(horizon)


class Episodic(gym.Wrapper, gym.utils.RecordConstructorArgs):
    """One environment, from `gym.make`, as episodes of H steps of arrays (see the module's docstring).

    Args:
        env: any environment with a `Discrete` action space.
        horizon: H; if missing, the environment's own time limit.
        keys: the parts of a Dict observation to use; all but text if missing.
        image_scale: uint8 observations are divided by this.
        optimal_return: best expected return, where the user knows it.
    """

    def __init__(
        self,
        env: gym.Env,
        horizon: int | None = None,
        *,
        keys: Sequence[str] | str | None = None,
        image_scale: float = 255.0,
        optimal_return: float | None = None,
    ):
        gym.utils.RecordConstructorArgs.__init__(
            self, horizon=horizon, keys=keys, image_scale=image_scale, optimal_return=optimal_return
        )
        gym.Wrapper.__init__(self, env)
        self.name = environment_name(env)
        self.num_actions = discrete_actions(env.action_space, self.name)
        self.encoder = ObservationEncoder(env.observation_space, keys, image_scale)
        self.horizon = find_horizon(env, horizon)
        self.observation_space = self.encoder.space
        self.optimal_return = optimal_return if optimal_return is not None else own_optimum(env, self.horizon)
        self._level = self.horizon
        self._over = True

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        """Start an episode; seeds go to the environment."""
        self._level, self._over = 0, False
        with _blame(self.name, "reset"):
            observation, info = self.env.reset(seed=seed, options=options)
            return self.encoder(observation), self._mark(info, False, False)

    def step(self, action):
        """One of H steps; those after an early end do not reach the environment."""
        if self._level >= self.horizon:
            raise gym.error.ResetNeeded(f"the {self.horizon} steps of this episode are over: call reset()")
        self._level += 1
        done = self._level == self.horizon
        if self._over:
            return self.encoder.absorbing.copy(), 0.0, done, False, self._mark({}, False, False)
        with _blame(self.name, f"step {self._level}"):
            observation, reward, terminated, truncated, info = self.env.step(action)
            encoded = self.encoder(observation)
            reward = _finite(float(reward))
        self._over = bool(terminated or truncated)
        return encoded, reward, done, False, self._mark(info, terminated, truncated)

    def _mark(self, info: dict[str, Any], terminated: bool, truncated: bool) -> dict[str, Any]:
        return info | {"original_terminated": bool(terminated), "original_truncated": bool(truncated)}


class EpisodicVector(gym.vector.VectorWrapper):
    """A vector environment, from `gym.make_vec`, as batches of episodes of H steps of arrays.

    Takes the arguments of `Episodic`. All episodes start at `reset` and end together after H steps; the
    vector environment's own autoreset in between goes unnoticed. After the H steps call `reset`.
    """

    def __init__(
        self,
        env: gym.vector.VectorEnv,
        horizon: int | None = None,
        *,
        keys: Sequence[str] | str | None = None,
        image_scale: float = 255.0,
        optimal_return: float | None = None,
    ):
        super().__init__(env)
        self.name = environment_name(env)
        _check_agreement(env, self.name)
        self.num_actions = discrete_actions(env.single_action_space, self.name)
        self.encoder = ObservationEncoder(env.single_observation_space, keys, image_scale)
        self.horizon = find_horizon(env, horizon)
        self.autoreset = env.metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP)
        if self.autoreset == AutoresetMode.DISABLED:
            raise ValueError(
                f"{self.name} has autoreset disabled; supported are AutoresetMode.NEXT_STEP and SAME_STEP"
            )
        self.single_observation_space = self.encoder.space
        self.observation_space = batch_space(self.encoder.space, env.num_envs)
        self.optimal_return = optimal_return if optimal_return is not None else own_optimum(env, self.horizon)
        self._level = self.horizon
        self._over = np.ones(env.num_envs, bool)

    def reset(self, *, seed=None, options: dict[str, Any] | None = None):
        """Start all episodes; one seed or a list of them goes to the vector environment."""
        self._level, self._over = 0, np.zeros(self.num_envs, bool)
        with _blame(self.name, "reset"):
            observation, info = self.env.reset(seed=seed, options=options)
            return self.encoder(observation, self.num_envs), self._mark(
                info, *np.zeros((2, self.num_envs), bool)
            )

    def step(self, actions):
        """One of H steps of every episode."""
        if self._level >= self.horizon:
            raise gym.error.ResetNeeded(f"the {self.horizon} steps of these episodes are over: call reset()")
        self._level += 1
        with _blame(self.name, f"step {self._level}"):
            observation, reward, terminated, truncated, info = self.env.step(actions)
            ended = (terminated | truncated) & ~self._over
            encoded = self.encoder(observation, self.num_envs)
            if self.autoreset == AutoresetMode.SAME_STEP:
                for index in np.flatnonzero(ended):
                    encoded[index] = self.encoder(info["final_obs"][index])
            encoded[self._over] = self.encoder.absorbing
            reward = np.where(self._over, 0.0, _finite(reward)).astype(np.float32)
        marked = self._mark(info, terminated & ~self._over, truncated & ~self._over)
        if "latent" in marked:
            marked["latent"] = np.where(self._over, -1, marked["latent"])
        self._over = self._over | ended
        done = np.full(self.num_envs, self._level == self.horizon)
        return encoded, reward, done, np.zeros(self.num_envs, bool), marked

    def _mark(self, info: dict[str, Any], terminated: np.ndarray, truncated: np.ndarray) -> dict[str, Any]:
        return info | {"original_terminated": terminated, "original_truncated": truncated}


def episodic(env: gym.Env | gym.vector.VectorEnv, horizon: int | None = None, **kwargs):
    """`Episodic` or `EpisodicVector`, whichever fits."""
    wrapper = EpisodicVector if isinstance(env, gym.vector.VectorEnv) else Episodic
    return cast(Any, wrapper)(env, horizon, **kwargs)


class _blame:
    """Turns whatever a user's environment raises into one sentence with its name and the step."""

    def __init__(self, name: str, moment: str):
        self.name, self.moment = name, moment

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind, error, traceback) -> None:
        if isinstance(error, Exception) and not isinstance(error, gym.error.ResetNeeded):
            message = f"environment {self.name} failed at {self.moment}: {type(error).__name__}: {error}"
            raise EnvironmentStepError(message) from error


def _finite(reward):
    if not np.isfinite(reward).all():
        raise ValueError(f"reward is not finite: {reward}")
    return reward


def _check_agreement(env: gym.vector.VectorEnv, name: str) -> None:
    """Sub-environments of a vector must have the same spaces."""
    if not isinstance(env.unwrapped, (gym.vector.SyncVectorEnv, gym.vector.AsyncVectorEnv)):
        return
    for attribute in ("observation_space", "action_space"):
        found = env.unwrapped.get_attr(attribute)
        for index, space in enumerate(found):
            if space != found[0]:
                raise UnsupportedSpaceError(
                    f"environments 0 and {index} of the vector {name} disagree: "
                    f"their {attribute.replace('_', ' ')}s are {found[0]} and {space}"
                )
