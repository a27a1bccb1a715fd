"""Tables of the benchmarks: a part of the runs asked for still gives the table of all that are finished."""

import json
import runpy
import shutil
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
