"""The committed tables: each row can be repeated, no two contradict each other, no line mixes versions."""

import contextlib
import dataclasses
import json
import shutil
from pathlib import Path

import pytest

from briee.configuration import AlgorithmConfig, EvaluationConfig
from briee.errors import RunError
from briee.experiments import fingerprint
from briee.experiments.fingerprint import PAIRS, Fingerprints, machine, measure
from briee.experiments.runner import apart
from briee.experiments.tables import (
    RUN_COLUMNS,
    configuration_hash,
    contradictions,
    mixed_lines,
    read_curves,
    read_origins,
    spec_of,
)
from briee.training.directory import read_table
from briee.training.spec import RunSpec

RESULTS = Path(__file__).parents[2] / "results"
TABLES = {path.parent.name: read_table(path) for path in sorted(RESULTS.glob("*/runs.csv"))}
ROWS = [row for table in TABLES.values() for row in table]


def test_there_are_tables_and_no_run_directories():
    assert {"fig1b", "fig2b", "fig2c", "decoder", "ablation", "ablation-efficient", "worlds"} <= set(TABLES)
    assert all(set(RUN_COLUMNS) <= set(row) for row in ROWS)


def test_the_run_of_every_row_can_be_made_again():
    for row in ROWS:
        assert configuration_hash(spec_of(row)) == row["config"], (row["label"], row["world"], row["seed"])


@pytest.mark.parametrize("name", TABLES)
def test_every_row_has_its_origin_and_its_curve(name):
    origins = {(o["commit"], o["cpu"], o["threads"]): o["runs"] for o in read_origins(RESULTS / name)}
    rows = TABLES[name]
    assert sum(origins.values()) == len(rows)
    assert {(row["commit"], row["cpu"], row["threads"]) for row in rows} == set(origins)
    key = lambda row: (row["label"], row["world"], row["seed"])  # noqa: E731
    last = {key(point): point["episodes"] for point in read_curves(RESULTS / name)}
    assert last == {key(row): row["episodes"] for row in rows}


def test_no_specification_has_two_outcomes():
    assert contradictions(ROWS) == []
    solved = next(row for row in ROWS if row["solved"] == "True")
    other = solved | {"episodes": str(int(solved["episodes"]) + 300), "cpu": "another"}
    (sentence,) = contradictions([*ROWS, other])
    assert f"{solved['episodes']} episodes" in sentence
    assert f"{other['episodes']} episodes" in sentence
    assert contradictions([*ROWS, other | {"numerics": "another"}]) == []


@pytest.mark.parametrize("name", TABLES)
def test_no_line_mixes_versions_that_compute_other_numbers(name):
    rows = TABLES[name]
    assert mixed_lines(rows) == []
    assert all(row["numerics"] for row in rows if f"{row['algorithm']} {row['preset']}" in PAIRS)
    label = rows[0]["label"]
    later = rows[0] | {"seed": "99", "numerics": "another", "version": "9.0", "commit": "1234567890"}
    assert mixed_lines([*rows, later]) == [label]
    named = apart([*rows, later], {})
    assert mixed_lines(named) == []
    assert named[-1]["label"] == f"{label} (version 9.0, 1234567)"
    assert [row["label"] for row in named[:-1]] == [row["label"] for row in rows]


def test_a_row_has_the_fingerprint_of_its_commit():
    known = Fingerprints(RESULTS)
    assert set(known.present) <= set(PAIRS)
    for row in ROWS:
        assert known.of(row) == row["numerics"], (row["label"], row["commit"])


@dataclasses.dataclass(frozen=True)
class Config(AlgorithmConfig):
    rate: float = 0.1
    workers: int = 1
    evaluation: EvaluationConfig = dataclasses.field(default_factory=EvaluationConfig)
    free_fields = ("workers",)


@dataclasses.dataclass(frozen=True)
class LaterConfig(Config):
    added: int | None = None


