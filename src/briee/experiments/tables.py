"""runs.csv and curves.csv.gz: what is kept of a run when its directory is not. Imports no JAX.

A row of runs.csv has what determines the run, how it ended and where it comes from:

config     hash of every value that determines the run, its budget and its speed aside
numerics   fingerprint of the algorithm at that commit (`briee.experiments.fingerprint`)
changes    values that differ from the preset, by dotted name; with the columns before it, `spec_of` makes the
           whole run of them

`Existing` finds the runs that exist, as rows of tables and as run directories, so that none is repeated.
"""

import csv
import dataclasses
import gzip
import hashlib
import io
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from briee.algorithms.registry import preset
from briee.configuration import changed, flatten
from briee.errors import RunError
from briee.experiments.fingerprint import Fingerprints
from briee.experiments.setting import Setting
from briee.training.directory import Table, read_json, read_table, write_json, write_table
from briee.training.spec import RunSpec, load_spec

Row = dict[str, str]
LINE = ("label", "world")
"""The line of a figure and its panel or point: what an experiment calls a run."""
SPEC = ("env", "arguments", "rich", "horizon", "algorithm", "preset", "variant", "changes", "seed", "budget")
OUTCOME = (
    *("solved", "finished", "episodes", "episodes_to_solve", "env_steps", "final_return"),
    *("optimal_return", "seconds"),
)
ORIGIN = ("version", "commit", "config", "numerics", "cpu", "threads", "command")
RUN_COLUMNS = (*LINE, *SPEC, *OUTCOME, *ORIGIN)
EVALUATION: tuple[str, ...] = ("iteration", "episodes", "env_steps", "eval_return", "decoder_accuracy")
CURVE_COLUMNS: tuple[str, ...] = (*LINE, "seed", *EVALUATION)


def configuration(spec: RunSpec) -> dict[str, Any]:
    """Every value that determines what a run computes, by dotted name.

    A value that is the default of its class is left out, so that a new field changes no hash.
    """
    about = {name: getattr(spec, name) for name in ("env", "algorithm", "preset", "horizon", "seed")}
    extra = flatten({"env": dict(spec.env_arguments), "rich": dict(spec.rich)})
    values = {f"config.{k}": v for k, v in _chosen(spec.config) if k not in spec.config.free_fields}
    return json.loads(json.dumps(about | extra | values))


