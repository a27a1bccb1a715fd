"""runs.csv and curves.csv.gz: what is kept of a run when its directory is not. Imports no JAX.

A row of runs.csv has what determines the run, how it ended and where it comes from:

config     hash of every value that determines the run, its budget and its speed aside
numerics   fingerprint of the algorithm at that commit (`briee.experiments.fingerprint`)
changes    values that differ from the preset, by dotted name; with the columns before it, `spec_of` makes the
           whole run of them
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
from typing import Any

from briee.algorithms.registry import preset
from briee.configuration import changed, flatten
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
    """What manifest.json of a run says of the software and the machine."""
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
