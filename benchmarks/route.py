"""The modules that a run enters: `python benchmarks/route.py [ARGUMENTS OF briee train]`.

A module is entered when one of its functions is called; what happens while a module is imported does not
count. A run has three stages. It reads the request, by name, without JAX; then it makes the objects behind
the names; then it loops.
"""

import contextlib
import inspect
import runpy
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from types import CodeType, FrameType

import briee

ROOT = Path(briee.__file__).parent
EXAMPLE = ("lock", "--algo", "efficient", "--horizon", "25")
STAGES = {"cli/main.py": "request", "compute.py": "construction", "training/loop.py": "loop"}
"""The first module of each stage, and the name of the stage."""


def entered(arguments: Sequence[str]) -> list[Path]:
    """The files of this package that `briee train` enters, relative to it, in order of first entry."""
    found: dict[Path, None] = {}
    counted: set[CodeType] = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        ours = code.co_flags & inspect.CO_OPTIMIZED and code.co_filename.startswith(str(ROOT))  # a function
        ours = ours and Path(code.co_filename).name != "__main__.py"  # it only starts the run
        if event == "call" and ours and code not in counted and not _in_import(frame):
            counted.add(code)
            found[Path(code.co_filename).relative_to(ROOT)] = None

    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(sys.stderr):
        sys.argv = ["briee", "train", *arguments, "--run-dir", f"{folder}/run"]
        threading.setprofile(note)
        sys.setprofile(note)
        try:
            runpy.run_module("briee", run_name="__main__")
        except SystemExit as stop:
            if stop.code:
                raise
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
    return list(found)


def _in_import(frame: FrameType | None) -> bool:
    """Whether a module of the package is being imported."""
    while frame is not None:
        code = frame.f_code
        if code.co_name == "<module>" and code.co_filename.startswith(str(ROOT)):
            return Path(code.co_filename).name != "__main__.py"  # its code starts the run
        frame = frame.f_back
    return False


if __name__ == "__main__":
    files = [path.as_posix() for path in entered(sys.argv[1:] or EXAMPLE)]
    stage = ""
    for file in files:
        stage = STAGES.get(file, stage)
        room = file.split("/")[0] if "/" in file else "top level"
        print(f"{stage:14}{room:12}{file}")
    print(f"{len(files)} modules")
