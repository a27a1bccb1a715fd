"""One seed, a tree of keys: every draw has a name and indices, so the order of draws changes nothing."""

import math
import zlib

import jax
import jax.numpy as jnp
from jax.extend.random import define_prng_impl
from jaxtyping import Array, Int, PRNGKeyArray


def stream(key: PRNGKeyArray, name: str, *indices: int | Int[Array, ""]) -> PRNGKeyArray:
    """The key for one purpose, e.g. `stream(key, "replearn", iteration, level)`."""
    key = jax.random.fold_in(key, zlib.crc32(name.encode()))
    for index in indices:
        key = jax.random.fold_in(key, index)
    return key


def unrolled(key: PRNGKeyArray) -> PRNGKeyArray:
    """The same key, with the same numbers, for a generator whose rounds are unrolled.

    On CPUs JAX loops over the rounds of its generator. That compiles faster, but draws a few hundred numbers
    two to three times as slowly. Unroll if one jitted function draws for minutes.
    """
    return jax.random.wrap_key_data(jax.random.key_data(key), impl=_UNROLLED)


def _threefry(key: Array, first: Array, second: Array) -> tuple[Array, Array]:
    """Threefry-2x32 with 20 rounds (Salmon et al. 2011), on pairs of counters."""
    keys = (key[0], key[1], key[0] ^ key[1] ^ jnp.uint32(0x1BD11BDA))
    first, second = first + keys[0], second + keys[1]
    for group in range(5):
        for rotation in ((13, 15, 26, 6), (17, 29, 16, 24))[group % 2]:
            first = first + second
            second = ((second << rotation) | (second >> (32 - rotation))) ^ first
        first = first + keys[(group + 1) % 3]
        second = second + keys[(group + 2) % 3] + jnp.uint32(group + 1)
    return first, second


def _counted(key: Array, shape: tuple[int, ...]) -> tuple[Array, Array]:
    """Two words for each entry of an array with fewer than 2^32 entries."""
    count = jnp.arange(math.prod(shape), dtype=jnp.uint32).reshape(shape)
    return _threefry(key, jnp.zeros_like(count), count)


def _bits(key: Array, width: int, shape: tuple[int, ...]) -> Array:
    first, second = _counted(key, shape)
    if width == 64:
        return first.astype(jnp.uint64) << 32 | second
    return (first ^ second).astype(f"uint{width}")


def _seed(seed: Array) -> Array:
    return jnp.stack([jnp.uint32(0), seed.astype(jnp.uint32)])


_UNROLLED = define_prng_impl(
    key_shape=(2,),
    seed=_seed,
    split=lambda key, shape: jnp.stack(_counted(key, shape), axis=-1),
    random_bits=_bits,
    fold_in=lambda key, data: jnp.stack(_threefry(key, *_seed(jnp.asarray(data)))),
    name="threefry-unrolled",
    tag="unrolled",
)
