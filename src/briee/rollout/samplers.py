"""The sampler for an environment, given by name or as an object.

Pure environments are compiled into the rollout; every other Gymnasium environment is stepped on the host.
"""

import inspect
from collections.abc import Mapping
from typing import Any, NamedTuple

import gymnasium as gym
from gymnasium.vector import SyncVectorEnv
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker

from briee.envs.adapters.encoding import ObservationEncoder, discrete_actions
from briee.envs.adapters.rich import rich_observation
from briee.envs.adapters.third_party import environment_name, make_one
from briee.envs.gym_shells import PureEnv, PureVectorEnv
from briee.envs.knowledge import is_pure
from briee.envs.registry import SHORT_NAMES, make, registered
from briee.protocols import Environment, Sampler
from briee.rollout.host import HostSampler
from briee.rollout.scan import ScanSampler

TRANSPARENT = (OrderEnforcing, PassiveEnvChecker)
"""Wrappers of `gym.make` that do not change what an agent observes."""
HOST_ENVIRONMENTS = 64
"""Copies of a host environment that are stepped together."""


class Adapted(NamedTuple):
    """A sampler and its origin."""

    sampler: Sampler
    name: str
    """Short name of a pure environment of this package, a Gymnasium id, or the name of a class."""
    arguments: Mapping[str, Any] | None
    """Arguments with which `make(name, horizon=..., **arguments)` rebuilds it; None if that is impossible."""
    encoder: ObservationEncoder | None
    """Encoder of raw observations; None if they are arrays already."""


def adapt(
    env: Any,
    horizon: int | None = None,
    arguments: Mapping[str, Any] | None = None,
    rich: Mapping[str, Any] | None = None,
) -> Adapted:
    """A sampler for `env`: an environment of `gym.make` or `gym.make_vec`, a pure one, or a name.

    `horizon` is needed if the environment has no time limit. With a name, `arguments` are passed to the
    environment and `rich` to `rich_observation`. Raises `ValueError` with one sentence.
    """
    if isinstance(env, Adapted):
        return env
    if horizon is not None and horizon < 1:
        raise ValueError(f"horizon must be >= 1, got {horizon}")
    if isinstance(env, str):
        arguments = dict(arguments or {})
        sampler = make_sampler(env, horizon, arguments, rich)
        if isinstance(sampler, ScanSampler):
            return Adapted(sampler, SHORT_NAMES[env], arguments, None)
        return Adapted(sampler, env, None, sampler.encoder)
    if not isinstance(env, gym.Env | gym.vector.VectorEnv):
        if is_pure(env):
            return Adapted(ScanSampler(env), type(env).__name__, None, None)
        kinds = "an environment of gym.make or gym.make_vec, a pure environment, or a name"
        raise ValueError(f"env must be {kinds}, got {type(env).__name__}")
    pure = pure_behind(env)
    if pure is not None and horizon in (None, pure.horizon):
        return Adapted(ScanSampler(pure), *_origin(env, pure), None)
    if isinstance(env, gym.Env):
        discrete_actions(env.action_space, environment_name(env))
    sampler = HostSampler(env, horizon)
    return Adapted(sampler, environment_name(env), None, sampler.encoder)


def make_sampler(
    env: str, horizon: int | None, arguments: Mapping[str, Any], rich: Mapping[str, Any] | None = None
) -> ScanSampler | HostSampler:
    """A sampler for an environment by name; with `rich`, its observations go through `rich_observation`.

    Raises `ValueError` with one sentence.
    """
    if registered(env):
        if rich:
            raise ValueError(f"{env} has rich observations already: --rich is for Discrete ones")
        steps = {} if horizon is None else {"horizon": horizon}
        return ScanSampler(make(env, **{**arguments, **steps}))

    def make_copy():
        one = make_one(env, arguments)
        return rich_observation(one, rich) if rich else one

    return HostSampler(SyncVectorEnv([make_copy] * HOST_ENVIRONMENTS), horizon)


def pure_behind(env: gym.Env | gym.vector.VectorEnv) -> Environment | None:
    """The pure environment of a shell without wrappers that change it, or None."""
    base: Any = env
    while isinstance(base, TRANSPARENT):
        base = base.env
    return base.pure if isinstance(base, PureEnv | PureVectorEnv) else None


def _origin(env: gym.Env | gym.vector.VectorEnv, pure: Environment) -> tuple[str, Mapping[str, Any] | None]:
    """Short name and arguments of a pure environment made by Gymnasium."""
    entry = None if env.spec is None else registered(env.spec.id)
    if env.spec is None or entry is None:
        return type(pure).__name__, None
    parameters = inspect.signature(entry.constructor).parameters
    given = {key: value for key, value in env.spec.kwargs.items() if key in parameters}
    plain = all(isinstance(value, int | float | str | bool | None) for value in given.values())
    return SHORT_NAMES[env.spec.id], given if plain else None
