"""Launchers: they carry out a list of jobs on this machine, on a Ray cluster or through SLURM. No JAX here.

All of them call `carry_out`, here or on another machine. A job is one run in one child process. Carrying out
a job that is done does nothing, and a job that another process has is left alone; so any number of launchers
may work on one list, and a launcher that died is replaced by starting it again. `Board` shows them.
"""

import contextlib
import os
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.live import Live
from rich.table import Table

from briee.errors import RunError
from briee.training.directory import is_locked, locked, read_json, read_table, write_json
from briee.training.progress import clock
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


class Board:
    """The state of every run; a context manager. Threads may report to it."""

    def __init__(self, out: Path, budgets: Mapping[str, int], console: Console | None = None):
        """`budgets` are the episodes of the runs that are left to do, by name."""
        self.out, self.budgets, self.opened = out, budgets, time.monotonic()
        self.console = console or Console(highlight=False, soft_wrap=True)
        self.began: dict[str, float] = {}
        self.outcomes: dict[str, Outcome] = {}
        self.shown = 0.0
        self.live = Live(console=self.console, auto_refresh=False) if self.console.is_terminal else None

    def __enter__(self) -> "Board":
        if self.live:
            self.live.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self.show(at_once=True)
        if self.live:
            self.live.stop()

    def started(self, name: str) -> None:
        """A worker has taken a run."""
        self.began[name] = time.monotonic()

    def waits(self, name: str) -> None:
        """Another launcher has it."""
        self.began.pop(name)

    def ended(self, name: str, outcome: Outcome) -> None:
        """A run is over, for now."""
        self.began.pop(name)
        self.outcomes[name] = outcome
        if not self.live:
            done = outcome.state == "done"
            words = _solved(self.out / name) if done else f"{outcome.state}: {outcome.reason}"
            self.console.print(f"{name}: {words}; {self.rest()}", markup=False)

    def rest(self) -> str:
        """The number of runs left, and the time they need at the present rate."""
        left = len(self.budgets) - len(self.outcomes)
        if not left or not self.outcomes:
            return f"{left} left"
        each = (time.monotonic() - self.opened) / len(self.outcomes)
        return f"{left} left, about {clock(each * left)}"

    def show(self, at_once: bool = False) -> None:
        """Draw the table anew, once a second at most."""
        if self.live and (at_once or time.monotonic() - self.shown > 1):
            self.shown = time.monotonic()
            self.live.update(self.render(), refresh=True)

    def render(self) -> Table:
        """Runs at work and runs that failed, as many as fit, and the number of all others."""
        count = Counter(outcome.state for outcome in self.outcomes.values())
        words = ", ".join(f"{number} {state}" for state, number in sorted(count.items()))
        table = Table(title=f"{words or 'starting'}; {self.rest()}", title_justify="left", box=None)
        for column in ("run", "state", "episodes", "return", "time", "at most left"):
            table.add_column(column, justify="left" if column in ("run", "state") else "right")
        room = max(self.console.height - 4, 3)
        active = list(self.began.items())[:room]
        for name, began in active:
            table.add_row(*_progress(self.out / name, name, self.budgets[name], time.monotonic() - began))
        failed = [(name, outcome) for name, outcome in self.outcomes.items() if outcome.state != "done"]
        for name, outcome in failed[: room - len(active)]:
            table.add_row(name, f"{outcome.state}: {outcome.reason}")
        return table


def _progress(folder: Path, name: str, budget: int, seconds: float) -> tuple[str, ...]:
    """A line of the table, from the newest row of the run."""
    row = (read_table(folder / "metrics.csv") or [{}])[-1]
    episodes, value = int(row.get("episodes") or 0), row.get("eval_return") or ""
    left = clock(seconds * (budget / episodes - 1)) if 0 < episodes < budget else ""
    return name, "running", f"{episodes:,} / {budget:,}", value[:6], clock(seconds), left


def _solved(folder: Path) -> str:
    """The outcome of a run in a few words."""
    summary = read_json(folder / "summary.json") or {}
    if summary.get("solved"):
        return f"solved after {summary['episodes_to_solve']:,} episodes"
    return f"not solved in {summary['episodes']:,} episodes" if "episodes" in summary else "done"