def configuration_hash(spec: RunSpec) -> str:
    """Twelve hexadecimal digits that tell configurations apart."""
    text = json.dumps(configuration(spec), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _chosen(config: Any, prefix: str = "") -> Iterable[tuple[str, Any]]:
    """The fields of nested dataclasses that differ from the defaults of their classes."""
    for field in dataclasses.fields(config):
        value, name = getattr(config, field.name), prefix + field.name
        if dataclasses.is_dataclass(value):
            yield from _chosen(value, f"{name}.")
        elif value != field.default:
            yield name, value


def changes_of(spec: RunSpec) -> dict[str, Any]:
    """The values of a run's configuration that differ from its preset, by dotted name."""
    base = preset(spec.algorithm, spec.preset, spec.horizon, spec.env, spec.env_arguments)
    before, now = (flatten(json.loads(json.dumps(dataclasses.asdict(c)))) for c in (base, spec.config))
    return {k: v for k, v in now.items() if v != before.get(k) and k not in spec.config.free_fields}


def spec_of(row: Mapping[str, str]) -> RunSpec:
    """The run that a row describes, to be repeated."""
    arguments, rich, changes = (json.loads(row[name] or "{}") for name in ("arguments", "rich", "changes"))
    horizon = int(row["horizon"])
    config = preset(row["algorithm"], row["preset"], horizon, row["env"], arguments)
    for name, value in changes.items():
        config = changed(config, name, tuple(value) if isinstance(value, list) else value)
    about = (row["env"], row["algorithm"], row["preset"], horizon, int(row["seed"]), int(row["budget"]))
    return RunSpec(*about, config, arguments, rich)


def row_of(run_dir: Path) -> Row | None:
    """The row of a run directory, as yet without line, variant and fingerprint; None if it has no outcome."""
    summary, manifest = (read_json(run_dir / f"{name}.json") for name in ("summary", "manifest"))
    if summary is None or not (run_dir / "config.json").exists():
        return None
    spec, manifest = load_spec(run_dir), manifest or {}
    about = {name: getattr(spec, name) for name in SPEC if hasattr(spec, name)}
    about |= {"arguments": spec.env_arguments, "rich": spec.rich, "changes": changes_of(spec)}
    command = re.sub(r" --(run-dir|output|runs) \S+| --(resume|overwrite)\b", "", manifest.get("command", ""))
    origin = {"version": manifest.get("briee"), "command": command}
    origin |= {name: manifest.get(name) for name in ("commit", "cpu")}
    origin |= {"config": configuration_hash(spec), "threads": _threads(manifest)}
    outcome = {name: summary.get(name) for name in OUTCOME}
    outcome["seconds"] = round((summary.get("seconds") or {}).get("total", 0.0), 1)
    row = dict.fromkeys(RUN_COLUMNS, "") | about | {"budget": spec.episodes} | outcome | origin
    return {name: _cell(value) for name, value in row.items()}


def curve_of(run_dir: Path) -> list[Row]:
    """The evaluations of a run directory."""
    return [{name: row.get(name, "") for name in EVALUATION} for row in read_table(run_dir / "metrics.csv")]


def origin_of(run_dir: Path) -> dict[str, Any]:
    """Software and machine of a run, from its manifest.json."""
    manifest = read_json(run_dir / "manifest.json") or {}
    names = ("briee", "commit", "python", "packages", "platform", "cpu", "cores")
    return {name: manifest.get(name) for name in names} | {"threads": _threads(manifest)}


def read_curves(folder: Path) -> list[Row]:
    """The evaluations of an experiment, none if there is no file."""
    path = folder / "curves.csv.gz"
    if not path.exists():
        return []
    with gzip.open(path, "rt", newline="") as file:
        return list(csv.DictReader(file))


def write_curves(folder: Path, rows: Table) -> None:
    """Write the evaluations of an experiment; equal rows make equal bytes."""
    text = io.StringIO()
    writer = csv.DictWriter(text, CURVE_COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    (folder / "curves.csv.gz").write_bytes(gzip.compress(text.getvalue().encode(), mtime=0))


def write_runs(folder: Path, rows: Sequence[Row], origins: Iterable[Mapping[str, Any]]) -> None:
    """Write runs.csv and, with the origins that its rows have, manifest.json of an experiment."""
    write_table(folder / "runs.csv", rows)
    key = lambda origin: tuple(origin.get(name) or "" for name in ("commit", "cpu", "threads"))  # noqa: E731
    known = {key(origin): dict(origin) for origin in origins}
    counts: dict[tuple[str, ...], int] = {}
    for row in rows:
        counts[key(row)] = counts.get(key(row), 0) + 1
    made = [known[one] | {"runs": count} for one, count in sorted(counts.items()) if one in known]
    write_json(folder / "manifest.json", {"origins": made})


def read_origins(folder: Path) -> list[dict[str, Any]]:
    """The origins in manifest.json of an experiment."""
    return (read_json(folder / "manifest.json") or {}).get("origins", [])


def _threads(manifest: Mapping[str, Any]) -> str:
    """Threads of XLA: one if they are turned off, else the cores there were."""
    flags = str((manifest.get("threads") or {}).get("XLA_FLAGS"))
    return "1" if "intra_op_parallelism_threads=1" in flags else str(manifest.get("cores") or "")


def _cell(value: Any) -> str:
    if isinstance(value, Mapping):
        return json.dumps(value, sort_keys=True) if value else ""
    return "" if value is None else str(value)


def contradictions(rows: Iterable[Mapping[str, str]]) -> list[str]:
    """Sentences about runs of one specification and one fingerprint that ended differently."""
    ends: dict[tuple[str, str, str], dict[str, Mapping[str, str]]] = {}
    for row in rows:
        if row["finished"] == "True":  # runs that were not solved are comparable if their budgets are equal
            length = "" if row["solved"] == "True" else row["budget"]
            key = (row["config"], row["numerics"], length)
            outcome = f"{row['episodes']} episodes, a return of {row['final_return']}"
            outcome += f", solved after {row['episodes_to_solve']}" * (row["solved"] == "True")
            ends.setdefault(key, {}).setdefault(outcome, row)
    return [
        f"{row['label']}, {row['world']}, seed {row['seed']} ended with " + " and with ".join(outcomes)
        for outcomes in ends.values()
        if len(outcomes) > 1
        for row in [next(iter(outcomes.values()))]
    ]


def mixed_lines(rows: Iterable[Mapping[str, str]]) -> list[str]:
    """The lines of a table whose runs have different fingerprints."""
    lines: dict[str, set[str]] = {}
    for row in rows:
        lines.setdefault(row["label"], set()).add(row["numerics"])
    return [label for label, found in lines.items() if len(found) > 1]


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
