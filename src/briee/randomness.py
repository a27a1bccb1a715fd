"""One seed, a tree of keys: every draw has a name and an index, so order and repetition change nothing."""

import zlib

import jax
from jaxtyping import Array, Int, PRNGKeyArray


def stream(key: PRNGKeyArray, name: str, *indices: int | Int[Array, ""]) -> PRNGKeyArray:
    """The key for one purpose, e.g. `stream(key, "replearn", iteration, level)`."""
    key = jax.random.fold_in(key, zlib.crc32(name.encode()))
    for index in indices:
        key = jax.random.fold_in(key, index)
    return key
