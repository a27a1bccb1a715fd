"""Tables of the benchmarks: a part of the runs asked for still gives the table of all that are finished."""

import itertools
import json
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("name", "folder", "table", "part"),
    [
        ("environments", "--dir", "episodes.csv", ("--only", "deep-sea", "--seeds", "1")),
        ("stationary", "--out", "table.csv", ("--seeds", "1")),
    ],
)
def test_a_part_of_the_runs_leaves_the_whole_table(name, folder, table, part, tmp_path, monkeypatch):
    source, copy = ROOT / "results" / name, tmp_path / name
    for path in source.glob("*/summary.json"):
        (copy / path.parent.name).mkdir(parents=True)
        shutil.copy(path, copy / path.parent.name)
    monkeypatch.setattr(sys, "argv", [name, *part, folder, str(copy)])
    program = str(ROOT / "benchmarks" / f"{name}.py")
    runpy.run_path(program, run_name="__main__")
    assert (copy / table).read_text() == (source / table).read_text()
    other = next(copy.glob("*-s12345/summary.json"))
    other.write_text(json.dumps(json.loads(other.read_text()) | {"finished": False}))
    runpy.run_path(program, run_name="__main__")
    assert len((copy / table).read_text().splitlines()) == len((source / table).read_text().splitlines()) - 1


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
