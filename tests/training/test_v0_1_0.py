"""Run directories and a saved agent that version 0.1.0 wrote load, evaluate and continue."""

import json
import zipfile
from pathlib import Path

import pytest

import briee
from briee.cli.main import main
from briee.training.directory import read_table

ARCHIVE = Path(__file__).parents[1] / "fixtures" / "v0.1.0.zip"


@pytest.fixture
def files(tmp_path) -> Path:
    """What version 0.1.0 wrote."""
    with zipfile.ZipFile(ARCHIVE) as archive:
        archive.extractall(tmp_path / "v0.1.0")
    return tmp_path / "v0.1.0"


@pytest.mark.parametrize(
    ("name", "env", "more", "algorithm", "preset"),
    [
        ("efficient-run", "lock", 80, "efficient", "default"),
        ("paper-run", "lock", 60, "briee", "paper"),
        ("theory-run", "finite-lock", 1200, "theory", "default"),
        ("stationary-run", "lock", 80, "stationary", "default"),
    ],
)
def test_a_run_directory_loads_evaluates_and_resumes(files, name, env, more, algorithm, preset):
    run_dir = files / name
    old = read_table(run_dir / "metrics.csv")
    agent = briee.load(run_dir)
    assert [row["episodes"] for row in agent.history] == [int(row["episodes"]) for row in old]
    assert (agent.spec.algorithm, agent.spec.preset) == (algorithm, preset)
    assert agent.episodes == int(old[-1]["episodes"])
    assert 0 <= agent.evaluate(20).mean <= 1
    assert main(["train", env, "--run-dir", str(run_dir), "--resume", "--episodes", str(more)]) == 0
    rows = read_table(run_dir / "metrics.csv")
    assert rows[: len(old)] == old
    assert int(rows[-1]["episodes"]) >= more > int(old[-1]["episodes"])
    config = json.loads((run_dir / "config.json").read_text())
    assert (config["algorithm"], config["preset"], config["episodes"]) == (algorithm, preset, more)


def test_a_saved_agent_loads_evaluates_and_learns_on(files):
    agent = briee.load(files / "efficient-agent.briee")
    assert (agent.spec.algorithm, agent.spec.preset, agent.episodes) == ("efficient", "default", 60)
    assert agent.evaluate(20).mean == 1.0
    agent.learn(episodes=20, progress=False, until_solved=False)
    assert agent.episodes == 80
    assert len(agent.history) == agent.iterations
