"""`briee submit`: check runs of a suite before they are added to the leaderboard."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import tyro

from briee.cli.leaderboard import SUITE, read_suite
from briee.cli.main import parse
from briee.errors import RunError


@dataclasses.dataclass(frozen=True)
class SubmitArgs:
    """Check a submission: configuration, all seeds, counters that agree, no row missing."""

    folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="DIR")]
    """Folder with the run directories."""
    suite: Path = SUITE
    """The sweep file of the suite."""


def run(argv: Sequence[str]) -> int:
    """Run the command; returns the exit code."""
    args = parse(SubmitArgs, argv, "briee submit")
    from briee.report.leaderboard import complaints

    wrong = list(complaints(read_suite(args.suite), args.folder))
    for sentence in wrong:
        print(sentence)
    if wrong:
        raise RunError(f"{args.folder} cannot be submitted: {len(wrong)} things are wrong")
    print(f"{args.folder} is complete and consistent")
    return 0
