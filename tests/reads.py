"""What the source refers to and where that is defined; which fields of a configuration a run reads."""

import ast
import dataclasses
import functools
import sys
from importlib.util import resolve_name
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import briee

SOURCE = Path(briee.__file__).parent


class Module(NamedTuple):
    """What a module defines and imports from this package, by name."""

    defined: dict[str, ast.stmt]
    imported: dict[str, tuple[str, str]]


class Place(NamedTuple):
    """A piece of source, and the class whose `self` it sees: (module, name)."""

    module: str
    node: ast.AST
    owner: tuple[str, str] | None = None


def references(place: Place) -> list[Place]:
    """What a piece of source refers to: names, attributes of modules, methods of `self` and `super()`."""
    places = []
    for node in ast.walk(place.node):
        if isinstance(node, ast.Name) and (found := resolve(place.module, node.id)):
            places.append(Place(*found, (found[0], node.id)))
        if not isinstance(node, ast.Attribute):
            continue
        match node.value:
            case ast.Name(id="self") if place.owner and (found := method(*place.owner, node.attr)):
                places.append(Place(*found, place.owner))
            case ast.Call(func=ast.Name(id="super")) if place.owner:
                above = [method(*base, node.attr) for base in bases(*place.owner)]
                places += [Place(*found, place.owner) for found in above if found]
            case ast.Name(id=name) if name in load(place.module).imported:
                if found := resolve(".".join(load(place.module).imported[name]), node.attr):
                    places.append(Place(*found))
    return places


@functools.cache
def load(module: str) -> Module:
    """A module of this package; empty for all others."""
    path = SOURCE.parent.joinpath(*module.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    if not (module.startswith("briee") and file.exists()):
        return Module({}, {})
    package = module if path.is_dir() else module.rpartition(".")[0]
    tree, defined, imported = ast.parse(file.read_text()), {}, {}
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else []
        names = [name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)]
        names += [node.name] if isinstance(node, ast.ClassDef | ast.FunctionDef) else []
        defined |= dict.fromkeys(names, node)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            origin = resolve_name("." * node.level + (node.module or ""), package)
            imported |= {alias.asname or alias.name: (origin, alias.name) for alias in node.names}
    return Module(defined, imported)


def resolve(module: str, name: str) -> tuple[str, ast.stmt] | None:
    """Where a name of a module is defined in this package."""
    known = load(module)
    if name in known.defined:
        return module, known.defined[name]
    return resolve(*known.imported[name]) if name in known.imported else None


def bases(module: str, name: str) -> list[tuple[str, str]]:
    """The base classes of a class in this package."""
    found = resolve(module, name)
    if found is None or not isinstance(found[1], ast.ClassDef):
        return []
    plain = (base.value if isinstance(base, ast.Subscript) else base for base in found[1].bases)
    named = (base.id for base in plain if isinstance(base, ast.Name))
    return [(found[0], base) for base in named if resolve(found[0], base)]


def method(module: str, name: str, attribute: str) -> tuple[str, ast.stmt] | None:
    """Where the method is that an object of a class has under a name."""
    found = resolve(module, name)
    if found is None or not isinstance(found[1], ast.ClassDef):
        return None
    own = (node for node in found[1].body if isinstance(node, ast.FunctionDef) and node.name == attribute)
    if node := next(own, None):
        return found[0], node
    return next(filter(None, (method(*base, attribute) for base in bases(module, name))), None)


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
