"""Observations that repeat exactly are states at once: 64-bit hashes of observations, in NumPy and in JAX.

Every coordinate's bits are mixed, then summed with random weights modulo 2^32, twice. Integer sums do not
depend on their order, so both forms give the same bits. Two of 10,000 observations share a hash with
probability 3e-12.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, UInt

FIRST, SECOND = np.uint32(0x7FEB352D), np.uint32(0x846CA68B)  # multipliers of a 32-bit finaliser
STEP = np.uint32(0x9E3779B1)  # multiplier of the step, where it is part of the state


@functools.lru_cache(maxsize=8)
def weights(dimension: int) -> UInt[np.ndarray, "2 D"]:
    """Odd random weights of the coordinates."""
    return np.random.default_rng(dimension).integers(0, 2**32, (2, dimension), np.uint32) | np.uint32(1)


def hashes(x: Float[np.ndarray, "n D"], step: int | np.ndarray = 0) -> UInt[np.ndarray, "n 2"]:
    """The hash of each row; `step` > 0 makes equal observations of different steps different."""
    bits = np.where(x == 0, np.float32(0), x.astype(np.float32, copy=False)).view(np.uint32)
    bits = bits ^ (bits >> 16)
    bits *= FIRST
    bits ^= bits >> 15
    bits *= SECOND
    bits ^= bits >> 16
    one, two = weights(x.shape[1])
    salt = np.asarray(step, np.uint32) * STEP
    return np.stack([(bits * one).sum(1, dtype=np.uint32), (bits * two).sum(1, dtype=np.uint32) + salt], 1)


def compiled_hash(x: Float[Array, " D"], step: Array) -> UInt[Array, " 2"]:
    """As `hashes`, for one observation in a jitted function."""
    bits = jax.lax.bitcast_convert_type(jnp.where(x == 0, 0.0, x).astype(jnp.float32), jnp.uint32)
    bits = (bits ^ (bits >> 16)) * FIRST
    bits = (bits ^ (bits >> 15)) * SECOND
    bits = bits ^ (bits >> 16)
    total = (jnp.asarray(weights(x.shape[0])) * bits).sum(1, dtype=jnp.uint32)
    return total.at[1].add(step.astype(jnp.uint32) * STEP)


def whole(pairs: UInt[np.ndarray, "n 2"]) -> UInt[np.ndarray, " n"]:
    """Hashes as single numbers of 64 bits."""
    return (pairs[:, 0].astype(np.uint64) << np.uint64(32)) | pairs[:, 1]


def repeated_share(known: UInt[np.ndarray, " n"], fresh: UInt[np.ndarray, "E levels"]) -> float:
    """The share of fresh observations, without the first of each episode, that are among the known ones or
    came before in the same batch, in another episode or step."""
    rest = fresh[:, 1:].ravel()
    _, first = np.unique(np.concatenate([known, fresh[:, 0], rest]), return_index=True)
    new = (first >= len(known) + len(fresh)).sum()
    return 1.0 - float(new) / max(len(rest), 1)
