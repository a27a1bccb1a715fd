"""Files of a run: replaced in one step, read with one kind of error, and locked by one process at a time."""

import contextlib
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from filelock import FileLock, Timeout

from briee.errors import RunError

LOCK_SECONDS = 0.5
"""Wait this long for a lock, because a listing of runs holds it for a moment to see whether it is free."""


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


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock file `path`, or raise `RunError` with the name of the process that does.

    The operating system releases the lock when its process ends, even if the process is killed.
    """
    lock = FileLock(path, timeout=LOCK_SECONDS)
    try:
        lock.acquire()
    except Timeout:
        raise RunError(f"{path.parent} is in use by {_noted(path)}") from None
    try:
        with contextlib.suppress(PermissionError):  # Windows lets nobody write to a locked file
            path.write_text(json.dumps({"pid": os.getpid(), "host": socket.gethostname()}))
        yield
    finally:
        with contextlib.suppress(OSError):
            path.unlink()  # still locked, so it is this process's own
        lock.release()


def is_locked(path: Path) -> bool:
    """Whether a process holds the lock file; yes, if this user may not try."""
    if not path.exists():
        return False
    try:
        with FileLock(path, timeout=0):
            return False
    except OSError:
        return True


def _noted(path: Path) -> str:
    """The process that a lock file names."""
    try:
        holder = json.loads(path.read_text())
        return f"process {holder['pid']} on {holder['host']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"
