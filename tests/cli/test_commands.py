"""The commands around a run: report, watch, doctor, and TensorBoard's files."""

import csv
import importlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from test_cli import TINY, refusal

from briee.algorithms.registry import in_words
from briee.cli.main import main
from briee.cli.watch import look, sparkline
from briee.training import session as runs
from briee.training.directory import locked, read_metrics
from briee.training.tracking import TensorBoard
from toy_run import make_toy

TOY_RUN = Path(__file__).parents[1] / "toy_run.py"


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(runs, "CHECKPOINT_SHARE", float("inf"))


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """A run of the real learner that stopped before its budget was used up."""
    path = tmp_path_factory.mktemp("commands") / "run"
    assert main([*TINY, "--episodes", "30", "--run-dir", str(path), "--tensorboard"]) == 0
    return path


def test_report_writes_the_page_and_its_figures(trained, capsys):
    assert main(["report", str(trained), "--output", "out/page.html"]) == 0
    assert "out/page.html" in capsys.readouterr().out
    page = Path("out/page.html").read_text()
    assert f"{in_words('briee paper')} on lock, H = 2" in page
    names = {file.name for file in Path("out/page-figures").iterdir()}
    assert {"return.png", "return.pdf", "map-lock-h2-briee-paper-s1.png"} <= names
    assert main(["report", str(trained), "--no-figures"]) == 0
    assert not Path("report-figures").exists()


def test_report_refuses_with_one_sentence(capsys):
    assert "needs at least one run directory" in refusal(capsys, "report")
    assert refusal(capsys, "report", "nowhere") == "nowhere is not a directory"
    Path("empty").mkdir()
    assert "no run in empty" in refusal(capsys, "report", "empty")
    assert "empty is a directory" in refusal(capsys, "report", "empty", "--output", "empty")


