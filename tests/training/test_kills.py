"""Runs that go on: one that is killed again and again gives the numbers of an undisturbed run, and what
version 0.1.0 wrote loads, evaluates and continues.

As a script, `python tests/training/test_kills.py 50`, it counts for two presets the kills after which a run
continued to exactly the same rows.
"""

import json
import random
import shlex
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

import pytest

import briee
from briee.cli.main import main
from briee.training.directory import read_table

ITERATIONS = 40
EPISODES = 10  # of an iteration
TRAIN = {
    "paper": "--horizon 2 --collect.episodes-per-level 5 --collect.buffer-size 100 --replearn.rounds 2"
    " --replearn.feature-steps 2 --replearn.discriminator-steps 2 --replearn.hidden-sizes 4",
    "efficient": "--horizon 3 --explore.episodes 10 --explore.rounds 2 --strata.rows 64"
    " --strata.fit-rows 48 --fit.evaluations 3",
}


def command(preset: str, run_dir: Path, iterations: int) -> list[str]:
    common = f"-m briee train lock --preset {preset} --seed 5 --env.num_actions 2 --evaluation.streak 1000"
    budget = f"--episodes {EPISODES * iterations} --run-dir {shlex.quote(str(run_dir))} --resume"
    return [sys.executable, *shlex.split(f"{common} {budget} {TRAIN[preset]}")]


def finish(preset: str, run_dir: Path, iterations: int) -> None:
    """Start or continue the run and wait for its end."""
    subprocess.run(command(preset, run_dir, iterations), check=True, stdout=subprocess.DEVNULL)


def rows(run_dir: Path) -> list[dict[str, str]]:
    """Complete rows of metrics.csv without the time columns."""
    table = read_table(run_dir / "metrics.csv")
    return [{k: v for k, v in row.items() if not k.startswith("seconds")} for row in table]


def kill_at(preset: str, run_dir: Path, iterations: int, rng: random.Random) -> bool:
    """Start or continue the run and kill it at a random moment; returns whether it was still working."""
    process = subprocess.Popen(
        command(preset, run_dir, iterations), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert process.stdout is not None
    began = len(rows(run_dir))
    if rng.random() < 0.9:  # after the start and some iterations; else while it starts
        process.stdout.readline()
        target = began + rng.choice([0, 1, 2, 4])
        while len(rows(run_dir)) < target and process.poll() is None:
            time.sleep(0.002)
    time.sleep(rng.uniform(0, 0.05))
    working = process.poll() is None
    process.kill()
    process.communicate()
    return working


def killed_and_resumed(root: Path, preset: str, kills: int, iterations: int) -> tuple[int, int]:
    """Kill a working run this many times; returns the number of starts, and the number of kills after which
    the rows equal those of an undisturbed run.

    Every kill is followed by a start that continues the run until the next kill; the last one finishes it.
    """
    finish(preset, root / "straight", iterations)
    straight, rng, starts, hits, agreeing = rows(root / "straight"), random.Random(1), 0, 0, 0
    victim = root / "victim"
    while hits < kills:
        starts += 1
        if len(rows(victim)) >= iterations - 5:  # nearly done: the next victim
            finish(preset, victim, iterations)
            assert rows(victim) == straight
            victim = root / f"victim{starts}"
        if kill_at(preset, victim, iterations, rng):
            hits += 1
            found = rows(victim)
            agreeing += found == straight[: len(found)]
    finish(preset, victim, iterations)
    assert rows(victim) == straight
    assert len(straight) == iterations
    return starts, agreeing


@pytest.mark.parametrize(
    ("preset", "kills", "iterations"),
    [
        ("efficient", 1, 8),
        pytest.param("efficient", 50, ITERATIONS, marks=pytest.mark.slow),
        pytest.param("paper", 50, ITERATIONS, marks=pytest.mark.slow),
    ],
)
def test_a_killed_learner_continues_to_the_same_rows(tmp_path, preset, kills, iterations):
    starts, agreeing = killed_and_resumed(tmp_path, preset, kills, iterations)
    assert agreeing == kills
    assert starts <= 2 * kills


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


if __name__ == "__main__":
    kills = int(sys.argv[1])
    for preset in TRAIN:
        with tempfile.TemporaryDirectory() as folder:
            _, agreeing = killed_and_resumed(Path(folder), preset, kills, ITERATIONS)
        print(f"{preset}: {kills} kills of a run at work, {agreeing} of {kills} identical", flush=True)
