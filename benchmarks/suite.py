"""Runs of the suite into tables: results/suite, from which `briee leaderboard` makes docs/leaderboard.md.

    briee sweep benchmarks/block-mdp.toml --out runs/suite   all of it, or a file with some of its products
    python benchmarks/suite.py runs/suite [--output results/suite]

Takes every run directory below the folders that is finished and of the suite, unless it is a run of an
experiment: `briee reproduce NAME --plot-only --runs DIR` takes that one into the table of the experiment,
which the leaderboard reads as well. Rows of runs.csv stay, unless a directory has the same run.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from briee.cli.leaderboard import SUITE, read_suite
from briee.experiments import FIGURES
from briee.experiments.fingerprint import Fingerprints
from briee.experiments.runner import find_figure
from briee.experiments.tables import (
    Row,
    configuration_hash,
    curve_of,
    origin_of,
    read_curves,
    read_origins,
    row_of,
    write_curves,
    write_runs,
)
from briee.report.leaderboard import label_of, world_in_suite, worlds_of
from briee.training.directory import read_table
from briee.training.spec import list_runs

ROOT = Path(__file__).parents[1]


def collect(folders: Sequence[Path], output: Path) -> list[Row]:
    """Write the tables; returns the rows of runs.csv."""
    worlds, fingerprints = worlds_of(read_suite(ROOT / SUITE)), Fingerprints(output.parent)
    rows = {_key(row): row for row in read_table(output / "runs.csv")}
    curves: dict[tuple[str, ...], list[Row]] = {}
    for point in read_curves(output):
        curves.setdefault(_key(point), []).append(point)
    origins, elsewhere = read_origins(output), of_experiments()
    for listed in (run for folder in folders for run in list_runs(folder)):
        row = row_of(listed.path)
        if row is None or row["finished"] != "True" or row["config"] in elsewhere:
            continue
        if world_in_suite(row) not in worlds:
            continue
        row |= {"label": label_of(row), "world": world_in_suite(row), "numerics": fingerprints.find(row)}
        rows[_key(row)] = row
        about = {name: row[name] for name in ("label", "world", "seed")}
        curves[_key(row)] = [about | point for point in curve_of(listed.path)]
        origins.append(origin_of(listed.path))
    order = sorted(rows, key=lambda key: ([*worlds].index(key[0]), key[1], int(key[2])))
    output.mkdir(parents=True, exist_ok=True)
    write_runs(output, [rows[key] for key in order], origins)
    write_curves(output, [point for key in order for point in curves[key]])
    return [rows[key] for key in order]


def of_experiments() -> set[str]:
    """The configurations of all runs of experiments."""
    settings = (setting for name in FIGURES for setting in find_figure(name).settings)
    return {configuration_hash(setting.spec()) for setting in settings}


def _key(row: Row) -> tuple[str, ...]:
    return row["world"], row["label"], row["seed"]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--output", type=Path, default=ROOT / "results" / "suite")
    args = parser.parse_args()
    print(f"{len(collect(args.folders, args.output))} runs in {args.output}")


if __name__ == "__main__":
    main()
