"""Runs that exist: rows of committed tables and run directories, so that none is repeated. Imports no JAX."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from briee.errors import RunError
from briee.experiments.fingerprint import Fingerprints
from briee.experiments.setting import Setting
from briee.experiments.tables import (
    EVALUATION,
    RUN_COLUMNS,
    Row,
    configuration_hash,
    curve_of,
    origin_of,
    read_curves,
    read_origins,
    row_of,
)
from briee.training.directory import read_json, read_table


class Found(NamedTuple):
    """A run that exists, as a row of a table or as a directory."""

    row: Row
    place: Path
    """The folder with the table, or the run directory."""
    is_directory: bool

    @property
    def finished(self) -> bool:
        return self.row["finished"] == "True"

    def lasted(self, episodes: int) -> bool:
        """Whether it is over and would be with a budget of `episodes`, too."""
        return self.finished and (self.row["solved"] == "True" or int(self.row["budget"]) >= episodes)


class Existing:
    """All runs in the experiments' folders below `root`, and in further run directories.

    A run stands for a setting if every value that determines it is the same, and its algorithm computes the
    numbers of the present one: their fingerprints are equal, or one of them is not known.
    """

    def __init__(self, root: Path, further: Iterable[Path] = ()):
        self.root, self.fingerprints = root, Fingerprints(root)
        self.runs: dict[str, list[Found]] = {}
        self._curves: dict[Path, dict[tuple[str, ...], list[Row]]] = {}
        for table in sorted(root.glob("*/runs.csv")):
            for row in read_table(table):
                if set(RUN_COLUMNS) <= set(row):  # else the table is of another kind
                    numerics = self.fingerprints.of(row) or row["numerics"]
                    self._add(Found(row | {"numerics": numerics}, table.parent, False))
        beside = (path.parent for path in root.glob("*/*/config.json"))
        given = (path.parent for folder in further for path in folder.rglob("config.json"))
        for run_dir in (*sorted(beside), *sorted(given)):
            try:
                row = row_of(run_dir)
            except RunError:  # of a version with other fields
                continue
            if row is not None:
                self._add(Found(row | {"numerics": self.fingerprints.of(row)}, run_dir, True))

    def _add(self, run: Found) -> None:
        self.runs.setdefault(run.row["config"], []).append(run)

    def best(self, setting: Setting, folder: Path) -> Found | None:
        """The run that stands for a setting of the experiment in `folder`, if there is one.

        First comes one that lasted, then one of the present numerics; then of a table, and of the own folder.
        Among runs that are not over, the longest comes first.
        """

        def order(run: Found) -> tuple[float, ...]:
            own = run.place == (folder / setting.name if run.is_directory else folder)
            lasted = run.lasted(setting.episodes)
            length = 0 if lasted else -int(run.row["episodes"] or 0)
            return (not lasted, not self.is_present(run), length, run.is_directory, not own)

        return min(self.runs.get(configuration_hash(setting.spec()), []), key=order, default=None)

    def is_present(self, run: Found) -> bool:
        """Whether a run has the numerics of the present source, as far as one can tell."""
        present = self.fingerprints.present.get(f"{run.row['algorithm']} {run.row['preset']}", "")
        return run.row["numerics"] == present or not run.row["numerics"] or not present

    def is_done(self, setting: Setting, folder: Path) -> bool:
        """Whether a setting need not be run."""
        run = self.best(setting, folder)
        return run is not None and run.lasted(setting.episodes) and self.is_present(run)

    def curve(self, run: Found) -> list[Row]:
        """The evaluations of a run."""
        if run.is_directory:
            return curve_of(run.place)
        if run.place not in self._curves:
            by_run = self._curves.setdefault(run.place, {})
            for row in read_curves(run.place):
                by_run.setdefault(_key(row), []).append({name: row[name] for name in EVALUATION})
        return self._curves[run.place].get(_key(run.row), [])

    def origins(self, runs: Sequence[Found]) -> list[dict[str, Any]]:
        """Software and machines of the runs."""
        tables = dict.fromkeys(run.place for run in runs if not run.is_directory)
        found = [origin for folder in tables for origin in read_origins(folder)]
        return [*found, *(origin_of(run.place) for run in runs if run.is_directory)]


def _key(row: Row) -> tuple[str, ...]:
    return row["label"], row["world"], row["seed"]


def is_done(run_dir: Path, how: str = "finished") -> bool:
    """Whether the run in a directory is finished, or solved."""
    return bool((read_json(run_dir / "summary.json") or {}).get(how))
