"""`briee runs`: list run directories with their state."""

import dataclasses
import json
import shutil
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from briee.cli.main import Flag, parse
from briee.errors import UsageError
from briee.training.spec import Listed, list_runs

NEVER = 1_000_000
"""Columns of an output that is no terminal."""


@dataclasses.dataclass(frozen=True)
class RunsArgs:
    """List run directories with their state."""

    root: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="DIR")] = Path("runs")
    """Where to look, directories below included."""
    sort: Literal["run", "state", "env", "horizon", "algorithm", "seed", "episodes", "return"] = "run"
    """Column to sort by; numbers from the smallest, runs without a value last."""
    json: Flag = False
    """Print JSON: a list with an object per run."""


def run(argv: Sequence[str]) -> int:
    """Run the command; returns the exit code."""
    args = parse(RunsArgs, argv, "briee runs")
    if not args.root.is_dir() and args.root != RunsArgs.root:
        raise UsageError(f"{args.root} is not a directory")
    listed = sorted(list_runs(args.root), key=lambda run: _sort_key(run, args.sort))
    if args.json:
        print(json.dumps([{"run": str(run.path), "state": run.state} | run_values(run) for run in listed]))
        return 0
    if not listed:
        print(f"no runs in {args.root}")
        return 0
    table = [
        ("run", "state", "env", "horizon", "algorithm", "seed", "episodes", "return"),
        *map(run_cells, listed),
    ]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    if sum(widths) + 2 * (len(widths) - 1) > shutil.get_terminal_size((NEVER, 24)).columns:
        for name, *cells in table[1:]:  # the table would be broken in the middle of its lines
            about = [f"{title} {cell}" for title, cell in zip(table[0][2:], cells[1:], strict=True) if cell]
            wide = shutil.get_terminal_size().columns
            lines = textwrap.wrap(f"{cells[0]}: {', '.join(about)}", max(wide - 2, 20))
            print("\n  ".join([name, *lines]))
        return 0
    for line in table:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
    return 0


def run_values(listed: Listed) -> dict[str, Any]:
    """The values of one run, by column."""
    names = ("env", "horizon", "algorithm", "preset", "seed")
    outcome = {"episodes": listed.summary.get("episodes"), "return": listed.summary.get("final_return")}
    return {name: listed.config.get(name) for name in names} | outcome


def _sort_key(listed: Listed, column: str) -> tuple[Any, ...]:
    values = {"run": str(listed.path), "state": listed.state} | run_values(listed)
    value = values[column]
    return (value is None, isinstance(value, str), 0 if value is None else value, str(listed.path))


def run_cells(listed: Listed) -> tuple[str, ...]:
    """One line of `briee runs`."""
    config, summary = listed.config, listed.summary
    about = (str(config.get(name, "")) for name in ("env", "horizon", "algorithm", "seed"))
    episodes = f"{summary['episodes']:,}" if "episodes" in summary else ""
    final = summary.get("final_return")
    return (str(listed.path), listed.state, *about, episodes, "" if final is None else f"{final:.3f}")
