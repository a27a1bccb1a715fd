"""Committed tables: rows can be repeated, none contradict, no line mixes versions; pages show them."""

import contextlib
import dataclasses
import itertools
import json
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import pages
from briee.configuration import AlgorithmConfig, EvaluationConfig
from briee.errors import RunError
from briee.experiments import FIGURES, fingerprint
from briee.experiments.fingerprint import PAIRS, Fingerprints, machine, measure
from briee.experiments.paper_figures import REFERENCES
from briee.experiments.runner import apart, find_figure
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


def test_another_machine_recognises_the_numerics_of_a_known_commit(tmp_path, monkeypatch):
    """It rounds differently, but a commit that computes there what a known one computes has its numerics."""
    known = {"known": {"ppo paper": "abc"}}
    values = {"machine": {"cpu": "another"}, "present": {"ppo paper": "abc"}, "commits": known}
    (tmp_path / "fingerprints.json").write_text(json.dumps(values))
    rounded = {"known": "abc'", "same": "abc'", "edited": "def'"}
    monkeypatch.setattr(fingerprint, "checked_out", contextlib.nullcontext)
    monkeypatch.setattr(fingerprint, "measure", lambda pair, commit: rounded[commit])
    monkeypatch.setattr(fingerprint, "source_commit", lambda: "here")
    fingerprints = Fingerprints(tmp_path)
    row = {"algorithm": "ppo", "preset": "paper"}
    assert fingerprints.find(row | {"commit": "same"}) == "abc"
    assert fingerprints.find(row | {"commit": "edited"}) == ""
    assert set(Fingerprints(tmp_path).commits) == {"known", "same"}


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


ROOT = Path(__file__).parents[2]


def test_a_part_of_the_runs_leaves_the_whole_table(tmp_path, monkeypatch):
    source, copy = ROOT / "results" / "worlds", tmp_path / "worlds"
    shutil.copytree(source, copy, ignore=shutil.ignore_patterns("*-s*"))
    shutil.copy(ROOT / "results" / "fingerprints.json", tmp_path)
    monkeypatch.setattr(sys, "argv", ["worlds", "--only", "deep-sea", "--seeds", "1", "--output", str(copy)])
    program = str(ROOT / "benchmarks" / "worlds.py")
    runpy.run_path(program, run_name="__main__")
    for name in ("runs.csv", "curves.csv.gz", "manifest.json"):
        assert (copy / name).read_bytes() == (source / name).read_bytes()


def test_a_finished_directory_replaces_its_row(tmp_path):
    copy = tmp_path / "worlds"
    shutil.copytree(ROOT / "results" / "worlds", copy, ignore=shutil.ignore_patterns("*-s*"))
    shutil.copy(ROOT / "results" / "fingerprints.json", tmp_path)
    before = read_table(copy / "runs.csv")
    old = next(row for row in before if (row["world"], row["seed"]) == ("lock-h6", "12"))
    run_dir = copy / "lock-h6-s12"
    run_dir.mkdir()
    summary = {"finished": True, "solved": True, "episodes": 300, "episodes_to_solve": 300}
    manifest: dict[str, Any] = {"briee": old["version"], "commit": old["commit"], "cpu": old["cpu"]}
    manifest["threads"] = {"XLA_FLAGS": "intra_op_parallelism_threads=1"}
    for name, values in (
        ("config", spec_of(old).to_json()),
        ("summary", summary),
        ("manifest", manifest),
        ("outcome", {"process_seconds": 9.5}),
    ):
        (run_dir / f"{name}.json").write_text(json.dumps(values))
    (run_dir / "metrics.csv").write_text("iteration,episodes,eval_return\n1,300,1\n")
    runpy.run_path(str(ROOT / "benchmarks" / "worlds.py"))["collect"](copy)
    after = read_table(copy / "runs.csv")
    changed = [(a, b) for a, b in zip(before, after, strict=True) if a != b]
    ((was, now),) = changed
    assert was == old
    assert (now["config"], now["numerics"]) == (old["config"], old["numerics"])
    assert (now["episodes_to_solve"], now["process_seconds"]) == ("300", "9.5")
    curve = [point for point in read_curves(copy) if (point["world"], point["seed"]) == ("lock-h6", "12")]
    assert [point["episodes"] for point in curve] == ["300"]


