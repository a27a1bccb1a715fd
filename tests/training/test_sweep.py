"""A sweep file: the product it describes, the names of its runs, and one sentence for everything wrong."""

import gzip
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from briee.cli.train import parse_train
from briee.errors import RunError, UsageError
from briee.training.directory import is_locked, locked, read_json, read_table
from briee.training.sweep import Run, collect, expected_seconds, inspect, read_sweep

FILE = """
env = ["lock", "lock-dense"]
horizon = [6, 12]
algo = ["efficient", "lsvi-ucb"]
seed = [1, 2, 3]
episodes = 2000
"""


def runs_of(text: str, path: Path = Path("sweep.toml")) -> list[Run]:
    path.write_text(text)
    return read_sweep(path, lambda argv: parse_train(argv)[1])


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_every_list_is_a_factor_and_names_say_what_differs():
    runs = runs_of(FILE)
    assert len(runs) == len({run.name for run in runs}) == 24
    assert runs[0].name == "lock-h6-efficient-s1"
    assert runs[-1].name == "lock-dense-h12-lsvi-ucb-paper-s3"
    assert (runs[-1].label, runs[-1].world) == ("lsvi-ucb paper", "lock-dense, H = 12")
    assert runs[-1].spec == parse_train(runs[-1].argv)[1]


def test_a_product_adds_factors_and_an_exclusion_drops_runs():
    runs = runs_of(
        """
        seed = [1, 2]
        [[product]]
        env = "lock"
        "env.noise" = [0.1, 0.2]
        [[product]]
        env = "lock"
        horizon = 3
        algo = "briee"
        preset = "paper"
        replearn.hidden-sizes = [[8, 8], [4]]
        [[exclude]]
        seed = 2
        algo = "briee"
        """
    )
    assert [run.name for run in runs] == [
        "lock-h6-noise0.1-general-s1",
        "lock-h6-noise0.2-general-s1",
        "lock-h6-noise0.1-general-s2",
        "lock-h6-noise0.2-general-s2",
        "lock-h3-briee-paper-replearn.hidden_sizes8x8-s1",
        "lock-h3-briee-paper-replearn.hidden_sizes4-s1",
    ]
    assert runs[1].world == "lock, H = 6, noise = 0.2"
    assert runs[4].label == "briee paper, replearn.hidden_sizes = 8x8"
    assert runs[4].spec.config.replearn.hidden_sizes == (8, 8)  # type: ignore[attr-defined]
    assert runs[1].spec.env_arguments == {"noise": 0.2}


@pytest.mark.parametrize(
    ("text", "line", "sentence"),
    [
        ('env = "lock"\nhrizon = 3', 2, "unknown option --hrizon: did you mean --horizon"),
        ('env = "lock"\nseed = 1\nhorizon = "six"', 3, "--horizon must be a whole number, got 'six'"),
        ('env = "lock"\n\nhorizon = ["6"]', 3, "horizon must be a number without quotes, got '6'"),
        ('env = "lock"\nseed = []', 2, "seed is an empty list, so there is no run"),
        ('env = "lock"\nseed = [1, -1]', 2, "seed must be a whole number from 0 to 4294967295, got -1"),
        ('seed = 3\nenv = "lok"', 2, "unknown environment 'lok': did you mean lock?"),
        ('env = "lock"\n"env.nose" = 1', 2, "'lock' has no argument 'nose'"),
        ('env = "lock"\nexplore.episodes = 0', 2, "--explore.episodes must be >= 1, got 0"),
        ('env = "lock"\n[explore]\nepisodes = 0', 3, "--explore.episodes must be >= 1, got 0"),
        ('env = "lock"\nrun-dir = "x"', 2, "run_dir is not a field of a sweep"),
        ('env = "lock"\n[[exclude]]\nseed = 7', 3, "this exclusion matches no run"),
        ('env = "lock"\n[[exclude]]\nenv = "lock"', 3, "this exclusion leaves no run"),
        ('env = "lock"\n[[product]]\nseed = 1\n[[product]]\nalgo = "brie"', 5, "unknown algorithm 'brie'"),
        ("seed = 1", 1, "env is missing"),
        ('env = "lock"\nproduct = 3', 2, "product is a table: write [[product]]"),
        ('env = "lock"\n\nproduct = []', 3, "product is an empty list, so there is no run"),
        ('env = "lock"\n[product]\nseed = 1', 2, "product is a table: write [[product]]"),
        ('env = "lock"\nhorizon = [3, 0]', 2, "horizon must be >= 1, got 0"),
        ('env = "lock"\nexplore = { epsodes = 3 }', 2, "unknown option --explore.epsodes: did you mean"),
        ('env = "lock"\n"a b" = 3', 2, "unknown option --a b"),
        ("seed = 3\nenv.noise = 0.2", 2, "env is missing; arguments of an environment need quotes"),
        ('env = "lock"\nseed = 1\nseed = 2', 3, "Cannot overwrite a value"),
        ('env = "lock\n', 1, "cannot read sweep.toml: Illegal character"),
        ('env = "lock"\nseed = [1, 1]', 2, "two runs are equal: lock-h6-general-s1"),
        ('env = "lock"\nepisodes = [10, 20]', 2, "two runs are different but have the same name: lock-h6-"),
    ],
)
def test_a_wrong_file_is_refused_with_its_line(text, line, sentence):
    with pytest.raises(UsageError) as refusal:
        runs_of(text)
    said = str(refusal.value)
    assert sentence in said
    assert f"line {line}" in said or f"and {line}" in said
    assert "\n" not in said


