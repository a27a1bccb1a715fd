"""`briee bench`: measure speed against the machine's own limit."""

import dataclasses
import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from briee.cli.main import parse
from briee.compute import prepare_process
from briee.training.directory import os_errors


@dataclasses.dataclass(frozen=True)
class BenchArgs:
    """Measure speed against the machine's own limit, on one core."""

    json: Path | None = None
    """File to write the figures to as well."""


def run(argv: Sequence[str]) -> int:
    """Run the command; returns the exit code."""
    args = parse(BenchArgs, argv, "briee bench")
    prepare_process()
    from briee.diagnose.speed import measure
    from briee.training.directory import make_manifest

    figures = measure(lambda name: print(f"measuring {name} ...", file=sys.stderr, flush=True))
    for name, value in figures.items():
        print(f"{name:32}{value:,.4g}")
    if args.json is not None:
        machine = make_manifest(shlex.join(["briee", "bench", *argv]))
        with os_errors(args.json):
            args.json.write_text(json.dumps(figures | {"manifest": machine}, indent=2) + "\n")
    return 0
