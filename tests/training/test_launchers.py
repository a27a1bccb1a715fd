"""Launchers: every run once, whatever is killed; a run that fails fails alone."""

import io
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from briee.cli import sweep as command
from briee.cli.main import main
from briee.training import launchers
from briee.training.directory import is_locked, read_table
from briee.training.launchers import Board, Job, Outcome, carry_out
from briee.training.sweep import Run

TESTS = Path(__file__).parents[1]
FILE = 'env = "lock"\nalgo = ["efficient", "ppo"]\nseed = [1, 2, 3]\nepisodes = 100\n'
LAUNCHER = """
import sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from briee.cli import sweep
from briee.cli.main import main
from training.test_launchers import stub_job
sweep.make_job = stub_job(float(sys.argv.pop(1)))
sys.exit(main(["sweep", *sys.argv[1:]]))
"""


def stub_job(seconds: float, modes: dict[str, str] | None = None) -> Callable[..., Job]:
    """Replaces `make_job`: the same job with a child that takes `seconds` and imports no JAX."""

    def make(run: Run, out: Path, cores: int, memory: float | None = None) -> Job:
        config, folder = json.dumps(run.spec.to_json()), out.resolve()
        mode = (modes or {}).get(run.name, "")
        argv = (str(TESTS / "stub_run.py"), str(folder / run.name), config, str(seconds), mode)
        return Job(run.name, str(folder), argv, run.spec.episodes, {"BRIEE_CORES": str(cores)})

    return make


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("six.toml").write_text(FILE)


@pytest.fixture
def stub(monkeypatch):
    def install(seconds: float = 0.1, modes: dict[str, str] | None = None) -> None:
        monkeypatch.setattr(command, "make_job", stub_job(seconds, modes))

    return install


def start(seconds: float, *argv: str) -> subprocess.Popen[str]:
    """A launcher in a process of its own."""
    program = LAUNCHER.format(tests=str(TESTS))
    how = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen([sys.executable, "-c", program, str(seconds), *argv], **how)  # type: ignore[call-overload]


def starts(out: Path) -> dict[str, int]:
    """How many processes worked on each run."""
    return {path.stem: len(path.read_text().splitlines()) for path in out.glob("*.starts")}


