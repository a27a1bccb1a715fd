"""Imports when they are needed: public names, which would import JAX, and packages of an extra."""

import importlib
from collections.abc import Callable, Mapping
from typing import Any

from briee.errors import RunError


def lazy_names(
    package: str, homes: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` for a package whose public `name` is defined in module `homes[name]`.

    If `homes[name]` is the package's own submodule `name`, the name stands for that module.
    """

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = importlib.import_module(homes[name])
        return module if homes[name] == f"{package}.{name}" else getattr(module, name)

    return get, lambda: sorted(homes)


def import_extra(module: str, extra: str) -> Any:
    """A module of a package that only an extra installs, or `RunError` with the command that does."""
    try:
        return importlib.import_module(module)
    except ImportError:
        package = module.partition(".")[0]
        raise RunError(f"this needs the package {package}: pip install 'briee[{extra}]'") from None
