"""Three seeds, two algorithms, two worlds, with each launcher: killed in the middle and continued, the tables
are those of a sweep that nothing disturbed. Real runs, minutes in all."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from briee.training.directory import is_locked, read_json, read_table

pytestmark = pytest.mark.slow
FILE = """
env = ["lock", "lock-dense"]
horizon = 3
seed = [1, 2, 3]
"env.num_actions" = 2
evaluation.streak = 1000

[[product]]
algo = "efficient"
episodes = 120
explore.episodes = 10
explore.rounds = 2
strata.rows = 64
strata.fit_rows = 48
fit.evaluations = 3

[[product]]
algo = "lsvi-ucb"
episodes = 2500
"""
SLURM = ("slurm", "--slurm-cluster", "local", "--slurm-minutes", "5")


def sweep(out: Path, *launcher: str) -> subprocess.Popen[str]:
    """`briee sweep` in a process of its own."""
    command = [sys.executable, "-m", "briee", "sweep", str(out.parent / "twelve.toml"), "--out", str(out)]
    command += ["--launcher", *launcher] if launcher else []
    variables = os.environ | {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}
    how = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "env": variables}
    return subprocess.Popen(command, **how)  # type: ignore[call-overload]


def wait_for(condition: Callable[[], object], seconds: float = 300) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.05)


def done(out: Path) -> int:
    return sum((read_json(path) or {}).get("finished") is True for path in out.glob("*/summary.json"))


def processes_of(out: Path) -> list[int]:
    """Everything that works on a sweep: launcher, jobs and runs."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if str(out).encode() in path.read_bytes() and int(path.parent.name) != os.getpid():
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


def tables(out: Path) -> list[list[dict[str, str]]]:
    """Both tables of a sweep, without the times."""
    found = [read_table(out / "runs.csv"), read_table(out / "curves.csv.gz")]
    return [[{k: v for k, v in row.items() if k != "seconds"} for row in table] for table in found]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The tables of a sweep that nothing disturbed."""
    folder = tmp_path_factory.mktemp("undisturbed")
    (folder / "twelve.toml").write_text(FILE)
    process = sweep(folder / "out")
    said, _ = process.communicate(timeout=500)
    assert process.returncode == 0, said
    found = tables(folder / "out")
    assert len(found[0]) == len({row["run"] for row in found[0]}) == 12
    assert {row["state"] for row in found[0]} == {"finished"}
    assert len({(row["world"], row["algorithm"]) for row in found[0]}) == 4
    assert all(sum(point["run"] == row["run"] for point in found[1]) > 3 for row in found[0])
    return found


@pytest.mark.parametrize("launcher", [(), ("ray",), SLURM], ids=["local", "ray", "slurm"])
def test_twelve_real_runs_are_killed_and_continued(tmp_path, undisturbed, launcher):
    if launcher:
        pytest.importorskip({"ray": "ray", "slurm": "submitit"}[launcher[0]])
    (tmp_path / "twelve.toml").write_text(FILE)
    out = tmp_path / "out"
    first = sweep(out, *launcher)
    wait_for(lambda: done(out) >= 3 and any(is_locked(path) for path in out.glob("*/lock")))
    victims = processes_of(out)
    for pid in {first.pid, *victims}:
        os.kill(pid, signal.SIGKILL)
    said, _ = first.communicate(timeout=60)
    assert first.returncode == (0 if launcher == SLURM else -9), said  # submitted and left
    wait_for(lambda: not any(is_locked(path) for path in out.rglob("*lock")))
    before = done(out)
    assert 3 <= before < 12
    second = sweep(out, *launcher)
    said, _ = second.communicate(timeout=500)
    assert second.returncode == 0, said
    assert f"12 runs, {before} done before" in said
    if launcher == SLURM:
        assert f"submitted {12 - before} jobs" in said
        wait_for(lambda: done(out) == 12)
        third = sweep(out)
        said, _ = third.communicate(timeout=120)
        assert third.returncode == 0, said
        assert "12 runs, 12 done before" in said
    assert tables(out) == undisturbed


BROKEN = """
import gymnasium as gym


class Broken(gym.Env):
    observation_space, action_space = gym.spaces.Discrete(4), gym.spaces.Discrete(2)
    steps = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return 0, {}

    def step(self, action):
        self.steps += 1
        if self.steps > 12:
            raise RuntimeError("the motor is stuck")
        return int(action), 0.0, False, False, {}
"""


def test_an_environment_that_raises_fails_its_run_alone(tmp_path):
    (tmp_path / "broken.py").write_text(BROKEN)
    (tmp_path / "twelve.toml").write_text(
        'horizon = 3\nepisodes = 250\nalgo = "ppo"\n[[product]]\nrich = "hadamard"\n'
        f'env = "{tmp_path}/broken.py:Broken"\n[[product]]\nenv = "lock"\nalgo = "lsvi-ucb"\n'
    )
    process = sweep(tmp_path / "out")
    said, _ = process.communicate(timeout=300)
    assert process.returncode == 2, said
    assert "1 of 2 runs are not done" in said
    broken, fine = read_table(tmp_path / "out" / "runs.csv")
    assert (broken["state"], fine["state"]) == ("failed", "finished")
    assert "failed at step" in broken["reason"]
    assert "RuntimeError: the motor is stuck" in broken["reason"]
