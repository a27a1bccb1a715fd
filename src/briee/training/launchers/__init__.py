"""Launchers: they carry out a list of jobs on this machine, on a Ray cluster or through SLURM. No JAX here.

All of them call `carry_out`, here or on another machine. A job is one run in one child process. Carrying out
a job that is done does nothing, and a job that another process has is left alone; so any number of launchers
may work on one list, and a launcher that died is replaced by starting it again.
"""

import contextlib
import os
import re
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from briee.errors import RunError
from briee.training.directory import is_locked, locked, write_json
from briee.training.sweep import is_done, log_file

CHILD = ("-m", "briee.training.launchers.child")
"""Runs `briee` with the arguments that follow, as long as somebody holds its standard input open."""
POLL_SECONDS = 0.05
GRACE_SECONDS = 60.0
"""A child has this long to write its checkpoint before it is killed."""


class Job(NamedTuple):
    """One run, in words that every machine understands."""

    name: str
    folder: str
    """Folder of the sweep."""
    command: tuple[str, ...]
    """The child's arguments after `python`."""
    episodes: int
    """Its budget."""
    variables: Mapping[str, str] = {}
    """Environment variables of the child."""
    cwd: str = "."


class Outcome(NamedTuple):
    """How a job ended: `done`, `stopped` (continue with the same command) or `failed`, and why."""

    state: str
    reason: str = ""


def carry_out(job: Job, stop: threading.Event | None = None) -> Outcome | None:
    """Run a job to its end, or until `stop` is set; None if another process has it."""
    stop, out = stop or threading.Event(), Path(job.folder)
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(locked(log_file(out, job.name, "lock")))
        except RunError:
            return None
        try:
            while is_locked(out / job.name / "lock"):  # the child of a launcher that was killed
                if stop.wait(POLL_SECONDS):
                    return Outcome("stopped", "not started")
            return Outcome("done") if is_done(out / job.name, job.episodes) else _attend(job, out, stop)
        except (OSError, RunError) as error:  # a full disk, a broken file
            return Outcome("failed", str(error))


def _attend(job: Job, out: Path, stop: threading.Event) -> Outcome:
    """Start the child and wait for its end."""
    note, log = log_file(out, job.name, "failed"), log_file(out, job.name, "log")
    note.unlink(missing_ok=True)
    with log.open("ab") as file:
        start = file.tell()
        child = subprocess.Popen(
            [sys.executable, *job.command],
            stdin=subprocess.PIPE,
            stdout=file,
            stderr=subprocess.STDOUT,
            env=os.environ | job.variables,
            cwd=job.cwd,
            start_new_session=True,  # Ctrl-C reaches the launcher, and it stops the child
        )
        over = threading.Thread(target=child.wait, daemon=True)  # `wait` with a time-out would be busy
        over.start()
        try:
            while over.is_alive() and not stop.is_set():
                over.join(POLL_SECONDS)
        finally:
            code = _stop(child)
    if code == 0:
        return Outcome("done")
    if code < 0 or code == 130:
        return Outcome("stopped", "interrupted" if code == 130 else f"killed by signal {-code}")
    reason = _last_line(log, start) or f"exit code {code}"
    with contextlib.suppress(OSError):  # a full disk
        write_json(note, {"reason": reason, "exit_code": code})
    return Outcome("failed", reason)


def _stop(child: subprocess.Popen[bytes]) -> int:
    """Let go of the child, which ends it, and wait; returns its exit code."""
    assert child.stdin is not None
    with contextlib.suppress(OSError):
        child.stdin.close()
    try:
        return child.wait(GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        child.kill()
        return child.wait()


def _last_line(log: Path, start: int) -> str:
    """The last line that a child printed: its error, or that of its traceback."""
    with log.open("rb") as file:
        file.seek(start)
        lines = [line.strip() for line in file.read().decode(errors="replace").splitlines()]
    return re.sub(r"^briee: ", "", next((line for line in reversed(lines) if line), ""))
