"""The run directory: its files and its lock. Imports no JAX.

config.json     every value of the run; enough to build it again
manifest.json   versions, machine, command and times
metrics.csv     one row per iteration, columns in docs/metrics.md
checkpoint/     the newest two checkpoints (briee.training.checkpoint)
summary.json    the outcome so far
decoder.png     decoded states by true latent state, if these are known
lock            the process that is writing, while there is one
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from briee.configuration import flatten
from briee.errors import RunError
from briee.training.files import locked, os_errors, read_json, write_json
from briee.training.metrics_csv import read_table
from briee.training.spec import RunSpec, Wanted

OUTCOMES = ("manifest.json", "metrics.csv", "summary.json", "decoder.png")


@contextlib.contextmanager
def claimed(path: Path, spec: RunSpec, *, resume: bool, overwrite: bool) -> Iterator[None]:
    """Lock the directory, check that it may be used for `spec`, and write config.json; else `RunError`.

    A directory with a run needs `resume` (same values) or `overwrite` (the files of the run are removed). A
    directory with foreign files needs `overwrite` (they stay).
    """
    with contextlib.ExitStack() as stack:
        with os_errors(path):
            path.mkdir(parents=True, exist_ok=True)
            stack.enter_context(locked(path / "lock"))
            for leftover in (*path.glob(".*.partial"), *path.glob("checkpoint/.*.partial")):
                leftover.unlink()  # incomplete files of a killed process
            if overwrite:
                _remove_run(path)
            else:
                _check(path, spec, resume)
            write_json(path / "config.json", spec.to_json())
        yield


def _check(path: Path, spec: RunSpec, resume: bool) -> None:
    """Raise `RunError` unless the directory is empty or holds the run `spec`, to be resumed."""
    known = read_json(path / "config.json")
    if known is None:
        if any(file.name != "lock" for file in path.iterdir()):
            raise RunError(f"{path} is not empty and not a run directory: choose another or add --overwrite")
        return
    if not resume:
        state = "a finished" if (read_json(path / "summary.json") or {}).get("finished") else "an unfinished"
        advice = "add --resume to continue it, --overwrite to replace it, or choose another --run-dir"
        raise RunError(f"{path} holds {state} run: {advice}")
    if difference := Wanted(spec).difference(flatten(known)):
        change = "{} = {!r}, not {!r}".format(*difference)
        raise RunError(f"{path} was started with {change}: resume with the same value")
    # a process killed between its first row and its first checkpoint leaves one row and no summary.json
    rows = len(read_table(path / "metrics.csv"))
    begun = rows > 1 or (rows == 1 and (path / "summary.json").exists())
    if begun and not any(path.glob("checkpoint/*.npz")):
        state = f"{path} has rows in metrics.csv but no checkpoint to continue from"
        raise RunError(f"{state}: start anew with --overwrite, or remove the folder")


def _remove_run(path: Path) -> None:
    """Remove the checkpoints first: a process killed halfway leaves a run directory, not a foreign one."""
    for file in (*path.glob("checkpoint/*.npz"), *(path / name for name in OUTCOMES)):
        file.unlink(missing_ok=True)
