"""A user's reward functions: of step, observation and action, or of the decoded state.

A reward is written with `jax.numpy`, because it is compiled. It maps (step, observation, action) to a number
or (step, observation) to one number per action. If its second parameter is named `latent`, it gets the soft
latent state psi(s), f32[K], instead of the observation.
"""

import inspect
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from briee.numerics.linalg import at_level
from briee.protocols import Reward


class ByLevel(eqx.Module):
    """(level, observation) -> psi_h(s), from decoders stacked over levels."""

    decoders: Any

    def __call__(self, level: Int[Array, ""], observation: Float[Array, "..."]) -> Float[Array, " K"]:
        return at_level(self.decoders, level)(observation)


class LatentReward(eqx.Module):
    """A reward of (level, psi_h(s)) as one of (level, observation)."""

    decoder: Callable[..., Any]
    function: Reward

    def __call__(self, level: Int[Array, ""], observation: Float[Array, "..."]) -> Float[Array, "..."]:
        return self.function(level, self.decoder(level, observation))


class ActionReward(eqx.Module):
    """A reward of all actions at once from a function (level, observation, action) -> number.

    `check_reward` refuses functions with which the result is not [A].
    """

    function: Callable[..., Any]
    num_actions: int = eqx.field(static=True)

    def __call__(self, level: Int[Array, ""], observation: Float[Array, "..."]) -> Float[Array, "..."]:
        actions = jnp.arange(self.num_actions)
        values = jax.vmap(lambda action: jnp.asarray(self.function(level, observation, action)))(actions)
        return values.astype(jnp.float32)


class Floats(eqx.Module):
    """A reward from a function (level, observation) -> [A] numbers of any type."""

    function: Callable[..., Any]

    def __call__(self, level: Int[Array, ""], observation: Float[Array, "..."]) -> Float[Array, "..."]:
        return jnp.asarray(self.function(level, observation), jnp.float32)


def as_reward(function: Callable[..., Any], num_actions: int, decoder: Any = None) -> Reward:
    """A reward from a function described above; `decoder`, (level, observation) -> psi_h(s), is needed only
    for functions of the latent state."""
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
    """Trace the reward once; any error becomes a `ValueError` of one sentence."""
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
        inner = reward.function if isinstance(reward, LatentReward) else reward
        each = isinstance(inner, ActionReward)
        inside, wanted = (found.shape[1:], "one number") if each else (found.shape, f"{num_actions} numbers")
        raise ValueError(f"the reward must return {wanted}, one per action, got shape {inside}")
