"""The lock of a run directory, on one machine and on several; runs that are killed at any moment."""

import json
import os
import random
import shlex
import socket
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

import pytest
from filelock import FileLock

import briee
from briee.cli.main import main
from briee.errors import RunError
from briee.training import directory
from briee.training.checkpoint import Folder
from briee.training.directory import LIFETIME, LockLostError, is_locked, locked, read_table, write_atomically
from briee.training.session import run
from briee.training.spec import list_runs
from toy_run import make_toy


def leave(path: Path, host: str, age: float) -> None:
    """A lock file that a process of this machine touched so many seconds ago."""
    path.write_text(json.dumps({"pid": 17, "host": host, "since": 0.0}))
    grow_old(path, age)


def grow_old(path: Path, age: float) -> None:
    touched = time.time() - age
    os.utime(path, (touched, touched))


def test_a_lock_stops_a_second_process_and_is_gone_afterwards(tmp_path):
    path = tmp_path / "lock"
    with locked(path):
        assert is_locked(path)
        note = json.loads(path.read_text())
        assert (note["pid"], note["host"]) == (os.getpid(), socket.gethostname())
        with pytest.raises(RunError, match=f"in use by process {os.getpid()} on "), locked(path):
            pass
        with pytest.raises(RunError, match="in use by process"):
            run(*make_toy(), tmp_path)
    assert not path.exists()
    assert not is_locked(path)


def test_the_lock_of_a_killed_process_is_free_at_once(tmp_path):
    program = [sys.executable, str(Path(__file__).parents[1] / "toy_run.py"), str(tmp_path), "hold"]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        for _ in range(2):  # until its first iteration
            process.stdout.readline()
        with pytest.raises(RunError, match=f"in use by process {process.pid} on "), locked(tmp_path / "lock"):
            pass
        assert [run.state for run in list_runs(tmp_path)] == ["running"]
        process.kill()
    assert (tmp_path / "lock").exists()
    assert [run.state for run in list_runs(tmp_path)] == ["stopped"]
    with locked(tmp_path / "lock"):
        assert is_locked(tmp_path / "lock")


@pytest.mark.parametrize("flock", [True, False], ids=["flock between machines", "no flock between them"])
def test_the_lock_of_another_machine_counts_while_it_is_touched(tmp_path, flock):
    path = tmp_path / "lock"
    leave(path, "node7", LIFETIME - 60)
    theirs = FileLock(path)
    if flock:
        theirs.acquire()
    assert is_locked(path)
    with pytest.raises(RunError, match="in use by process 17 on node7"), locked(path):
        pass
    grow_old(path, LIFETIME + 60)
    assert not is_locked(path)
    with locked(path):
        assert json.loads(path.read_text())["pid"] == os.getpid()
        assert is_locked(path)
        with pytest.raises(RunError, match=f"in use by process {os.getpid()}"), locked(path):
            pass
    theirs.release()
    assert not path.exists()
    assert list(tmp_path.iterdir()) == []


def test_age_does_not_matter_on_one_machine(tmp_path):
    path = tmp_path / "lock"
    with locked(path):
        os.utime(path, (0, 0))
        assert is_locked(path)
        with pytest.raises(RunError, match="in use by process"), locked(path):
            pass
    leave(path, socket.gethostname(), 0.0)  # of a process that was killed
    with locked(path):
        pass


def test_a_lock_without_a_readable_note_is_that_of_another_process(tmp_path):
    path = tmp_path / "lock"
    for text in ("", "[]", "{}", "half a no"):
        path.write_text(text)
        with FileLock(path):
            with pytest.raises(RunError, match="is in use by another process"), locked(path):
                pass
            assert is_locked(path)


def test_the_holder_touches_the_file_until_it_is_released(tmp_path, monkeypatch):
    monkeypatch.setattr(directory, "BEAT_SECONDS", 0.001)
    path, beats = tmp_path / "lock", []
    touch = os.utime
    monkeypatch.setattr(os, "utime", lambda file: (touch(file), beats.append(file)))
    with locked(path) as lock:
        while len(beats) < 3:
            time.sleep(0.001)
        lock.check()
    count = len(beats)
    assert set(beats) == {path}
    assert not lock._heart.is_alive()
    assert len(beats) == count


def test_a_run_whose_lock_was_taken_over_writes_nothing_more(tmp_path):
    def overtake(row):
        if row["iteration"] == 3:
            leave(tmp_path / "lock", "node7", 0.0)

    with pytest.raises(LockLostError, match="was taken over by process 17 on node7"):
        run(*make_toy(solves_at=8), tmp_path, callbacks=[overtake])
    assert len((tmp_path / "metrics.csv").read_text().splitlines()) == 1 + 3
    assert json.loads((tmp_path / "lock").read_text())["host"] == "node7"
    assert Folder(tmp_path / "checkpoint").numbers()[-1] <= 3


