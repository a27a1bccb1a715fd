"""Worlds that people bring: the committed runs reach their targets, and every command of the page runs."""

import json
import shlex
from pathlib import Path
from statistics import median

import pytest

from briee.cli.main import main
from briee.experiments.tables import read_curves
from briee.experiments.worlds import WORLDS, World, share
from briee.training.directory import read_table

FOLDER = Path(__file__).parents[2] / "results" / "worlds-general"
SHARES = {"FrozenLake-v1, H = 100": 0.95, "Taxi-v4, H = 200": 0.98}
SHARES |= {"bsuite/deep_sea_stochastic-v0, H = 10, size = 10": 0.9}
"""Least share of the optimum, the median over seeds, where even the best policy fails now and then."""
names = pytest.mark.parametrize("world", WORLDS, ids=lambda world: world.name)


def test_every_world_has_a_name_and_a_command_of_its_own():
    assert len({world.name for world in WORLDS}) == len({world.command for world in WORLDS}) == len(WORLDS)


def test_the_share_of_a_negative_optimum_is_one_less_what_is_lost():
    points = [{"seed": "1", "eval_return": str(value)} for value in (-99, -13, -13, -13, -13, -26)]
    assert share(points, {"seed": "1", "optimal_return": "-13.0"}) == pytest.approx(0.8)
    assert share(points, {"seed": "1", "optimal_return": ""}) is None


@names
def test_committed_runs_reach_their_target(world: World):
    own = [row for row in read_table(FOLDER / "runs.csv") if row["world"] == world.name]
    ours = [row for row in own if row["label"] == "general" and row["finished"] == "True"]
    assert ours
    if world.name in SHARES:
        curves = [c for c in read_curves(FOLDER) if (c["label"], c["world"]) == ("general", world.name)]
        shares = [share(curves, row) for row in ours]
        assert median(value for value in shares if value is not None) >= SHARES[world.name]
    else:
        assert all(row["solved"] == "True" for row in ours)
        assert all(int(row["episodes_to_solve"]) <= world.budget for row in ours)


@pytest.mark.slow
@names
def test_the_command_of_the_page_runs_and_reaches_its_target(world: World, tmp_path):
    assert main([*shlex.split(world.command)[1:], "--run-dir", str(tmp_path / "run")]) == 0
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    if world.name in SHARES:
        returns = [float(row["eval_return"]) for row in read_table(tmp_path / "run" / "metrics.csv")][-5:]
        assert sum(returns) / 5 >= (SHARES[world.name] - 0.05) * summary["optimal_return"]
    else:
        assert summary["solved"]
