"""The run directory: its files, their formats, and its lock. Imports no JAX.

config.json     every value of the run; enough to build it again
manifest.json   versions, machine, command and times
metrics.csv     one row per iteration, columns in docs/metrics.md
checkpoint/     the newest two checkpoints (briee.training.checkpoint)
summary.json    the outcome so far
decoder.png     decoded states by true latent state, if these are known
lock            the process that is writing, while there is one

Files are replaced in one step, and every error while reading or writing them is one sentence.
"""

import contextlib
import csv
import gzip
import importlib.metadata
import io
import json
import os
import platform
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from filelock import FileLock, Timeout

import briee
from briee.compute import available_cores
from briee.errors import RunError

LOCK_SECONDS = 0.5
"""Wait this long for a lock, because a listing of runs holds it for a moment to see whether it is free."""
BEAT_SECONDS = 20.0
"""The holder of a lock touches the file this often."""
LIFETIME = 180.0
"""A lock of another machine that was not touched for this many seconds is free to take."""

PACKAGES = ("jax", "jaxlib", "equinox", "optax", "numpy", "scipy", "gymnasium")
THREAD_VARIABLES = ("XLA_FLAGS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")

Table = Sequence[Mapping[str, str]]
"""Rows of a CSV file."""


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """A new file that gets the name `path` in one step, once it is complete and on disk."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with open(partial, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    finally:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
    try:
        folder = os.open(path.parent, os.O_RDONLY)
    except OSError:  # Windows opens no directories
        return
    try:
        os.fsync(folder)  # the new name is on disk, too
    finally:
        os.close(folder)


def write_atomically(path: Path, text: str) -> None:
    """Replace the text of `path` in one step."""
    with replacing(path) as file:
        file.write(text.encode())


def write_json(path: Path, values: dict[str, Any]) -> None:
    """Replace a JSON file in one step."""
    write_atomically(path, json.dumps(values, indent=2) + "\n")


def read_json(path: Path) -> dict[str, Any] | None:
    """A JSON object, or None if the file does not exist; anything else is a `RunError`."""
    try:
        values = json.loads(path.read_text())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise RunError(f"cannot read {path}: {error}") from None
    if not isinstance(values, dict):
        raise RunError(f"cannot read {path}: it is not a JSON object")
    return values


@contextlib.contextmanager
def os_errors(path: Path) -> Iterator[None]:
    """Turn a full disk, a missing permission or a vanished directory into one sentence."""
    try:
        yield
    except OSError as error:
        raise RunError(f"cannot write {path}: {error.strerror or error}") from error


class LockLostError(RunError):
    """Another process has taken the run directory over."""


class Lock:
    """A lock file that this process holds, with its process and machine written into it."""

    def __init__(self, path: Path):
        self.path, self.note = path, {"pid": os.getpid(), "host": socket.gethostname(), "since": time.time()}
        with contextlib.suppress(PermissionError):  # Windows lets nobody write to a locked file
            path.write_text(json.dumps(self.note))
        self._released = threading.Event()
        self._heart = threading.Thread(target=self._beat, daemon=True)
        self._heart.start()

    def _beat(self) -> None:
        """Touch the file, however long an iteration takes."""
        while not self._released.wait(BEAT_SECONDS):
            with contextlib.suppress(OSError):
                os.utime(self.path)

    def check(self) -> None:
        """Raise `LockLostError` if another machine took the lock over because it thought this one dead."""
        holder = _holder(self.path)
        if holder and holder != self.note:
            raise LockLostError(f"{self.path.parent} was taken over by {_name(holder)}: this process stops")

    def release(self) -> None:
        """Remove the file, if it is still this process's own."""
        self._released.set()
        self._heart.join()
        with contextlib.suppress(OSError):
            if _holder(self.path) in (self.note, None):
                self.path.unlink()


@contextlib.contextmanager
def locked(path: Path) -> Iterator[Lock]:
    """Hold the lock file `path`, or raise `RunError` with the name of the process that does.

    On one machine the operating system holds the lock and releases it when the process ends, even if it is
    killed. Between machines that share a folder this may not work, so a lock of another machine counts as
    held for as long as its file is touched, and is taken over when that stopped.
    """
    lock = FileLock(path, timeout=LOCK_SECONDS)
    try:
        if _elsewhere(path) == "alive":
            raise Timeout(str(path))
        try:
            lock.acquire()
        except Timeout:
            if _elsewhere(path) != "dead":
                raise
            _set_aside(path)
            lock.acquire()
    except Timeout:
        raise RunError(f"{path.parent} is in use by {_name(_holder(path))}") from None
    held = Lock(path)
    try:
        yield held
    finally:
        held.release()
        lock.release()


def is_locked(path: Path) -> bool:
    """Whether a process holds the lock file; yes, if this user may not try."""
    if not path.exists():
        return False
    if elsewhere := _elsewhere(path):
        return elsewhere == "alive"
    try:
        with FileLock(path, timeout=0):
            return False
    except OSError:
        return True


def _holder(path: Path) -> dict[str, Any] | None:
    """The note in a lock file; None if there is none, or none that can be read."""
    try:
        note = json.loads(path.read_text())
        return note if {"pid", "host"} <= note.keys() else None
    except (OSError, ValueError, AttributeError):
        return None


def _name(holder: dict[str, Any] | None) -> str:
    """The process that a note names."""
    return f"process {holder['pid']} on {holder['host']}" if holder else "another process"