def test_the_hash_tells_configurations_apart_and_survives_a_new_field():
    spec = RunSpec("lock", "toy", "default", 6, 1, 100, Config(), {"noise": 0.1})
    own = configuration_hash(spec)
    for same in ({"episodes": 200}, {"config": Config(workers=2)}, {"config": LaterConfig()}):
        assert configuration_hash(dataclasses.replace(spec, **same)) == own, same
    for other in (
        {"seed": 2},
        {"horizon": 7},
        {"env_arguments": {"noise": 0.2}},
        {"rich": {"noise": 0.1}},
        {"config": Config(rate=0.2)},
        {"config": LaterConfig(added=1)},
        {"config": Config(evaluation=EvaluationConfig(streak=6))},
    ):
        assert configuration_hash(dataclasses.replace(spec, **other)) != own, other


def test_fingerprints_of_another_machine_are_not_mixed_in(tmp_path, monkeypatch):
    values = {"machine": {"cpu": "another"}, "present": {"ppo paper": "abc"}, "commits": {}}
    (tmp_path / "fingerprints.json").write_text(json.dumps(values))
    with pytest.raises(RunError, match="of another machine"):
        fingerprint.main(["--root", str(tmp_path)])
    monkeypatch.setattr(fingerprint, "source_commit", lambda: "0123")
    row = {"algorithm": "ppo", "preset": "paper", "commit": "0123"}
    monkeypatch.setattr(fingerprint, "measure", lambda pair: "def")
    assert Fingerprints(tmp_path).find(row) == "", "another machine or other numerics: who knows"
    monkeypatch.setattr(fingerprint, "measure", lambda pair: "abc")
    assert Fingerprints(tmp_path).find(row) == "abc", "equal numbers are equal on any machine"
    Fingerprints(tmp_path).add("4567+changes", "ppo paper", "def")
    assert Fingerprints(tmp_path).commits == {"0123": {"ppo paper": "abc"}}


def test_an_unknown_fingerprint_is_measured_at_its_commit_once(tmp_path, monkeypatch):
    measured: list[tuple[str, bool]] = []

    def measure(pair, source=fingerprint.SOURCE):
        measured.append((pair, (source / "src" / "briee").exists() and source != fingerprint.SOURCE))
        return f"print {len(measured)}"

    @contextlib.contextmanager
    def checked_out(commit):
        (tmp_path / commit / "src" / "briee").mkdir(parents=True)
        yield tmp_path / commit

    for name, replacement in (("measure", measure), ("checked_out", checked_out)):
        monkeypatch.setattr(fingerprint, name, replacement)
    monkeypatch.setattr(fingerprint, "source_commit", lambda: "here")
    row = {"algorithm": "ppo", "preset": "paper", "commit": "there"}
    known = Fingerprints(tmp_path)
    assert [known.find(row), known.find(row)] == ["print 1", "print 1"]
    assert known.find(row | {"commit": "here"}) == "print 2"
    assert known.find(row | {"commit": "there+changes"}) == "", "nobody knows what was edited"
    assert known.find(row | {"algorithm": "theory", "preset": "default"}) == ""
    assert measured == [("ppo paper", True), ("ppo paper", False)]
    assert Fingerprints(tmp_path).commits == {
        "there": {"ppo paper": "print 1"},
        "here": {"ppo paper": "print 2"},
    }


@pytest.mark.slow
def test_a_fingerprint_tells_an_edited_algorithm(tmp_path):
    """The same source twice, and once with another regularisation."""
    own = measure("lsvi-ucb paper")
    shutil.copytree(fingerprint.SOURCE / "src", tmp_path / "src")
    assert measure("lsvi-ucb paper", tmp_path) == own
    edited = tmp_path / "src" / "briee" / "algorithms" / "baselines" / "config.py"
    assert "lam: float = 1.0" in edited.read_text()
    edited.write_text(edited.read_text().replace("lam: float = 1.0", "lam: float = 1.01"))
    assert measure("lsvi-ucb paper", tmp_path) != own


@pytest.mark.slow
@pytest.mark.parametrize("pair", PAIRS)
def test_the_present_fingerprints_are_those_of_the_file(pair):
    known = Fingerprints(RESULTS)
    if known.machine != machine():
        pytest.skip(f"the fingerprints are those of {known.machine}")
    again = "python -m briee.experiments.fingerprint"
    assert measure(pair) == known.present[pair], f"{pair} computes other numbers than before: {again}"
