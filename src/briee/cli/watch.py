"""`briee watch`: show a run in the terminal, from its files alone, until it is over. Imports no JAX."""

import dataclasses
import shlex
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from briee.cli.main import Flag, parse
from briee.errors import UsageError
from briee.training.directory import read_json, read_metrics
from briee.training.progress import cells, clock, summary_lines
from briee.training.spec import Listed, list_runs, run_title

BARS = "▁▂▃▄▅▆▇█"
COLUMNS = (("return", "eval_return"), ("exploring", "explore_return"), ("level", "reached_level"))
WIDTH = 40


@dataclasses.dataclass(frozen=True)
class WatchArgs:
    """Show a run in the terminal, live while it goes on; ends by itself when the run is over."""

    run_dir: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="DIR")]
    """Directory of the run."""
    once: Flag = False
    """Show it as it is now, and end."""
    seconds: float = 1.0
    """Time between two looks."""


@dataclasses.dataclass(frozen=True)
class Look:
    """A run's files at one moment."""

    run: Listed
    rows: list[dict[str, Any]]

    @property
    def over(self) -> bool:
        """Whether nobody is working on the run."""
        return self.run.state != "running"


def run(argv: Sequence[str]) -> int:
    """Run the command; returns the exit code."""
    args = parse(WatchArgs, argv, "briee watch")
    if not args.seconds > 0:
        raise UsageError(f"seconds must be > 0, got {args.seconds}")
    console, now = Console(highlight=False), look(args.run_dir)
    if not (args.once or now.over):
        now = (_live if console.is_terminal else _plain)(console, args, now)
    console.print(screen(now), soft_wrap=True)
    for line in ending(now):
        console.print(line, soft_wrap=True)
    return 0


def _live(console: Console, args: WatchArgs, now: Look) -> Look:
    """Redraw the screen in place until the run is over."""
    with Live(screen(now), console=console, auto_refresh=False, transient=True) as live:
        while not now.over:
            time.sleep(args.seconds)
            now = look(args.run_dir)
            live.update(screen(now), refresh=True)
    return now


def _plain(console: Console, args: WatchArgs, now: Look) -> Look:
    """One line per iteration, if the output is no terminal."""
    shown = 0
    while True:
        for row in now.rows[shown:]:
            line = "  ".join(f"{name} {value}" for name, value in cells(row, now.run.config["horizon"]))
            console.print(line, soft_wrap=True)
        shown = len(now.rows)
        if now.over:
            return now
        time.sleep(args.seconds)
        now = look(args.run_dir)


def look(run_dir: Path) -> Look:
    """Read a run's files; `UsageError` if there is no run."""
    if not run_dir.is_dir():
        raise UsageError(f"{run_dir} is not a directory")
    listed = list_runs(run_dir)
    own = next((run for run in listed if run.path == run_dir), None)
    if own is None:
        below = ", ".join(str(run.path) for run in listed[:3]) + (", ..." if len(listed) > 3 else "")
        hint = f"; watch one of the runs below it: {below}" if listed else ""
        raise UsageError(f"{run_dir} is not a run directory: it has no config.json{hint}")
    if own.state == "unreadable":
        for name in ("config.json", "summary.json"):
            read_json(run_dir / name)  # says which is damaged, and how
    if "horizon" not in own.config:
        raise UsageError(f"{run_dir / 'config.json'} does not describe a run")
    return Look(own, read_metrics(run_dir / "metrics.csv"))


def screen(now: Look) -> Group:
    """A run on the screen: headline, budget, the newest row, and small curves."""
    config, rows = now.run.config, now.rows
    about = run_title(config["algorithm"], config.get("preset", ""), config["env"])
    headline = f"{about}, horizon {config['horizon']}, seed {config['seed']}: {now.run.state}"
    parts: list[Any] = [Text(headline, style="bold")]
    budget, episodes = int(config.get("episodes", 0)), int(rows[-1]["episodes"]) if rows else 0
    bar = Table.grid(padding=(0, 1))
    share = ProgressBar(total=max(budget, 1), completed=min(episodes, budget), width=WIDTH)
    bar.add_row("episodes", share, f"{episodes:,} of at most {budget:,}")
    for name, column in COLUMNS:
        values = [row[column] for row in rows if row.get(column) is not None]
        if values:
            bar.add_row(name, sparkline(values, WIDTH), f"{values[-1]:.4g} (best {max(values):.4g})")
    parts.append(bar)
    if rows:
        times = [sum(value or 0.0 for name, value in row.items() if "seconds_" in name) for row in rows]
        when = f"{len(rows)} iterations in {clock(sum(times))}, the last in {times[-1]:.1f} s"
        parts.append(Text(when, style="dim"))
    else:
        parts.append(Text("no iteration is complete yet", style="dim"))
    return Group(*parts)


def ending(now: Look) -> list[str]:
    """The last lines about a run that is over; none about one that goes on."""
    summary, run_dir = now.run.summary, now.run.path
    if not now.over:
        return []
    given = now.run.config.get("config", {}).get("evaluation", {}).get("target_return")
    target = {} if given is None else {"target_return": given}
    lines = summary_lines(summary | target, run_dir)[:2] if "seconds" in summary else []
    if now.run.state == "stopped":
        again = shlex.join(["briee", "train", now.run.config["env"], "--run-dir", str(run_dir), "--resume"])
        lines.append(f"stopped; to continue: {again}")
    return lines


def sparkline(values: Sequence[float], width: int) -> str:
    """A curve of up to `width` characters, each the mean of a stretch of values, from lowest to highest."""
    edges = [round(i * len(values) / width) for i in range(width + 1)]
    means = [sum(values[a:b]) / max(b - a, 1) for a, b in pairwise(edges)]
    points = means if len(values) > width else list(values)
    low, high = min(points), max(points)
    scale = (len(BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(BARS[round((point - low) * scale)] for point in points)