def test_a_lock_that_came_back_to_life_is_not_removed(tmp_path):
    path = tmp_path / "lock"
    leave(path, "node7", 1.0)
    directory._set_aside(path)
    assert json.loads(path.read_text())["host"] == "node7"
    assert list(tmp_path.iterdir()) == [path]
    leave(path, "node7", LIFETIME + 1)
    directory._set_aside(path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("missing", ["sched_getaffinity", "pwrite", "kill", "fork"])
def test_a_run_needs_no_call_that_only_some_systems_have(tmp_path, monkeypatch, missing):
    monkeypatch.delattr(os, missing, raising=False)
    assert run(*make_toy(solves_at=2), tmp_path)["solved"]


def test_without_permission_to_open_folders_files_are_still_replaced(tmp_path, monkeypatch):
    """As on Windows, where a folder cannot be opened."""
    whole = os.open

    def refuse(path, *args):
        if Path(path).is_dir():
            raise PermissionError(13, "Permission denied")
        return whole(path, *args)

    monkeypatch.setattr(os, "open", refuse)
    write_atomically(tmp_path / "file", "text")
    assert (tmp_path / "file").read_text() == "text"


ITERATIONS = 40
EPISODES = 10  # of an iteration
TRAIN = {
    "general": "--horizon 3 --explore.episodes 10 --explore.rounds 2",
    "paper": "--preset paper --horizon 2 --collect.episodes-per-level 5 --collect.buffer-size 100"
    " --replearn.rounds 2 --replearn.feature-steps 2 --replearn.discriminator-steps 2"
    " --replearn.hidden-sizes 4",
    "efficient": "--algo efficient --horizon 3 --explore.episodes 10 --explore.rounds 2 --strata.rows 64"
    " --strata.fit-rows 48 --fit.evaluations 3",
}


def command(learner: str, run_dir: Path, iterations: int) -> list[str]:
    common = "-m briee train lock --seed 5 --env.num_actions 2 --evaluation.streak 1000"
    budget = f"--episodes {EPISODES * iterations} --run-dir {shlex.quote(str(run_dir))} --resume"
    return [sys.executable, *shlex.split(f"{common} {budget} {TRAIN[learner]}")]


def finish(learner: str, run_dir: Path, iterations: int) -> None:
    """Start or continue the run and wait for its end."""
    subprocess.run(command(learner, run_dir, iterations), check=True, stdout=subprocess.DEVNULL)


def rows(run_dir: Path) -> list[dict[str, str]]:
    """Complete rows of metrics.csv without the time columns."""
    table = read_table(run_dir / "metrics.csv")
    return [{k: v for k, v in row.items() if not k.startswith("seconds")} for row in table]


def kill_at(learner: str, run_dir: Path, iterations: int, rng: random.Random) -> bool:
    """Start or continue the run and kill it at a random moment; returns whether it was still working."""
    process = subprocess.Popen(
        command(learner, run_dir, iterations), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
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


def killed_and_resumed(root: Path, learner: str, kills: int, iterations: int) -> tuple[int, int]:
    """Kill a working run this many times; returns the number of starts, and the number of kills after which
    the rows equal those of an undisturbed run.

    Every kill is followed by a start that continues the run until the next kill; the last one finishes it.
    """
    finish(learner, root / "straight", iterations)
    straight, rng, starts, hits, agreeing = rows(root / "straight"), random.Random(1), 0, 0, 0
    victim = root / "victim"
    while hits < kills:
        starts += 1
        if len(rows(victim)) >= iterations - 5:  # nearly done: the next victim
            finish(learner, victim, iterations)
            assert rows(victim) == straight
            victim = root / f"victim{starts}"
        if kill_at(learner, victim, iterations, rng):
            hits += 1
            found = rows(victim)
            agreeing += found == straight[: len(found)]
    finish(learner, victim, iterations)
    assert rows(victim) == straight
    assert len(straight) == iterations
    return starts, agreeing


@pytest.mark.parametrize(
    ("learner", "kills", "iterations"),
    [
        ("general", 1, 8),
        pytest.param("general", 50, ITERATIONS, marks=pytest.mark.slow),
        pytest.param("efficient", 50, ITERATIONS, marks=pytest.mark.slow),
        pytest.param("paper", 50, ITERATIONS, marks=pytest.mark.slow),
    ],
)
def test_a_killed_learner_continues_to_the_same_rows(tmp_path, learner, kills, iterations):
    starts, agreeing = killed_and_resumed(tmp_path, learner, kills, iterations)
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
