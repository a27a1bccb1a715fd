"""`briee runs`: list run directories with their state."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import tyro

from briee.cli.main import parse
from briee.errors import UsageError
from briee.training.listing import Listed, list_runs


@dataclasses.dataclass(frozen=True)
class RunsArgs:
    """List run directories with their state."""

    root: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="DIR")] = Path("runs")
    """Where to look, directories below included."""


def run(argv: Sequence[str]) -> int:
    """Run the command; returns the exit code."""
    args = parse(RunsArgs, argv, "briee runs")
    if not args.root.is_dir() and args.root != RunsArgs.root:
        raise UsageError(f"{args.root} is not a directory")
    listed = list_runs(args.root)
    if not listed:
        print(f"no runs in {args.root}")
        return 0
    table = [
        ("run", "state", "env", "horizon", "algorithm", "seed", "episodes", "return"),
        *map(run_cells, listed),
    ]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for line in table:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
    return 0


def run_cells(listed: Listed) -> tuple[str, ...]:
    """One line of `briee runs`."""
    config, summary = listed.config, listed.summary
    about = (str(config.get(name, "")) for name in ("env", "horizon", "algorithm", "seed"))
    episodes = f"{summary['episodes']:,}" if "episodes" in summary else ""
    final = summary.get("final_return")
    return (str(listed.path), listed.state, *about, episodes, "" if final is None else f"{final:.3f}")
