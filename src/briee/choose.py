"""What an agent learns with, by name: the algorithm, its preset, and single values of the settings."""

import dataclasses
import importlib
from typing import Any, NamedTuple

from briee import algorithms


class Choice(NamedTuple):
    """An algorithm's class, and the names of it and of the preset."""

    kind: Any
    name: str
    preset: str


def choose(algorithm: str | type, preset: str | None, config: Any = None) -> Choice:
    """The algorithm of a name or class; a preset of another algorithm with that very name means this one.

    Settings without the name of a preset mean the first preset that has such settings."""
    if isinstance(algorithm, type):
        return Choice(algorithm, str(getattr(algorithm, "name", algorithm.__name__)), preset or "custom")
    entry = algorithms.find(algorithms.ALGORITHMS, algorithm, "algorithm")
    default = algorithms.default_preset(algorithm)
    fitting = (p for p, make in entry.presets.items() if getattr(make, "__self__", None) is type(config))
    chosen: str = preset or (default if config is None else next(fitting, default))
    if chosen not in entry.presets and chosen in algorithms.ALGORITHMS:
        algorithm, entry = chosen, algorithms.ALGORITHMS[chosen]
    algorithms.find(entry.presets, chosen, f"preset of {algorithm}")
    module, _, name = entry.home(chosen).partition(":")
    return Choice(getattr(importlib.import_module(module), name), algorithm, chosen)


def check_seed(seed: Any) -> int:
    """The seed, if it is one; else a `ValueError`."""
    if isinstance(seed, bool) or not hasattr(seed, "__index__") or not 0 <= seed < 2**32:
        raise ValueError(f"seed must be a whole number from 0 to {2**32 - 1}, got {seed!r}")
    return int(seed)


def with_value(config: Any, field: str, value: Any, owner: str) -> Any:
    """`config` with another value of `field`, which may be in one of its parts."""
    if field == "num_latents" and value < 1:
        raise ValueError(f"num_latents must be >= 1, got {value}")
    names = config.__dataclass_fields__
    if field in names:
        return dataclasses.replace(config, **{field: value})
    for name in names:
        part: Any = getattr(config, name)
        if field in getattr(part, "__dataclass_fields__", ()):
            return dataclasses.replace(config, **{name: dataclasses.replace(part, **{field: value})})
    if (field, value) == ("decoder", "linear"):  # the only one where there is no choice
        return config
    raise ValueError(
        f"{owner} has no {field}, so it cannot be {value!r}: leave it out or choose another preset"
    )
