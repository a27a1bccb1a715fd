"""Programs of benchmarks/: tables of runs, the route of a run, pages that show the numbers of results/."""

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
from briee.errors import RunError
from briee.experiments import FIGURES
from briee.experiments.paper_figures import REFERENCES
from briee.experiments.runner import find_figure
from briee.experiments.tables import read_curves, spec_of
from briee.training.directory import read_table

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
    names = {"README.md", "results.md", "efficient_measurements.md", "efficient.md"}
    names |= {"deviations.md", "performance.md"}
    assert names <= {page.name for page in MARKED}
    for mark in ("<!--=", "<!--/-->", "<!-- table", "<!-- /table"):
        for page in MARKED:
            left = pages.NUMBER.sub("", pages.TABLE.sub("", page.read_text()))
            assert mark not in left, f"{page.name} has an incomplete mark"


@pytest.mark.parametrize("name", ["README.md", "results.md", "efficient.md", "efficient_measurements.md"])
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
