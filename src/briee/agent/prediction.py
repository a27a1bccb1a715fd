"""Actions of a policy for observations that a user holds."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from briee.agent.observations import encode
from briee.numerics.keys import stream
from briee.protocols import Policy
from briee.rollout.samplers import Adapted


def predict(policy: Policy, adapted: Adapted, observation: Any, step: int, seed: int) -> Any:
    """The action at `step` for one observation, or int[N] for a batch [N, ...].

    The seed breaks ties, so equal observations give equal actions.
    """
    rows, single = encode(adapted, observation, step)
    key = stream(jax.random.key(seed), "predict", step)
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
