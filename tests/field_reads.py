"""Which fields of a configuration a run reads, noted by the configuration itself."""

import dataclasses
import sys
from typing import Any, TypeVar

C = TypeVar("C")

SILENT = ("dataclasses", "briee.configuration", __name__)
"""Modules that read every field, whatever it is for: copies, comparisons, checks of values, JSON."""


class FieldReads:
    """Dotted names of the fields that were read on configurations that `watch` returned."""

    def __init__(self):
        self.names: set[str] = set()

    def watch(self, config: C, prefix: str = "") -> C:
        """An equal configuration that notes here which of its fields are read."""
        kind: Any = type(config)
        fields = {field.name for field in dataclasses.fields(kind)}
        names = self.names

        def read(this: Any, name: str) -> Any:
            caller = sys._getframe(1)
            if name in fields and caller.f_globals["__name__"] not in SILENT and not checks(caller):
                names.add(prefix + name)
            return object.__getattribute__(this, name)

        def same(this: Any, other: Any) -> bool:
            return type(this) is type(other) and values(this) == values(other)

        def values(this: Any) -> tuple[Any, ...]:
            return tuple(object.__getattribute__(this, name) for name in sorted(fields))

        methods = {"__getattribute__": read, "__eq__": same, "__hash__": lambda this: hash(values(this))}
        watched = object.__new__(type(kind.__name__, (kind,), methods))
        for name in fields:
            value = getattr(config, name)
            part = self.watch(value, f"{prefix}{name}.") if dataclasses.is_dataclass(value) else value
            object.__setattr__(watched, name, part)
        return watched

    def unread(self, config: Any, prefix: str = "") -> set[str]:
        """Dotted names of the fields of `config` and of its parts that nothing has read."""
        found = set()
        for field in dataclasses.fields(config):
            value, name = getattr(config, field.name), prefix + field.name
            if dataclasses.is_dataclass(value):
                found |= self.unread(value, f"{name}.")
            elif name not in self.names:
                found.add(name)
        return found


def checks(frame: Any) -> bool:
    """Whether a frame checks values as a configuration is made."""
    return frame.f_code.co_name in ("__post_init__", "check_rounds")
