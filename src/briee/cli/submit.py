"""`briee submit`: check runs of a suite before they are added to the leaderboard."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import tyro

from briee.cli.leaderboard import SUITE, read_suite
from briee.cli.main import parse
from briee.compute import prepare_process
from briee.errors import RunError, UsageError


@dataclasses.dataclass(frozen=True)
class SubmitArgs:
    """Check a submission: configuration, all seeds, counters that agree, no row missing."""

    folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="DIR")]
    """Folder with the run directories."""
    suite: Path = SUITE
    """The sweep file of the suite."""
    replay: int = 0
    """Also repeat this many iterations of one run of each algorithm in each world, and compare the counters
    of episodes and steps with those of the environment here."""


def run(argv: Sequence[str]) -> int:
    """Run the command; returns the exit code."""
    args = parse(SubmitArgs, argv, "briee submit")
    if args.replay < 0:
        raise UsageError(f"--replay must be >= 0, got {args.replay}")
    from briee.report.leaderboard import complaints, replay

    suite = read_suite(args.suite)
    wrong = list(complaints(suite, args.folder))
    if args.replay and not wrong:
        prepare_process()
        wrong = list(replay(suite, args.folder, args.replay))
    for sentence in wrong:
        print(sentence)
    if wrong:
        raise RunError(f"{args.folder} cannot be submitted: {len(wrong)} things are wrong")
    print(f"{args.folder} is complete and consistent")
    return 0
