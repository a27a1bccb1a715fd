"""`briee compare`: which algorithm needs fewer episodes, with intervals over seeds."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import tyro

from briee.cli.main import parse
from briee.errors import RunError, UsageError


@dataclasses.dataclass(frozen=True)
class CompareArgs:
    """Compare algorithms: solved share, median and interquartile mean of episodes to solve, with intervals
    over seeds; tables as Markdown, CSV and LaTeX, figures as PNG and PDF."""

    sources: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="DIR|runs.csv...")] = ()
    """Folders of sweeps, tables of runs, or folders with run directories."""
    output: Path = Path("comparison")
    """Folder for the tables and figures."""


def run(argv: Sequence[str]) -> int:
    """Run the command; returns the exit code."""
    args = parse(CompareArgs, argv, "briee compare")
    if not args.sources:
        raise UsageError("briee compare needs at least one table: runs.csv, or the folder of a sweep")
    if missing := [path for path in args.sources if not path.exists()]:
        raise UsageError(f"{missing[0]} does not exist")
    from briee.report.compare import compare, read_rows, write_comparison

    rows = read_rows(args.sources)
    if not rows:
        raise RunError("no run has begun yet")
    files = write_comparison(compare(rows), args.output)
    print((args.output / "compare.md").read_text())
    print(", ".join(map(str, files)))
    return 0