def finish(run: Run, out: Path, **changes: object) -> None:
    """Write the files of a run that has used up its budget."""
    folder = out / run.name
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(
        json.dumps(run.spec.to_json() | {"env_arguments": {"instance_seed": run.spec.seed}})
    )
    about = {"solved": False, "finished": True, "episodes": run.spec.episodes, "seconds": {"total": 8.0}}
    (folder / "summary.json").write_text(json.dumps(about | changes))
    (folder / "metrics.csv").write_text("iteration,episodes,env_steps,eval_return\n1,50,100,0.25\n")


def test_states_and_tables(tmp_path):
    runs = runs_of('env = "lock"\nseed = [1, 2, 3, 4, 5]\nepisodes = 50')
    finish(runs[0], tmp_path)
    finish(runs[1], tmp_path, solved=True, episodes_to_solve=40)
    finish(runs[2], tmp_path, finished=False)
    logs = tmp_path / "logs"
    logs.mkdir()
    (logs / f"{runs[3].name}.failed").write_text('{"reason": "no luck"}')
    with locked(logs / f"{runs[4].name}.lock"):
        rows = collect(runs, tmp_path)
    assert [row["state"] for row in rows] == ["finished", "solved", "stopped", "failed", "running"]
    assert rows[3]["reason"] == "no luck"
    table = read_table(tmp_path / "runs.csv")
    assert [row["episodes_to_solve"] for row in table] == ["", "40", "", "", ""]
    curves = read_table(tmp_path / "curves.csv.gz")
    assert [(row["seed"], row["eval_return"]) for row in curves] == [
        ("1", "0.25"),
        ("2", "0.25"),
        ("3", "0.25"),
    ]
    before = (tmp_path / "curves.csv.gz").read_bytes()
    assert gzip.decompress(before).decode().startswith("run,label,world,")
    collect(runs, tmp_path)
    assert (tmp_path / "curves.csv.gz").read_bytes() == before
    states = {run.name: inspect(run, tmp_path) for run in runs}
    assert list(expected_seconds(runs, states)) == [8.0, 8.0, 8.0]


def test_a_larger_budget_continues_and_another_run_is_no_substitute(tmp_path):
    (run,) = runs_of('env = "lock"\nepisodes = 50')
    finish(run, tmp_path)
    (larger,) = runs_of('env = "lock"\nepisodes = 60')
    assert inspect(run, tmp_path).done
    assert inspect(larger, tmp_path).state == "stopped"
    (other,) = runs_of('env = "lock"\nepisodes = 50\nexplore.episodes = 80')
    assert other.name == run.name
    with pytest.raises(
        RunError, match=r"holds a run with config.explore.episodes = \d+, not 80: choose another"
    ):
        inspect(other, tmp_path)


REAL_FILE = """
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
    (folder / "twelve.toml").write_text(REAL_FILE)
    process = sweep(folder / "out")
    said, _ = process.communicate(timeout=500)
    assert process.returncode == 0, said
    found = tables(folder / "out")
    assert len(found[0]) == len({row["run"] for row in found[0]}) == 12
    assert {row["state"] for row in found[0]} == {"finished"}
    assert len({(row["world"], row["algorithm"]) for row in found[0]}) == 4
    assert all(sum(point["run"] == row["run"] for point in found[1]) > 3 for row in found[0])
    return found


@pytest.mark.slow
@pytest.mark.parametrize("launcher", [(), ("ray",), SLURM], ids=["local", "ray", "slurm"])
def test_twelve_real_runs_are_killed_and_continued(tmp_path, undisturbed, launcher):
    if launcher:
        pytest.importorskip({"ray": "ray", "slurm": "submitit"}[launcher[0]])
    (tmp_path / "twelve.toml").write_text(REAL_FILE)
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


@pytest.mark.slow
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
