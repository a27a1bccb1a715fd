"""`briee reproduce`: run an experiment, as far as it is not done, and draw its figure."""

import dataclasses
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import tyro

from briee.cli.main import Flag, parse
from briee.compute import prepare_process
from briee.experiments import FIGURES


@dataclasses.dataclass(frozen=True)
class ReproduceArgs:
    """Run an experiment, as far as it is not done, and draw its figure from the CSV files.

    The same command can be given again at any time: runs that are in the tables or finished are skipped,
    killed ones go on.
    """

    figure: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="|".join(FIGURES))]
    """Which one."""
    output: Path = Path("results")
    """Folder for the results. The experiment has one of its own in it: tables, figure and, outside version
    control, the directories of new runs."""
    runs: tuple[Path, ...] = ()
    """Folders with further run directories, whose runs enter the tables, too."""
    smoke: Flag = False
    """A few runs of seconds, to see that it works."""
    only: str = ""
    """Only runs like this: algo=NAME,preset=NAME,env=NAME,args=distractors20,horizon=N,seed=N,variant=NAME;
    args= are the runs without arguments of the environment."""
    workers: int = 1
    """Runs at the same time, each in a process of its own."""
    plot_only: Flag = False
    """Train nothing, draw what there is: run directories, or the CSV files alone."""


def run(argv: Sequence[str]) -> int:
    """Run the command; returns the exit code."""
    args = parse(ReproduceArgs, argv, "briee reproduce")
    prepare_process()
    from briee.experiments.runner import reproduce

    reproduce(
        args.figure,
        args.output,
        smoke=args.smoke,
        only=args.only,
        workers=args.workers,
        plot_only=args.plot_only,
        further=args.runs,
        command=shlex.join(["briee", "reproduce", *argv]),
    )
    return 0
