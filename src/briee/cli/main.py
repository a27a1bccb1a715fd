"""The command line: `briee COMMAND ...`. JAX is imported only after the arguments were understood.

Exit codes: 0 done; 2 the request was wrong (one sentence on standard error); 130 after Ctrl-C.
"""

import importlib
import os
import sys
from collections.abc import Sequence

import briee
from briee.cli import COMMANDS
from briee.errors import RunError, UsageError


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    command, *rest = [*(sys.argv[1:] if argv is None else argv)] or [""]
    if command in ("-h", "--help", "help", ""):
        print(usage(), file=sys.stdout if command else sys.stderr)
        return 0 if command else 2
    if command == "--version":
        print(f"briee {briee.__version__}")
        return 0
    try:
        if command not in COMMANDS:
            raise UsageError(f"no command {command!r}: commands are {', '.join(COMMANDS)}")
        return importlib.import_module(f"briee.cli.{command}").run(rest)
    except (UsageError, RunError) as error:
        print(f"briee: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


def entry() -> None:
    """The console script `briee`."""
    try:
        code = main()
        sys.stdout.flush()
    except BrokenPipeError:  # the reader, `head` for instance, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    sys.exit(code)


def usage() -> str:
    """The text of `briee --help`."""
    lines = [f"  {name:10}{summary}" for name, summary in COMMANDS.items()]
    about = "BRIEE: provable exploration with rich observations."
    return "\n".join(
        ["usage: briee COMMAND ...", "", about, "", *lines, "", "`briee COMMAND --help` says more."]
    )