def test_doctor_speaks_and_refuses(capsys):
    assert main(["doctor", "lock", "--horizon", "2", "--env.num_actions", "3", "--episodes", "200"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("+ lock: 3 actions, observations of shape (8,), episodes of 2 steps\n")
    assert "continuous actions" in refusal(capsys, "doctor", "Pendulum-v1")
    assert "did you mean lock?" in refusal(capsys, "doctor", "lok")
    assert "horizon must be >= 1, got 0" in refusal(capsys, "doctor", "lock", "--horizon", "0")
    assert "episodes must be >= 100" in refusal(capsys, "doctor", "lock", "--episodes", "3")
    assert "no argument 'nose'" in refusal(capsys, "doctor", "lock", "--env.nose", "3")


@pytest.mark.parametrize(
    ("option", "value"),
    [("--horizon", "3"), ("--num-latents", "4"), ("--rich", "noise"), ("--env.noise", "0.2")],
)
def test_doctor_of_a_run_refuses_what_is_for_environments(capsys, option, value):
    Path("run").mkdir()
    Path("run/config.json").write_text("{}")
    said = refusal(capsys, "doctor", "run", option, value)
    assert said == f"run is a run, whose environment is known: leave out {option}"


def test_watch_shows_a_run_that_is_over(trained, capsys):
    assert main(["watch", str(trained)]) == 0
    said = capsys.readouterr().out
    assert "briee (paper) on lock, horizon 2, seed 1: finished" in said
    assert "30 of at most 30" in said
    assert "not solved within 30 episodes" in said


def test_watch_follows_a_run_to_its_end():
    """In a process of its own, started while the run goes on: every iteration is shown, once."""
    runner = subprocess.Popen([sys.executable, TOY_RUN, "toy"], stdout=subprocess.PIPE, text=True)
    assert runner.stdout is not None
    while "iteration" not in runner.stdout.readline():
        pass
    watcher = subprocess.run(
        [sys.executable, "-m", "briee", "watch", "toy", "--seconds", "0.05"],
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    runner.communicate()
    said = watcher.stdout.splitlines()
    iterations = [int(line.split()[1]) for line in said if line.startswith("iteration")]
    assert iterations == list(range(1, len(iterations) + 1))
    assert "toy on toy-env, horizon 3, seed 1: solved" in said
    assert any(line.startswith("solved after 340 episodes") for line in said)
    assert "jax" not in watcher.stderr


def test_watch_tells_stopped_and_running_apart(capsys):
    runs.run(*make_toy(), "toy", callbacks=[lambda row: row["iteration"] == 2])
    assert main(["watch", "toy"]) == 0
    assert "to continue: briee train toy-env --run-dir toy --resume" in capsys.readouterr().out
    with locked(Path("toy/lock")):
        assert look(Path("toy")).run.state == "running"
        assert main(["watch", "toy", "--once"]) == 0
    said = capsys.readouterr().out
    assert "seed 1: running" in said
    assert "to continue" not in said


def test_watch_refuses_with_one_sentence(trained, capsys):
    assert refusal(capsys, "watch", "nowhere") == "nowhere is not a directory"
    assert "watch one of the runs below it" in refusal(capsys, "watch", str(trained.parent))
    assert "seconds must be > 0" in refusal(capsys, "watch", str(trained), "--seconds", "0")
    Path("odd").mkdir()
    Path("odd/config.json").write_text(json.dumps({"env": "lock", "algorithm": "briee", "seed": 1}))
    assert "does not describe a run" in refusal(capsys, "watch", "odd")
    Path("odd/summary.json").write_text("{")
    assert refusal(capsys, "watch", "odd").startswith("cannot read odd/summary.json: ")


def test_report_names_the_runs_it_leaves_out(trained, capsys):
    for name in ("good", "bad"):
        shutil.copytree(trained, Path("runs") / name)
    Path("runs/bad/config.json").write_text("{")
    assert main(["report", "runs", "--no-figures"]) == 0
    assert capsys.readouterr().err.startswith("left out: cannot read runs/bad/config.json: ")
    Path("runs/good/metrics.csv").write_text("garbage,row\n1,2\n")
    assert refusal(capsys, "watch", "runs/good").startswith("cannot read runs/good/metrics.csv: ")


def test_rows_cut_short_and_sparklines():
    Path("metrics.csv").write_text("iteration,eval_return,reached_level\n1,0.5,\n2,1.0,3\n3,0.")
    assert [(row["eval_return"], row["reached_level"]) for row in read_metrics(Path("metrics.csv"))] == [
        (0.5, None),
        (1.0, 3),
    ]
    assert sparkline([0, 7, 3.5, 0], 10) == "▁█▅▁"
    assert sparkline([2, 2], 10) == "▁▁"
    assert sparkline([0, 0, 1, 1, 2, 2], 3) == "▁▅█"


def scalars(folder: Path) -> dict[tuple[str, int], float]:
    """The scalars in an event file, read with tensorboardX's protocol classes."""
    found, event_class = {}, importlib.import_module("tensorboardX.proto.event_pb2").Event
    (file,) = folder.glob("events.out.tfevents.*")
    data = file.read_bytes()
    while data:
        size = int.from_bytes(data[:8], "little")
        event = event_class.FromString(data[12 : 12 + size])
        for value in event.summary.value:
            assert (value.tag, event.step) not in found
            found[value.tag, event.step] = value.simple_value
        data = data[16 + size :]
    return found


def test_tensorboard_holds_the_numbers_of_the_table(trained):
    pytest.importorskip("tensorboardX")
    with open(trained / "metrics.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    wanted = {(k, int(row["episodes"])): float(v) for row in rows for k, v in row.items() if v}
    assert scalars(trained / "tensorboard") == pytest.approx(wanted)


def test_tensorboard_of_a_resumed_run_has_every_row_once():
    pytest.importorskip("tensorboardX")
    runs.run(*make_toy(), "toy", callbacks=[lambda row: row["iteration"] == 2])
    with TensorBoard("toy/tensorboard", "toy/metrics.csv") as board:
        runs.run(*make_toy(), "toy", resume=True, callbacks=[board])
    found = scalars(Path("toy/tensorboard"))
    assert sorted(step for name, step in found if name == "eval_return") == list(range(10, 81, 10))


def test_tensorboard_without_its_package_is_one_sentence(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    sentence = refusal(capsys, *TINY, "--tensorboard")
    assert "pip install 'briee[tensorboard]'" in sentence
    assert not Path("runs").exists()
