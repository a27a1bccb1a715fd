"""Observations that a user holds, as arrays, and the actions of a policy for them."""

import sys
from typing import Any

import equinox as eqx
import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np

from briee.configuration import whole_number
from briee.envs.adapters.encoding import ObservationEncoder
from briee.numerics.keys import stream
from briee.protocols import Policy
from briee.rollout.samplers import Adapted


def predict(
    policy: Policy, adapted: Adapted, observation: Any, step: int, seed: int, draw: int | None = None
) -> Any:
    """The action at `step` for one observation, or int[N] for a batch [N, ...].

    The seed breaks ties, so equal observations give equal actions, unless the number of a `draw` is given.
    """
    rows, single = encode(adapted, observation, step)
    key = stream(jax.random.key(seed), "predict", step)
    key = key if draw is None else jax.random.fold_in(key, draw)
    actions = np.asarray(_act(policy, jnp.int32(step), padded(rows), key))[: len(rows)]
    return int(actions[0]) if single else actions


def padded(rows: np.ndarray) -> np.ndarray:
    """Rows repeated up to a power of two, at least 8, so that few sizes are ever compiled."""
    size = max(8, 1 << (len(rows) - 1).bit_length())
    return rows[np.minimum(np.arange(size), len(rows) - 1)]


@eqx.filter_jit
def _act(policy, step, observations, key):
    # One row at a time, because a matrix product may round differently from a matrix-vector product.
    return jax.lax.map(lambda observation: policy(step, observation, key), observations)


def encode(adapted: Adapted, observation: Any, step: int = 0) -> tuple[np.ndarray, bool]:
    """Observations as f32[N, *shape], and whether only one was given; `ValueError` if they do not fit,
    or if episodes have no such step.

    Accepts observations of the environment, one or a batch, and arrays that are encoded already.
    """
    shape, horizon = adapted.sampler.observation_shape, adapted.sampler.horizon
    step = whole_number("step", step, least=-sys.maxsize)
    if not 0 <= step < horizon:
        raise ValueError(f"step must be in 0..{horizon - 1}, for episodes have {horizon} steps, got {step}")
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
    """The number of observations in a batch; None if it is a single observation."""
    path, part = encoder.parts[0]
    value = observation
    for step in path:
        try:
            value = value[step]
        except (KeyError, IndexError, TypeError):
            raise ValueError(f"observation lacks {step!r} of the space {encoder.source}") from None
    array = np.asarray(value)
    return len(array) if array.ndim == len(part.shape or ()) + 1 else None
