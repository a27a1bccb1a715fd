"""Any Gymnasium environment with discrete actions as episodes of exactly H steps of float32 arrays.

After an early end, the observation is an absorbing one and the reward 0 up to level H; a longer episode is
cut at H. The learner sees `terminated` after H steps and never before. The environment's own flags are in
`info` as `original_terminated` and `original_truncated`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, ClassVar, cast

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array

from briee.configuration import whole_number
from briee.envs.adapters.encoding import ObservationEncoder, check_agreement, discrete_actions
from briee.envs.adapters.third_party import environment_name, own_horizon, own_optimum

NUMBERS = (int, float, np.generic)
CHECKS = (gym.wrappers.OrderEnforcing, gym.wrappers.PassiveEnvChecker)
"""Wrappers of `gym.make` that copies are stepped without: their checks are made here, too."""
_NOTHING: dict[str, Any] = {}


class EnvironmentStepError(RuntimeError):
    """A user's environment failed in `reset` or `step`; the message names the environment and the step."""


def find_horizon(env: gym.Env | gym.vector.VectorEnv, horizon: int | None) -> int:
    """The given horizon, or the environment's `horizon`, time limit or `max_steps`."""
    if horizon is None:
        horizon = own_horizon(env)
    if horizon is None:
        name = environment_name(env)
        raise ValueError(
            f"horizon is missing: {name} has no time limit, so give --horizon H, or horizon=H in Python"
        )
    return whole_number("horizon", horizon)


