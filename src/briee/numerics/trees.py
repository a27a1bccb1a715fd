"""Pytrees with a leading axis of levels."""

import jax
from jaxtyping import Array, Int


def at_level(tree, level: int | Int[Array, ""]):
    """The slice of every leaf at one level, which may be traced."""
    return jax.tree.map(lambda leaf: leaf[level], tree)
