"""The check of shapes that the tests put into every function of the package, by jaxtyping and beartype.

Only hints that name an array are checked. Other ones are pyright's task, and tests may pass a stand-in.
"""

import typing
from collections.abc import Callable
from typing import Any

import numpy as np
from beartype import BeartypeConf, beartype
from jaxtyping import AbstractArray, Array, Shaped

_checked = beartype(conf=BeartypeConf(is_pep484_tower=True))


def check(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with a check of the arrays it takes and returns."""
    hints = function.__annotations__
    function.__annotations__ = {n: with_scalars(hint) for n, hint in hints.items() if names_an_array(hint)}
    return _checked(function)


def with_scalars(hint: Any) -> Any:
    """Also for NumPy's arrays without axes: scalars, as arithmetic makes them, and JAX's, if it is traced."""
    numpy = isinstance(hint, type) and issubclass(hint, AbstractArray) and hint.array_type is np.ndarray
    return hint | np.number | Shaped[Array, ""] if numpy and not hint.dims else hint


def names_an_array(hint: Any) -> bool:
    """Whether a hint, or a part of it, is an array with a shape."""
    if isinstance(hint, str):
        return "Array" in hint
    if isinstance(hint, type) and issubclass(hint, AbstractArray):
        return True
    if typing.get_origin(hint) is Callable:
        return False  # what it takes and returns is checked when it is called, if it is the package's
    return any(names_an_array(part) for part in typing.get_args(hint))