class Episodic(gym.Wrapper, gym.utils.RecordConstructorArgs):
    """One environment, from `gym.make`, as episodes of H steps of arrays (see the module's docstring).

    Args:
        env: any environment with a `Discrete` action space.
        horizon: H; by default the environment's own time limit.
        keys: the parts of a Dict observation to use; by default all but text.
        image_scale: divisor of uint8 observations.
        optimal_return: best expected return, if known.
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
        self._level, self._over = self.horizon, True

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        """Start an episode; the seed is passed to the environment."""
        self._level, self._over = 0, False
        with _blame(self.name, "reset"):
            observation, info = _pair(self.env.reset(seed=seed, options=options))
            return self.encoder(observation), _mark(info, False, False)

    def step(self, action):
        """One of H steps; steps after an early end do not reach the environment."""
        if self._level >= self.horizon:
            raise gym.error.ResetNeeded(f"the {self.horizon} steps of this episode are over: call reset()")
        self._level += 1
        done = self._level == self.horizon
        if self._over:
            return self.encoder.absorbing.copy(), 0.0, done, False, _mark({}, False, False)
        with _blame(self.name, f"step {self._level}"):
            observation, reward, terminated, truncated, info = _five(self.env.step(action))
            encoded, reward = self.encoder(observation), _reward(reward)
        self._over = bool(terminated or truncated)
        return encoded, reward, done, False, _mark(info, bool(terminated), bool(truncated))


class EpisodicVector(gym.vector.VectorWrapper):
    """A vector environment, from `gym.make_vec`, as batches of episodes of H steps of arrays.

    Takes the arguments of `Episodic`. All episodes start at `reset` and end together after H steps, then call
    `reset`; the vector environment's own autoreset in between has no effect.
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
        check_agreement(env, self.name)
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
        self._end(np.ones(env.num_envs, bool))
        self.info_keys: Sequence[str] | None = None
        """Keys of the copies' infos that are merged; None for all."""
        self._copies = env.envs if type(env) is gym.vector.SyncVectorEnv else None
        self._steps = [_inner(copy).step for copy in self._copies or ()]
        self._seen: list[Any] = []

    @property
    def steps_copies(self) -> bool:
        """Whether the copies are stepped one by one."""
        return self._copies is not None

    def start(self, seeds: list[int]):
        """As `reset`, with a seed for each of the first copies; the others stay ended."""
        return self.reset(seed=seeds)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None):
        """Start all episodes; one seed or a list of seeds is passed to the vector environment."""
        n = self.num_envs
        self._level = 0
        self._end(np.zeros(n, bool))
        with _blame(self.name, "reset", self.num_envs) as blame:
            if self._copies is None:
                observation, info = self.env.reset(seed=seed, options=options)
            else:
                seeds = [seed + i for i in range(n)] if isinstance(seed, int) else seed or [None] * n
                told = []
                for index, (env, own) in enumerate(zip(self._copies, seeds, strict=False)):
                    blame.copy = index
                    told.append(_pair(env.reset(seed=own, options=options)))
                blame.copy = None
                self._end(np.arange(n) >= len(told))
                told += [(told[0][0], {})] * (n - len(told))
                observation, info = self._stack([o for o, _ in told]), merge_infos([i for _, i in told])
            return self.encoder(observation, n), _mark(info, *np.zeros((2, n), bool))

    def step(self, actions):
        """One of H steps of every episode."""
        if self._level >= self.horizon:
            raise gym.error.ResetNeeded(f"the {self.horizon} steps of these episodes are over: call reset()")
        self._level += 1
        with _blame(self.name, f"step {self._level}", self.num_envs) as blame:
            advance = self._step_vector if self._copies is None else self._step_copies
            encoded, reward, terminated, truncated, info = advance(actions, blame)
            reward = np.asarray(reward, np.float32)
            over = self._over
            if len(self._live) < len(over):
                encoded[over] = self.encoder.absorbing
                reward = np.where(over, np.float32(0.0), reward)
                terminated, truncated = terminated & ~over, truncated & ~over
                if "latent" in info:
                    info["latent"] = np.where(over, -1, info["latent"])
            if not np.isfinite(reward).all():
                blame.copy = int(np.flatnonzero(~np.isfinite(reward))[0])
                _reward(reward[blame.copy])
        if (ended := terminated | truncated).any():
            self._end(over | ended)
        done = np.full(self.num_envs, self._level == self.horizon)
        return encoded, reward, done, np.zeros(self.num_envs, bool), _mark(info, terminated, truncated)

    def drop(self, episodes: np.ndarray) -> None:
        """Absorb these episodes, bool[num_envs], from here on, because the rest of them is not used."""
        self._end(self._over | episodes)

    def _end(self, over: np.ndarray) -> None:
        """Note which episodes have ended, bool[num_envs]."""
        self._over, self._live = over, np.flatnonzero(~over).tolist()

    def _step_vector(self, actions, blame):
        """Step the vector environment; episodes it has reset keep their last observation."""
        observation, reward, terminated, truncated, info = self.env.step(actions)
        encoded = self.encoder(observation, self.num_envs)
        if self.autoreset == AutoresetMode.SAME_STEP:
            for index in np.flatnonzero((terminated | truncated) & ~self._over):
                encoded[index] = self.encoder(info["final_obs"][index])
        return encoded, reward, terminated, truncated, info

    def _step_copies(self, actions, blame):
        """Step every copy whose episode has not ended.

        Gymnasium's own loop resets ended copies, copies every observation, and does not name a failing copy.
        """
        n, steps, seen = self.num_envs, self._steps, self._seen
        rewards: list[Any] = [0.0] * n
        infos, flags = [_NOTHING] * n, np.zeros((2, n), bool)
        actions = np.asarray(actions).tolist()
        for index in self._live:
            blame.copy = index
            told = steps[index](actions[index])
            if type(told) is not tuple or len(told) != 5 or type(told[4]) is not dict:
                told = _five(told)
            seen[index], own, terminated, truncated, infos[index] = told
            rewards[index] = own if type(own) is float or type(own) is int else _reward(own)
            if terminated or truncated:
                flags[:, index] = terminated, truncated
        blame.copy = None
        merged = merge_infos(infos, self.info_keys)
        return self.encoder(self._stack(seen), n), np.array(rewards, np.float32), *flags, merged

    def _stack(self, observations: list[Any]) -> Any:
        """Stack the copies' observations as in the vector's batched space."""
        self._seen = list(observations)
        space = self.env.single_observation_space
        if not isinstance(space, spaces.Box | spaces.Discrete):
            try:
                return concatenate(space, observations, create_empty_array(space, n=self.num_envs))
            except ValueError:
                for observation in observations:
                    self.encoder(observation)  # says which part has another shape
                raise
        try:
            stacked = np.array(observations)
        except ValueError:  # different shapes
            stacked = np.empty(0)
        if stacked.shape != (len(observations), *(space.shape or ())):
            shapes = [np.shape(observation) for observation in observations]
            index = next(i for i, shape in enumerate(shapes) if shape != (space.shape or ()))
            promise = f"but the space {type(space).__name__} promises {space.shape}"
            raise ValueError(f"observation of copy {index} has shape {shapes[index]}, {promise}")
        return stacked


