"""From what a user holds to what an algorithm samples from: any environment, and observations of it.

Pure environments of this package are compiled into the rollout; every other Gymnasium environment is stepped
on the host.
"""

import inspect
from collections.abc import Mapping
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker

from briee.algorithms import make_sampler, pure_environments
from briee.envs import ENVIRONMENTS, PureEnv, PureVectorEnv, make
from briee.envs.encoding import ObservationEncoder, discrete_actions
from briee.envs.host import HostSampler
from briee.foreign import environment_name
from briee.rollout import Sampler, ScanSampler

TRANSPARENT = (OrderEnforcing, PassiveEnvChecker)
"""Wrappers of `gym.make` that change nothing an agent sees."""


class Adapted(NamedTuple):
    """An environment as an agent uses it."""

    sampler: Sampler
    name: str
    """Short name of a pure environment of this package, a Gymnasium id, or the name of a class."""
    arguments: Mapping[str, Any] | None
    """What `make(name, horizon=..., **arguments)` needs to build it again; None where it cannot be."""
    encoder: ObservationEncoder | None
    """How raw observations become arrays; None where they are arrays already."""


def adapt(
    env: Any,
    horizon: int | None = None,
    arguments: Mapping[str, Any] | None = None,
    rich: Mapping[str, Any] | None = None,
) -> Adapted:
    """A sampler for `env`: an environment of `gym.make` or `gym.make_vec`, a pure one, or a name.

    `horizon` is needed where the environment has no time limit; `arguments` are those of an environment by
    name, `rich` those of the rich observations it is seen through. Raises `ValueError` with one sentence.
    """
    if isinstance(env, Adapted):
        return env
    if horizon is not None and horizon < 1:
        raise ValueError(f"horizon must be >= 1, got {horizon}")
    if isinstance(env, str):
        return _adapt_name(env, horizon, dict(arguments or {}), rich)
    if not isinstance(env, gym.Env | gym.vector.VectorEnv):
        if all(hasattr(env, name) for name in ("initial", "transition", "observation", "horizon")):
            return Adapted(ScanSampler(env), type(env).__name__, None, None)
        kinds = "an environment of gym.make or gym.make_vec, a pure environment, or a name"
        raise ValueError(f"env must be {kinds}, got {type(env).__name__}")
    pure = pure_behind(env)
    if pure is not None and horizon in (None, pure.horizon):
        return Adapted(ScanSampler(pure), *_origin(env, pure), None)
    if isinstance(env, gym.Env):
        discrete_actions(env.action_space, environment_name(env))
    sampler = HostSampler(env, horizon)
    return Adapted(sampler, environment_name(env), None, getattr(sampler.env, "encoder", None))


def pure_behind(env: gym.Env | gym.vector.VectorEnv) -> Any:
    """The pure environment that `env` shows unchanged, or None."""
    base: Any = env
    while isinstance(base, TRANSPARENT):
        base = base.env
    return base.pure if isinstance(base, PureEnv | PureVectorEnv) else None


def encode(adapted: Adapted, observation: Any) -> tuple[np.ndarray, bool]:
    """Observations as f32[N, *shape], and whether one alone was given; what does not fit: `ValueError`.

    Accepted are observations of the environment, one or a batch, and arrays that are encoded already.
    """
    shape = adapted.sampler.observation_shape
    if adapted.encoder is not None and not _is_encoded(adapted.encoder, observation, shape):
        batch = _batch_size(adapted.encoder, observation)
        return adapted.encoder(observation, batch).reshape(-1, *shape), batch is None
    array = _as_floats(observation)
    if array.shape != shape and array.shape[1:] != shape:
        raise ValueError(f"observation has shape {array.shape}, expected {shape} or (N, {str(shape)[1:]}")
    array, single = (array[None], True) if array.shape == shape else (array, False)
    if not np.isfinite(array).all():
        where = np.flatnonzero(~np.isfinite(array.reshape(len(array), -1)).all(axis=1)).tolist()
        kind = "NaN" if np.isnan(array).any() else "infinite"
        raise ValueError(f"observation has {kind} entries" + ("" if single else f" in rows {where}"))
    return array, single


def _as_floats(observation: Any) -> np.ndarray:
    try:
        return np.asarray(observation, np.float32)
    except (TypeError, ValueError):
        kind = type(observation).__name__
        raise ValueError(f"observation must be an array of numbers, got {kind}") from None


def _is_encoded(encoder: ObservationEncoder, observation: Any, shape: tuple[int, ...]) -> bool:
    array = np.asarray(observation) if not isinstance(observation, dict | tuple) else None
    if array is None or array.dtype.kind != "f" or shape not in (array.shape, array.shape[1:]):
        return False
    own = encoder.source
    return not (isinstance(own, gym.spaces.Box) and own.shape == shape and own.dtype != np.uint8)


def _batch_size(encoder: ObservationEncoder, observation: Any) -> int | None:
    """How many observations these are; None for one alone."""
    path, part = encoder.parts[0]
    value = observation
    for step in path:
        try:
            value = value[step]
        except (KeyError, IndexError, TypeError):
            raise ValueError(f"observation lacks {step!r} of the space {encoder.source}") from None
    array = np.asarray(value)
    return len(array) if array.ndim == len(part.shape or ()) + 1 else None


def _adapt_name(
    name: str, horizon: int | None, arguments: Mapping[str, Any], rich: Mapping[str, Any] | None
) -> Adapted:
    known = {entry.id: short for short, entry in ENVIRONMENTS.items()}
    if name in pure_environments():
        given = {**arguments} if horizon is None else {**arguments, "horizon": horizon}
        return Adapted(ScanSampler(make(name, **given)), known.get(name, name), arguments, None)
    sampler = make_sampler(name, horizon, arguments, rich)
    return Adapted(sampler, name, None, getattr(sampler.env, "encoder", None))


def _origin(env: gym.Env | gym.vector.VectorEnv, pure: Any) -> tuple[str, Mapping[str, Any] | None]:
    """Short name and arguments of a pure environment that Gymnasium made."""
    known = {entry.id: short for short, entry in ENVIRONMENTS.items()}
    if env.spec is None or env.spec.id not in known:
        return type(pure).__name__, None
    parameters = inspect.signature(ENVIRONMENTS[known[env.spec.id]].constructor).parameters
    given = {key: value for key, value in env.spec.kwargs.items() if key in parameters}
    plain = all(isinstance(value, int | float | str | bool | None) for value in given.values())
    return known[env.spec.id], given if plain else None