def wait_for(condition: Callable[[], object], seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


def tables(out: Path) -> list[list[dict[str, str]]]:
    """Both tables of a sweep."""
    return [read_table(out / "runs.csv"), read_table(out / "curves.csv.gz")]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The tables of a sweep that nothing disturbed."""
    folder = tmp_path_factory.mktemp("undisturbed")
    (folder / "six.toml").write_text(FILE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(command, "make_job", stub_job(0.05))
        assert main(["sweep", str(folder / "six.toml"), "--out", str(folder / "out"), "--workers", "2"]) == 0
    assert set(starts(folder / "out").values()) == {1}
    return tables(folder / "out")


def without_times(found: list[list[dict[str, str]]]) -> list[list[dict[str, str]]]:
    return [[row | {"seconds": ""} for row in table] for table in found]


def test_a_failed_run_fails_alone_and_is_tried_again_on_request(stub, capsys):
    broken, full, killed = "lock-h6-efficient-s2", "lock-h6-ppo-paper-s1", "lock-h6-ppo-paper-s3"
    stub(modes={broken: "raise", full: "full", killed: "die"})
    assert main(["sweep", "six.toml", "--out", "out"]) == 2
    said = capsys.readouterr()
    assert f"{broken}: failed: ValueError: the environment is broken" in said.out
    assert f"{full}: failed: OSError: [Errno 28] No space left on device" in said.out
    assert "killed by signal 9" in said.out
    assert "3 of 6 runs are not done: the same command continues; add --retry" in said.err
    states = {row["run"]: (row["state"], row["reason"]) for row in read_table(Path("out/runs.csv"))}
    assert states[broken] == ("failed", "ValueError: the environment is broken")
    assert states[killed][0] == "stopped"
    assert list(states.values()).count(("finished", "")) == 3
    assert "broken" in Path(f"out/logs/{broken}.log").read_text()
    stub()
    assert main(["sweep", "out"]) == 2
    assert starts(Path("out"))[broken] == 1
    assert starts(Path("out"))[killed] == 2
    assert main(["sweep", "out", "--retry"]) == 0
    assert set(starts(Path("out")).values()) == {1, 2}
    assert not list(Path("out/logs").glob("*.failed"))


def test_tables_that_cannot_be_written_are_one_sentence(stub, capsys, monkeypatch):
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    stub()
    monkeypatch.setattr(command.sweep, "write_table", full)
    assert main(["sweep", "six.toml", "--out", "out"]) == 2
    assert capsys.readouterr().err == "briee: cannot write out: No space left on device\n"
    assert len(list(Path("out").glob("*/summary.json"))) == 6


def test_plan_and_status_start_nothing(stub, capsys):
    stub()
    assert main(["sweep", "six.toml", "--dry-run"]) == 0
    assert "6 runs in runs/six: 6 waiting" in capsys.readouterr().out
    assert not Path("runs").exists()
    assert main(["sweep", "six.toml"]) == 0
    for file in ("efficient-s1/summary", "ppo-paper-s2/summary", "ppo-paper-s2/config"):
        Path(f"runs/six/lock-h6-{file}.json").unlink()
    Path("runs/six/logs/lock-h6-ppo-paper-s2.queued").write_text('{"job": "77_4"}')
    capsys.readouterr()
    assert main(["sweep", "runs/six", "--status", "--workers", "1"]) == 0
    said = capsys.readouterr().out
    assert "lock-h6-efficient-s1  stopped" in said
    assert "lock-h6-ppo-paper-s2  waiting   job 77_4" in said
    assert "6 runs in runs/six: 1 stopped, 4 finished, 1 waiting" in said
    assert "left with 1 workers" in said


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (["six.toml", "--workers", "0"], "--workers must be greater than 0, got 0"),
        (["nowhere.toml"], "cannot read nowhere.toml: No such file or directory"),
        (["six.toml", "--launcher", "ssh"], "--launcher must be one of local, ray, slurm, got 'ssh'"),
        (["six.toml", "--launcher", "slurm", "--slurm-options", "gpu"], "takes NAME=VALUE, got 'gpu'"),
    ],
)
def test_a_wrong_request_starts_nothing(stub, capsys, argv, sentence):
    stub()
    assert main(["sweep", *argv]) == 2
    assert sentence in capsys.readouterr().err
    assert not list(Path().rglob("*.starts"))


def test_train_with_seeds_is_the_short_form(stub, capsys):
    stub()
    train = ["train", "lock", "--algo=ppo", "--episodes", "50", "--seeds", "3", "4"]
    assert main(train) == 0
    assert starts(Path("runs/lock-h6-ppo-paper")) == {"lock-h6-ppo-paper-s3": 1, "lock-h6-ppo-paper-s4": 1}
    assert [row["seed"] for row in read_table(Path("runs/lock-h6-ppo-paper/runs.csv"))] == ["3", "4"]
    assert main([*train, "5"]) == 0
    assert sum(starts(Path("runs/lock-h6-ppo-paper")).values()) == 3
    assert main([*train, "--seed", "1"]) == 2
    assert "--seed and --seeds exclude each other" in capsys.readouterr().err


def test_a_killed_launcher_and_its_children_are_continued(undisturbed):
    launcher = start(1.0, "six.toml", "--out", "out", "--workers", "2")
    out = Path("out").resolve()
    wait_for(lambda: any(len(read_table(path)) > 2 for path in out.glob("*/metrics.csv")))
    launcher.kill()
    launcher.communicate()
    pids = [int(pid) for path in out.glob("*.starts") for pid in path.read_text().split()]
    wait_for(lambda: not any(Path(f"/proc/{pid}/cmdline").exists() and _alive(pid) for pid in pids))
    second = start(0.05, "six.toml", "--out", "out", "--workers", "2")
    said, _ = second.communicate(timeout=120)
    assert second.returncode == 0, said
    assert sorted(starts(out).values())[-1] == 2
    assert without_times(tables(out)) == without_times(undisturbed)


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_ctrl_c_stops_the_children_and_says_how_to_continue():
    launcher = start(5.0, "six.toml", "--out", "out", "--workers", "2")
    out = Path("out").resolve()
    wait_for(lambda: sum(len(read_table(path)) > 1 for path in out.glob("*/metrics.csv")) == 2)
    launcher.send_signal(signal.SIGINT)
    said, _ = launcher.communicate(timeout=60)
    assert launcher.returncode == 130
    assert "nothing is lost: the same command continues the runs in out" in said
    assert sum(starts(out).values()) == 2
    assert {row["state"] for row in read_table(out / "runs.csv")} == {"stopped", "waiting"}


def test_two_launchers_run_nothing_twice(undisturbed):
    both = [start(0.4, "six.toml", "--out", "out", "--workers", "2") for _ in range(2)]
    for launcher in both:
        said, _ = launcher.communicate(timeout=120)
        assert launcher.returncode == 0, said
    assert set(starts(Path("out")).values()) == {1}
    assert without_times(tables(Path("out"))) == without_times(undisturbed)


def test_a_job_waits_for_the_child_of_a_dead_launcher(tmp_path, monkeypatch):
    job = Job("run", str(tmp_path), ("-c", "import sys; sys.exit('no')"), 10)
    (tmp_path / "logs").mkdir()
    (tmp_path / "run").mkdir()
    asked = iter([True, True, False])
    monkeypatch.setattr(launchers, "is_locked", lambda path: next(asked))
    assert carry_out(job) == Outcome("failed", "no")
    assert next(asked, None) is None
    monkeypatch.setattr(launchers, "is_locked", lambda path: True)
    stop = threading.Event()
    stop.set()
    assert carry_out(job, stop) == Outcome("stopped", "not started")
    with launchers.locked(tmp_path / "logs" / "run.lock"):
        assert carry_out(job) is None


def test_the_live_table_shows_runs_at_work_and_failures(tmp_path):
    console = Console(file=io.StringIO(), force_terminal=True, width=100, height=20)
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "metrics.csv").write_text("iteration,episodes,eval_return\n1,25,0.5\n")
    with Board(tmp_path, {"a": 100, "b": 100, "c": 100}, console) as board:
        for name in "abc":
            board.started(name)
        board.ended("b", Outcome("failed", "no space"))
        board.ended("c", Outcome("done"))
        console.print(board.render())
    said = console.file.getvalue()  # type: ignore[attr-defined]
    assert "1 done, 1 failed; 1 left" in said
    assert "25 / 100" in said
    assert "failed: no space" in said


def test_locks_of_a_finished_sweep_are_free(stub):
    stub()
    assert main(["sweep", "six.toml", "--out", "out"]) == 0
    assert not any(is_locked(path) for path in Path("out/logs").glob("*.lock"))
    assert os.listdir("out/lock-h6-ppo-paper-s1")


@pytest.fixture
def three_nodes(tmp_path, monkeypatch):
    """A Ray cluster of three nodes on the loopback interface, one slot each."""
    pytest.importorskip("ray")
    settings = {
        "RAY_AUTH_MODE": "disabled",
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # loopback addresses only
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_health_check_period_ms": "500",
        "RAY_health_check_failure_threshold": "2",
        "HOME": str(tmp_path),
    }
    with tempfile.TemporaryDirectory() as short:  # names of sockets have at most 107 characters
        for name, value in (settings | {"RAY_TMPDIR": short}).items():
            monkeypatch.setenv(name, value)
        from ray.cluster_utils import Cluster  # pyright: ignore[reportMissingImports]

        node = {"num_cpus": 1, "object_store_memory": 80_000_000, "include_dashboard": False}
        cluster = Cluster(initialize_head=True, head_node_args=node)
        others = [cluster.add_node(**node) for _ in range(2)]
        yield cluster, others
        cluster.shutdown()


def test_a_ray_cluster_that_is_not_there_is_one_sentence(stub, capsys):
    pytest.importorskip("ray")
    stub()
    where = ["--launcher", "ray", "--ray-address"]
    assert main(["sweep", "six.toml", "--out", "out", *where, "127.0.0.1:1"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("briee: cannot reach the Ray cluster at 127.0.0.1:1: ")
    assert said.count("\n") == 1
    assert not starts(Path("out"))


@pytest.mark.slow
def test_a_node_that_dies_costs_nothing_but_time(three_nodes, undisturbed):
    cluster, others = three_nodes
    out = Path("out").resolve()
    launcher = start(5.0, "six.toml", "--out", "out", "--launcher", "ray", "--ray-address", cluster.address)
    wait_for(lambda: sum(len(read_table(path)) > 1 for path in out.glob("*/metrics.csv")) == 3)
    kill_node(cluster, others[0])
    said, _ = launcher.communicate(timeout=120)
    assert launcher.returncode == 0, said
    assert sorted(starts(out).values()) == [1, 1, 1, 1, 1, 2]
    assert without_times(tables(out)) == without_times(undisturbed)


def kill_node(cluster, node) -> None:
    """All processes of a node die at once, those that its workers have started among them."""
    (raylet,) = (each[0].process.pid for name, each in node.all_processes.items() if "raylet" in str(name))
    listed = subprocess.run(["ps", "-eo", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
    parents = {int(pid): int(parent) for pid, parent in (line.split() for line in listed.splitlines())}
    doomed = {raylet}
    while more := {pid for pid, parent in parents.items() if parent in doomed} - doomed:
        doomed |= more
    for pid in doomed - {raylet}:
        os.kill(pid, signal.SIGKILL)
    cluster.remove_node(node, allow_graceful=False)


@pytest.mark.slow
def test_slurm_submits_and_exits_and_the_jobs_do_the_rest(undisturbed):
    """With submitit's executor on this machine."""
    pytest.importorskip("submitit")
    how = ("--launcher", "slurm", "--slurm-cluster", "local", "--slurm-minutes", "5")
    submitted = start(1.0, "six.toml", "--out", "out", *how)
    said, _ = submitted.communicate(timeout=60)
    assert submitted.returncode == 0, said
    assert "submitted 6 jobs" in said
    assert len(list(Path("out/logs").glob("*.queued"))) == 6
    wait_for(lambda: len(list(Path("out").glob("*/summary.json"))) == 6)
    assert main(["sweep", "out"]) == 0
    assert set(starts(Path("out")).values()) == {1}
    assert without_times(tables(Path("out"))) == without_times(undisturbed)
