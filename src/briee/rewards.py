"""Rewards that a user brings later: functions of step, observation and action, or of the decoded state.

A reward is written with `jax.numpy`, for it is compiled, and takes (step, observation, action) -> number or
(step, observation) -> one number per action. When its second parameter is named `latent`, it gets the soft
latent state psi(s), f32[K], in place of the observation.
"""

import importlib.util
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from briee.features import at_level
from briee.lsvi import Reward


class LatentReward(eqx.Module):
    """A reward of (level, psi_h(s)) as one of (level, observation)."""

    decoder: Any
    function: Reward

    def __call__(self, level: Int[Array, ""], observation: Float[Array, "..."]) -> Float[Array, " A"]:
        return self.function(level, at_level(self.decoder, level)(observation))


class ActionReward(eqx.Module):
    """A function (level, observation, action) -> number, as a reward of all actions at once."""

    function: Callable[..., Any]
    num_actions: int = eqx.field(static=True)

    def __call__(self, level: Int[Array, ""], observation: Float[Array, "..."]) -> Float[Array, " A"]:
        actions = jnp.arange(self.num_actions)
        values = jax.vmap(lambda action: jnp.asarray(self.function(level, observation, action)))(actions)
        return values.astype(jnp.float32)


class Floats(eqx.Module):
    """A function (level, observation) -> [A] of numbers of any type, as a reward."""

    function: Callable[..., Any]

    def __call__(self, level: Int[Array, ""], observation: Float[Array, "..."]) -> Float[Array, " A"]:
        return jnp.asarray(self.function(level, observation), jnp.float32)


def as_reward(function: Callable[..., Any], num_actions: int, decoder: Any = None) -> Reward:
    """A reward from a function as in the module's description; `decoder` has the levels stacked and is needed
    for functions of the latent state alone."""
    if isinstance(function, eqx.Module):
        return function  # type: ignore[return-value]
    try:
        names = list(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        raise ValueError(f"a reward must be a function, got {type(function).__name__}") from None
    if len(names) not in (2, 3):
        takes = "(step, observation) or (step, observation, action)"
        raise ValueError(f"a reward takes {takes}, not {len(names)} arguments")
    reward = Floats(function) if len(names) == 2 else ActionReward(function, num_actions)
    if names[1] != "latent":
        return reward
    if decoder is None:
        raise ValueError("a reward of the latent state needs a decoder")
    return LatentReward(decoder, reward)


def check_reward(reward: Reward, observation_shape: tuple[int, ...], num_actions: int) -> None:
    """Trace the reward once; whatever it does wrong is one sentence in a `ValueError`."""
    level = jax.ShapeDtypeStruct((), jnp.int32)
    observation = jax.ShapeDtypeStruct(observation_shape, jnp.float32)
    try:
        found = eqx.filter_eval_shape(reward, level, observation)
    except (jax.errors.ConcretizationTypeError, jax.errors.TracerArrayConversionError):
        advice = "use jnp.where in place of if, jnp in place of np, no float() or int()"
        raise ValueError(f"a reward is compiled, so it must be written with jax.numpy: {advice}") from None
    except Exception as error:  # the user's own code may raise anything
        first = (str(error).strip().splitlines() or [""])[0]
        raise ValueError(f"the reward fails: {type(error).__name__}: {first}".rstrip(": ")) from error
    if found.shape != (num_actions,):
        inside = found.shape[1:] if isinstance(_innermost(reward), ActionReward) else found.shape
        wanted = "one number" if isinstance(_innermost(reward), ActionReward) else f"{num_actions} numbers"
        raise ValueError(f"the reward must return {wanted}, one per action, got shape {inside}")


def _innermost(reward: Any) -> Any:
    return reward.function if isinstance(reward, LatentReward) else reward


def load_function(place: str) -> Callable[..., Any]:
    """The function in `FILE.py:function`. This runs the file: only load what you would run yourself."""
    file, _, name = place.rpartition(":")
    path = Path(file)
    if not name or path.suffix != ".py" or not path.is_file():
        raise ValueError(f"a reward is FILE.py:function with a file that exists, got {place!r}")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # the user's own code may raise anything
        first = (str(error).strip().splitlines() or [""])[0]
        raise ValueError(f"cannot run {path}: {type(error).__name__}: {first}".rstrip(": ")) from error
    if not callable(getattr(module, name, None)):
        own = [key for key, value in vars(module).items() if inspect.isfunction(value)]
        known = f": it has {', '.join(own)}" if own else ""
        raise ValueError(f"{path} has no function {name!r}{known}")
    return getattr(module, name)
