"""Load a user's class or function given as `FILE.py:name`."""

import functools
import importlib.util
import inspect
import re
import sys
from pathlib import Path
from typing import Any, Literal

from briee.errors import suggestion


def load_from_file(place: str, kind: Literal["class", "function"]) -> Any:
    """The object at `FILE.py:name`; raises `ValueError` if there is none. This executes the file.

    The file's own exceptions become a `ValueError` for a function. For a class they are passed on, because
    the caller reports them together with the environment's name.
    """
    match, of_class = re.fullmatch(r"(.*\.py)(?::(.*))?", place), kind == "class"
    file, name = (match[1], match[2] or "") if match else (place, "")
    path = Path(file)
    if not path.is_file() or not (name or of_class):
        wanted = f"a reward is FILE.py:function with a file that exists, got {place!r}"
        raise ValueError(f"there is no file {file}" if of_class else wanted)
    try:
        names = vars(_module(path.resolve(), path.stat().st_mtime_ns))
    except Exception as error:  # the user's code may raise anything
        if of_class:
            raise
        first = (str(error).strip().splitlines() or [""])[0]
        raise ValueError(f"cannot run {path}: {type(error).__name__}: {first}".rstrip(": ")) from error
    if name in names and (of_class or callable(names[name])):
        return names[name]
    is_kind = inspect.isclass if of_class else inspect.isfunction
    known = [key for key, value in names.items() if is_kind(value)]
    if of_class:
        raise ValueError(f"{file} has no {name!r}{suggestion(name, known)}")
    raise ValueError(f"{path} has no function {name!r}" + (f": it has {', '.join(known)}" if known else ""))


@functools.cache
def _module(path: Path, modified: int) -> Any:
    """The executed file; executed again only if it was modified."""
    spec = importlib.util.spec_from_file_location(f"briee_user_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
