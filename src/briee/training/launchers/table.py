"""The display of a launcher: a live table of all runs in a terminal, a line per run elsewhere."""

import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table

from briee.training.directory import read_json, read_table
from briee.training.launchers import Outcome
from briee.training.progress import clock


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