def _inner(env: gym.Env) -> gym.Env:
    """The environment inside wrappers that only check the order of calls and what a step returned."""
    while type(env) in CHECKS:
        env = cast(gym.Wrapper, env).env
    return env


def _mark(info: dict[str, Any], terminated: Any, truncated: Any) -> dict[str, Any]:
    return info | {"original_terminated": terminated, "original_truncated": truncated}


def episodic(env: gym.Env | gym.vector.VectorEnv, horizon: int | None = None, **kwargs):
    """`Episodic` for a single environment, `EpisodicVector` for a vector."""
    wrapper = EpisodicVector if isinstance(env, gym.vector.VectorEnv) else Episodic
    return cast(Any, wrapper)(env, horizon, **kwargs)


class _blame:
    """Turns any exception of a user's environment into one sentence with its name and the step."""

    copy: int | None = None
    """Index of the copy that is stepped, if known."""
    running: ClassVar[_blame | None] = None
    """The call that has not returned yet."""

    def __init__(self, name: str, moment: str, copies: int = 1):
        self.name, self.moment, self.copies = name, moment, copies

    def __enter__(self) -> _blame:
        self.began, _blame.running = time.monotonic(), self
        return self

    @property
    def whom(self) -> str:
        """The environment and its copy."""
        return f"environment {self.name}" + (
            f" (copy {self.copy} of {self.copies})" * (self.copy is not None)
        )

    def __exit__(self, kind, error, traceback) -> None:
        _blame.running = None
        if isinstance(error, Exception | SystemExit) and not isinstance(error, gym.error.ResetNeeded):
            what = f"{self.whom} failed at {self.moment}"
            message = " ".join(f"{what}: {type(error).__name__}: {error}".split())
            raise EnvironmentStepError(message) from error


def waiting(seconds: float) -> str:
    """The call of an environment that has lasted longer than this, in words; empty if there is none."""
    call = _blame.running
    lasted = 0.0 if call is None else time.monotonic() - call.began
    return f"{call.whom} has not returned from {call.moment}" if call and lasted > seconds else ""


def merge_infos(infos: Sequence[dict[str, Any]], only: Sequence[str] | None = None) -> dict[str, Any]:
    """Merge infos as Gymnasium's vectors do: for each key an array of values, and its mask under `_key`."""
    merged: dict[str, Any] = {}
    if only is not None and not any(key in info for info in infos for key in only):
        return merged
    for key in dict.fromkeys(key for info in infos for key in info) if only is None else only:
        told = [info[key] for info in infos if key in info]
        if not told:
            continue
        plain = all(isinstance(value, NUMBERS) for value in told)
        array = np.zeros(len(infos), np.asarray(told).dtype if plain else object)
        mask = np.array([key in info for info in infos])
        if plain:
            array[mask] = told
        else:
            for index, value in zip(np.flatnonzero(mask), told, strict=True):
                array[index] = value
        merged |= {key: array, f"_{key}": mask}
    return merged


def _reward(given: Any) -> float:
    """A reward as a finite float."""
    array = None if isinstance(given, str | bytes) or given is None else np.asarray(given)
    if array is None or array.dtype.kind not in "biuf" or array.size != 1:
        raise ValueError(f"a reward must be one number, got {given!r:.60}")
    if not np.isfinite(array).all():
        raise ValueError(f"a reward must be finite, got {given}")
    return float(array.reshape(()))


def _pair(told: Any) -> tuple[Any, dict[str, Any]]:
    """The pair that `reset` returned, checked."""
    if not (isinstance(told, tuple) and len(told) == 2 and isinstance(told[1], dict)):
        raise ValueError(f"reset must return (observation, info), got {_shape_of(told)}")
    return told


def _five(told: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
    """The values that `step` returned, checked."""
    if not (isinstance(told, tuple) and len(told) == 5 and isinstance(told[4], dict)):
        values = "(observation, reward, terminated, truncated, info)"
        raise ValueError(f"step must return {values}, got {_shape_of(told)}")
    return told


def _shape_of(told: Any) -> str:
    """Describes a returned value in a few words."""
    if isinstance(told, tuple):
        return f"{len(told)} values, {', '.join(type(value).__name__ for value in told)}"
    return type(told).__name__
