"""Tables of the benchmarks: a part of the runs asked for still gives the table of all that are known."""

import itertools
import json
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

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
    small = ["lock", "--horizon", "2", "--episodes", "20", "--env.num_actions", "2"]
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
