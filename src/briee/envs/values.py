"""Whether a value has the type that a constructor asks for."""

from __future__ import annotations

import inspect
import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

KINDS = {
    "int": "a whole number",
    "float": "a finite number",
    "bool": "True or False",
    "str": "a word",
}


def check_values(constructor: Callable[..., Any], values: Mapping[str, Any]) -> None:
    """Raise `ValueError` for a value whose type is not the one that the constructor's signature names."""
    parameters = inspect.signature(constructor).parameters
    for name, value in values.items():
        kind, *other = str(parameters[name].annotation).split(" | ")
        if kind in KINDS and not (_is(kind, value) or (value is None and "None" in other)):
            raise ValueError(f"{name} must be {KINDS[kind]}{' or None' if other else ''}, got {value!r}")


def _is(kind: str, value: Any) -> bool:
    if kind in ("bool", "str") or isinstance(value, bool | str):
        return type(value).__name__ == kind
    try:
        return math.isfinite(operator.index(value) if kind == "int" else float(value))
    except (TypeError, ValueError):
        return False