def test_the_route_of_a_run_enters_few_modules_and_returns_to_a_room_only_in_the_loop():
    small = ["lock", "--algo", "efficient", "--horizon", "2", "--episodes", "400", "--env.num_actions", "2"]
    program = [sys.executable, str(ROOT / "benchmarks" / "route.py"), *small]
    *lines, count = subprocess.run(program, capture_output=True, text=True, check=True).stdout.splitlines()
    stages, files = [line.split()[0] for line in lines], [line.split()[-1] for line in lines]
    assert files[:2] == ["cli/main.py", "cli/train.py"]
    assert {"training/loop.py", "algorithms/efficient/algorithm.py", "rollout/samplers.py"} <= set(files)
    assert not {"algorithms/paper/briee.py", "report/html.py"} & set(files)
    assert count == f"{len(set(files))} modules"
    assert len(files) <= 25
    for stage in ("request", "construction"):
        entered = [file for own, file in zip(stages, files, strict=True) if own == stage]
        rooms = [file.split("/")[0] if "/" in file else "top level" for file in entered]
        visits = [room for room, _ in itertools.groupby(rooms)]
        assert len(visits) == len(set(visits)), f"{stage}: {visits}"


BUDGETS = {setting.episodes for name in FIGURES for setting in find_figure(name).settings}
OTHERS = {
    1_000: "episodes between two evaluations of PPO; RND's coefficient; episodes of a measurement of memory",
    2_000: "the example; further episodes that judge a policy; budget of the random block MDPs",
    1_024: "rows of a fit of `stationary`",
    3_072: "rows that `stationary` keeps",
    5_000: "budget of slippery FrozenLake",
    20_000: "HOMER's samples a level; budget of the lock with noise and H = 50",
}
"""Numbers that are not results, and what they are."""
MARKED = [page for page in pages.PAGES if pages.TABLE.search(page.read_text()) or "<!--=" in page.read_text()]


def unmarked(text: str) -> list[int]:
    """Large numbers of a page that stand in no mark."""
    plain = pages.NUMBER.sub("", pages.TABLE.sub("", text))
    return [int(found.replace(",", "")) for found in re.findall(r"\b\d{1,3}(?:,\d{3})+\b", plain)]


@pytest.mark.parametrize("page", pages.PAGES, ids=lambda page: page.name)
def test_a_page_agrees_with_the_files(page):
    text = page.read_text()
    assert pages.filled(text) == text, f"{page.name} disagrees with results/: `make tables` writes it"


@pytest.mark.parametrize("page", MARKED, ids=lambda page: page.name)
def test_every_digit_of_a_mark_counts(page):
    text = page.read_text()
    marks = [*pages.TABLE.finditer(text), *pages.NUMBER.finditer(text)]
    for mark in marks:
        for digit in list(re.finditer(r"\d", mark[2]))[:3]:
            at = mark.start(2) + digit.start()
            other = f"{text[:at]}{(int(text[at]) + 1) % 10}{text[at + 1 :]}"
            assert pages.filled(other[mark.start() : mark.end()]) == mark[0], "the right digit comes back"
            assert other != text


def test_the_pages_with_results_are_marked():
    names = {"README.md", "results.md", "efficient.md"}
    names |= {"deviations.md", "performance.md"}
    assert names <= {page.name for page in MARKED}
    for mark in ("<!--=", "<!--/-->", "<!-- table", "<!-- /table"):
        for page in MARKED:
            left = pages.NUMBER.sub("", pages.TABLE.sub("", page.read_text()))
            assert mark not in left, f"{page.name} has an incomplete mark"


@pytest.mark.parametrize("name", ["README.md", "results.md", "efficient.md"])
def test_no_result_stands_outside_the_marks(name):
    (page,) = (page for page in pages.PAGES if page.name == name)
    text = page.read_text()
    assert set(unmarked(text)) <= BUDGETS | set(OTHERS), f"{name}: mark these numbers"
    assert 4_567 in unmarked(text + "\nIt needs 4,567 episodes.\n")


def test_a_published_budget_is_written_where_it_is_cited():
    shown = pages.fig1b() + pages.readme()
    assert all(f"{value:,}" in shown for points, _ in REFERENCES.values() for value in points.values())


def test_a_query_without_runs_is_refused():
    with pytest.raises(RunError, match="fig1b has no runs of 'briee papyrus' at '6'"):
        pages.filled("<!--= fig1b; briee papyrus; 6; median -->1<!--/-->")
