"""`briee report`: one self-contained HTML file about runs, and its figures as PNG and PDF."""

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import tyro

from briee.cli.evaluate import load_agent
from briee.cli.main import Flag, parse, sentences
from briee.compute import prepare_process
from briee.errors import UsageError


@dataclasses.dataclass(frozen=True)
class ReportArgs:
    """Write one self-contained HTML file about runs, and every figure as PNG and PDF."""

    directories: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="DIR...")] = ()
    """Run directories, directories with runs below them, or files of saved agents."""
    env: str | None = None
    """The environment of saved agents, unless it is one that `briee envs` lists: an id, module:id or
    FILE.py:Class."""
    output: Path = Path("report.html")
    """The file to write; figures go into a folder beside it, FILE-figures."""
    no_figures: Flag = False
    """Write the HTML file only."""


def run(argv: Sequence[str]) -> int:
    """Run the command; returns the exit code."""
    args = parse(ReportArgs, argv, "briee report")
    if not args.directories:
        raise UsageError("briee report needs at least one run directory: `briee runs` lists them")
    if args.output.is_dir():
        raise UsageError(f"--output must be a file, but {args.output} is a directory")
    prepare_process()
    from briee.report.contents import Found, read_runs, told_apart
    from briee.report.html import write_page

    figures = None if args.no_figures else args.output.with_name(f"{args.output.stem}-figures")
    files = [path for path in args.directories if path.is_file()]
    folders = [path for path in args.directories if path not in files]
    found = read_runs(folders) if folders else Found([], [])
    if files:
        from briee.agent.files import contents

        with sentences():
            saved = [dataclasses.replace(contents(load_agent(file, args.env)), path=file) for file in files]
        found = Found(told_apart([*found.runs, *saved]), found.skipped)
    for reason in found.skipped:
        print(f"left out: {reason}", file=sys.stderr)
    written = write_page(found, args.output, figures)
    drawn = "" if figures is None else f", figures as PNG and PDF in {figures}"
    print(f"{written} ({written.stat().st_size / 1e6:.1f} MB{drawn})")
    return 0
