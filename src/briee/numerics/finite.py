"""Search a pytree for NaN and infinity."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

_CHUNK = 4 * 2**20  # numbers, or bytes of a file, handled at a time


@dataclass(frozen=True)
class NonFinite:
    """The position of a NaN or an infinity."""

    name: str
    index: tuple[int, ...]
    shape: tuple[int, ...]


def nonfinite(
    state: Any, names: Collection[str] | None = None, largest: int | None = None
) -> NonFinite | None:
    """The first NaN or infinity, if any, in the leaves among `names` with up to `largest` numbers."""
    for name, leaf in _named_leaves(state).items():
        asked = (names is None or name in names) and (largest is None or leaf.size <= largest)
        if asked and not _is_finite(leaf):
            index = np.argwhere(~np.isfinite(np.asarray(leaf)))[0]
            return NonFinite(name, tuple(map(int, index)), tuple(leaf.shape))
    return None


def finite_names(state: Any) -> frozenset[str]:
    """Names of the leaves without NaN or infinity."""
    return frozenset(name for name, leaf in _named_leaves(state).items() if _is_finite(leaf))


def _is_finite(leaf: Any) -> bool:
    """Whether no number is NaN or infinite."""
    if not jnp.issubdtype(leaf.dtype, jnp.inexact):
        return True
    numbers = np.asarray(leaf).reshape(-1)  # in place, NumPy is several times faster than XLA
    return all(np.isfinite(numbers[i : i + _CHUNK]).all() for i in range(0, len(numbers), _CHUNK))


def _is_key(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _named_leaves(state: Any) -> dict[str, Any]:
    """Leaves by dotted path, in the pytree's order."""
    named = {}
    for path, leaf in jax.tree_util.tree_flatten_with_path(state)[0]:
        name = jax.tree_util.keystr(path, simple=True, separator=".") or "leaf"
        if not isinstance(leaf, jax.Array | np.ndarray | np.generic | jax.ShapeDtypeStruct):
            raise TypeError(f"a checkpoint holds arrays only, but {name} is a {type(leaf).__name__}")
        if name in named:
            raise ValueError(f"two leaves are both named {name}")
        named[name] = leaf
    return named
