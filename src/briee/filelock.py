"""A lock file that names its holder and does not outlive it."""

import contextlib
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

try:
    import fcntl
except ImportError:  # Windows: the process id alone tells whether a lock is held
    fcntl = None


class InUseError(ValueError):
    """Another process holds the lock; the message is one sentence."""


class Holder(NamedTuple):
    """The process that wrote a lock."""

    pid: int
    started: str
    host: str

    @classmethod
    def this_process(cls) -> "Holder":
        return cls(os.getpid(), process_start(os.getpid()), socket.gethostname())

    @property
    def alive(self) -> bool:
        """Whether that very process still runs; on another machine it is assumed to."""
        if self.host != socket.gethostname():
            return True
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except OSError:  # it exists and belongs to somebody else
            pass
        return process_start(self.pid) == self.started


def process_start(pid: int) -> str:
    """When a process began, in the system's own count, so that a reused id shows; "" where unknown."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock file `path`, or raise `InUseError`. The lock of a dead process is taken over."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            _take(descriptor, path)
            if os.fstat(descriptor).st_ino != os.stat(path).st_ino:
                raise FileNotFoundError
        except FileNotFoundError:  # its last holder removed the file meanwhile: this lock is nobody's
            os.close(descriptor)
            continue
        except BaseException:
            os.close(descriptor)
            raise
        break
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(descriptor)


def _take(descriptor: int, path: Path) -> None:
    holder = lock_holder(path)
    if fcntl is not None:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InUseError(f"{path.parent} is in use by process {holder.pid if holder else '?'}") from None
        except OSError:  # a file system without locks: the process id decides
            pass
    if holder is not None and holder.alive and holder.pid != os.getpid():
        raise InUseError(
            f"{path.parent} is in use by process {holder.pid} on {holder.host}: remove {path} if not"
        )
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, json.dumps(Holder.this_process()._asdict()).encode(), 0)


def lock_holder(path: Path) -> Holder | None:
    """Who wrote the lock file, or None when there is none or it was cut short."""
    try:
        values = json.loads(path.read_text())
        return Holder(int(values["pid"]), str(values["started"]), str(values["host"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