def _elsewhere(path: Path) -> str | None:
    """`alive` or `dead` for the lock of a process on another machine, by when it was touched; else None."""
    holder = _holder(path)
    with contextlib.suppress(FileNotFoundError):  # released meanwhile
        if holder and holder["host"] != socket.gethostname():
            return "alive" if time.time() - path.stat().st_mtime < LIFETIME else "dead"
    return None


def _set_aside(path: Path) -> None:
    """Remove the lock of a dead process, but not one that somebody else has put in its place meanwhile."""
    aside = path.with_name(f".{path.name}.{os.getpid()}.partial")
    with contextlib.suppress(FileNotFoundError):
        os.replace(path, aside)
        if _elsewhere(aside) == "dead" or path.exists():
            aside.unlink()
        else:
            os.replace(aside, path)


class MetricsFile:
    """`metrics.csv`: append-only, one row per iteration."""

    def __init__(self, path: Path):
        self.path = path
        self.columns: list[str] | None = None

    def rewind(self, iteration: int) -> None:
        """Drop an incomplete last line and the rows after `iteration`, which a resumed run computes again."""
        if not self.path.exists() and iteration == 0:
            return
        lines = _complete_lines(self.path)
        if len(lines) <= iteration:
            rows = max(len(lines) - 1, 0)
            raise RunError(f"{self.path} lacks rows: it has {rows} of {iteration} iterations")
        write_atomically(self.path, "".join(lines[: iteration + 1]) if iteration else "")
        self.columns = lines[0].strip().split(",") if iteration else None

    def append(self, row: Mapping[str, Any]) -> None:
        """Add one row; None becomes an empty cell, and the first row fixes the columns.

        The row survives a crash of this process at once, and a crash of the machine after `sync`.
        """
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        if self.columns is None:
            self.columns = list(row)
            writer.writerow(self.columns)
        if list(row) != self.columns:
            raise ValueError(f"every row needs the columns {self.columns}, got {list(row)}")
        writer.writerow(_cell(value) for value in row.values())
        with open(self.path, "a") as file:
            file.write(text.getvalue())

    def sync(self) -> None:
        """Push the rows to disk."""
        with open(self.path, "a") as file:
            os.fsync(file.fileno())


def read_table(path: Path, column: str | None = None) -> list[dict[str, str]]:
    """The complete rows of a CSV file, none if there is no file; `RunError` if it has no such `column`."""
    table = csv.DictReader(_complete_lines(path))
    if column is not None and column not in (table.fieldnames or [column]):
        raise RunError(f"cannot read {path}: its first line does not name the column {column!r}")
    return [row for row in table if None not in row and None not in row.values()]


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The complete rows of metrics.csv as numbers, with None for empty cells."""
    return [{name: _number(cell) for name, cell in row.items()} for row in read_table(path, "iteration")]


def write_table(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Replace a table by rows with equal columns, in one step; compressed if its name ends with .gz."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    data = text.getvalue().encode()
    with replacing(path) as file:
        file.write(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)


def _complete_lines(path: Path) -> list[str]:
    """The lines of a file, without a last one that lacks its end."""
    try:
        data = path.read_bytes()
        text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode()
    except FileNotFoundError:
        return []
    except (OSError, EOFError, ValueError) as error:
        raise RunError(f"cannot read {path}: {error}") from None
    return [line for line in text.splitlines(keepends=True) if line.endswith("\n")]


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return str(value) if isinstance(value, int) else format(value, ".9g")


def _number(cell: str) -> float | int | None:
    for kind in (int, float):
        try:
            return kind(cell)
        except ValueError:
            pass
    return None


def make_manifest(command: str, previous: dict[str, Any] | None = None) -> dict[str, Any]:
    """The contents of manifest.json as a process starts to work on a run.

    `previous` is the manifest of the process before it, if any. `sessions` has one entry per process;
    `started` is the start of the first, `ended` the end of the last.
    """
    session = {"command": command, "started": utc_now(), "ended": None}
    sessions = [*(previous or {}).get("sessions", []), session]
    return {
        "briee": briee.__version__,
        "commit": source_commit(),
        "python": platform.python_version(),
        "packages": {name: importlib.metadata.version(name) for name in PACKAGES},
        "platform": platform.platform(),
        "cpu": cpu_model(),
        "cores": available_cores(),
        "threads": {name: os.environ.get(name) for name in THREAD_VARIABLES},
        "command": sessions[0]["command"],
        "started": sessions[0]["started"],
        "ended": None,
        "sessions": sessions,
    }


def close_manifest(manifest: dict[str, Any]) -> dict[str, Any]:
    """The manifest with the end of its last session."""
    ended = utc_now()
    *earlier, last = manifest["sessions"]
    return manifest | {"ended": ended, "sessions": [*earlier, last | {"ended": ended}]}


def utc_now() -> str:
    """The time in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def cpu_model() -> str:
    """The name of the CPU, if the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "unknown")


def source_commit() -> str | None:
    """The commit of the source tree this package runs from, "+changes" if edited; None if there is none."""
    root = Path(__file__).resolve().parents[3]
    if not (root / ".git").exists():
        return None
    try:
        commit, changes = _git(root, "rev-parse", "HEAD"), _git(root, "status", "--porcelain", "--", "src")
    except (OSError, subprocess.SubprocessError):
        return None
    return commit + ("+changes" if changes else "")


def _git(root: Path, *arguments: str) -> str:
    command = ["git", "-C", str(root), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
