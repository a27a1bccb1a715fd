"""`briee leaderboard`: the page of a suite, made from tables of runs."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import tyro

from briee.cli.main import parse
from briee.cli.train import parse_train
from briee.training.directory import write_atomically
from briee.training.sweep import Run, read_sweep

SUITE = Path("benchmarks/block-mdp.toml")


@dataclasses.dataclass(frozen=True)
class LeaderboardArgs:
    """Make the leaderboard of a suite from tables of runs: fewest episodes first, unsolved runs shown."""

    tables: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="DIR|runs.csv...")] = ()
    """Folders of sweeps and tables of runs; by default all of results/."""
    suite: Path = SUITE
    """The sweep file of the suite."""
    output: Path = Path("docs/leaderboard.md")
    """The page to write."""


def run(argv: Sequence[str]) -> int:
    """Run the command; returns the exit code."""
    args = parse(LeaderboardArgs, argv, "briee leaderboard")
    from briee.report.leaderboard import leaderboard

    tables = args.tables or tuple(sorted(Path("results").glob("*/runs.csv")))
    write_atomically(args.output, leaderboard(read_suite(args.suite), tables))
    print(args.output)
    return 0


def read_suite(path: Path) -> list[Run]:
    """The runs of a suite, of environments that need not be installed here."""
    return read_sweep(path, lambda argv: parse_train(argv)[1], check=False)
