"""What a run shows: live in a terminal, plain lines elsewhere, every row once to Weights & Biases."""

import dataclasses
import io
import json
import shutil
import sys
import time
from pathlib import Path

import jax
import pytest
from rich.console import Console

from briee.cli.main import main
from briee.training import session
from briee.training.directory import read_metrics
from briee.training.progress import (
    LiveDisplay,
    PlainDisplay,
    clock,
    headline,
    make_display,
    states_lines,
    summary_lines,
)
from briee.training.session import run
from briee.training.tracking import WeightsAndBiases
from toy_run import make_toy

ROW = {
    "iteration": 3, "episodes": 1500, "env_steps": 9000, "eval_return": 0.25, "explore_return": None,
    "reached_level": 4, "decoder_accuracy": 0.931, "seconds_collect": 1.0, "seconds_plan": 0.5,
}  # fmt: skip


def test_plain_lines_come_at_most_once_a_second_and_end_with_the_summary(tmp_path):
    stream = io.StringIO()
    algorithm, spec = make_toy(solves_at=3)
    run(algorithm, spec, tmp_path / "run", display=PlainDisplay(stream, seconds_between=3600))
    lines = stream.getvalue().splitlines()
    assert lines[0] == "toy on toy-env, horizon 3, seed 1"
    assert lines[1].startswith("iteration 1  episodes 10  return ")
    assert lines[2].startswith("iteration 7  episodes 70  return 1.000")
    assert lines[3] == "solved after 70 episodes; last return 1.000, optimal 1.000"
    assert lines[-1] == f"files: {tmp_path / 'run'}"
    assert len(lines) == 6


def test_the_first_line_says_that_images_are_averaged():
    _, spec = make_toy()
    spec = dataclasses.replace(spec, env_arguments={"downsample": 4})
    assert headline(spec) == "toy on toy-env, horizon 3, images averaged over 4 x 4 pixels, seed 1"


def test_plain_lines_say_what_takes_long():
    stream = io.StringIO()
    with PlainDisplay(stream, patience=0.05) as display:
        display.phase("represent")
        end = time.monotonic() + 20
        while "so far" not in stream.getvalue() and time.monotonic() < end:
            time.sleep(0.01)
    assert stream.getvalue().startswith("learning features (0 s so far)\n")


def test_the_live_panel_shows_episodes_level_return_time_and_activity():
    console = Console(file=io.StringIO(), force_terminal=True, width=120)
    algorithm, spec = make_toy(episodes=3000)
    with LiveDisplay(console) as display:
        display.start(spec, algorithm.init(jax.random.key(0)))
        display.iteration(ROW)
        display.phase("compile")
        assert display.doing == "compiling"
        display.phase("represent")
        with console.capture() as capture:
            console.print(display.render())
    shown = capture.get()
    for part in (
        "1,500 of at most 3,000",
        "level 4/3",
        "return 0.250",
        "decoded 93%",
        "learning features",
        "0:00",
    ):
        assert part in shown
    assert "exploring" not in shown


def test_output_that_is_no_terminal_gets_plain_lines():
    assert isinstance(make_display(), PlainDisplay)


@pytest.mark.parametrize(
    ("outcome", "sentence"),
    [
        (
            {"solved": True, "finished": True, "episodes": 1200},
            "solved after 1,200 episodes; last return 0.500",
        ),
        ({"solved": True, "finished": True}, "5,000 episodes, solved after 1,200; last return 0.500"),
        (
            {"solved": False, "finished": True, "algorithm": "reward-free"},
            "explored for 5,000 episodes; last return 0.500",
        ),
        (
            {"solved": False, "finished": True, "target_return": 1.0},
            "not solved within 5,000 episodes; last return 0.500",
        ),
        ({"solved": False, "finished": True}, "5,000 episodes, no target known; last return 0.500"),
        ({"solved": False, "finished": False}, "stopped after 5,000 episodes; last return 0.500"),
    ],
)
def test_the_summary_says_how_it_ended(outcome, sentence):
    seconds = dict.fromkeys(("collect", "represent", "plan", "evaluate", "total"), 1.0)
    numbers = {"episodes": 5000, "episodes_to_solve": 1200, "final_return": 0.5, "optimal_return": None}
    summary = {"algorithm": "briee", "seconds": seconds} | numbers | outcome
    assert summary_lines(summary, Path("x"))[0] == sentence


def test_the_parts_of_the_time_add_up():
    seconds = {"collect": 1.0, "represent": 0.0, "plan": 0.5, "evaluate": 2.0, "total": 70.25}
    numbers = {"episodes": 20, "episodes_to_solve": None, "final_return": None, "optimal_return": None}
    _, took, _ = summary_lines(numbers | {"seconds": seconds, "solved": False, "finished": False}, Path("x"))
    assert took == "70.2 s (collect 1.0, plan 0.5, evaluate 2.0, compiling and files 66.8)"


def test_clock():
    assert [clock(seconds) for seconds in (5, 65, 3665)] == ["0:05", "1:05", "1:01:05"]


class Recorder:
    """Stands for the package: it notes what is logged."""

    def __init__(self):
        self.opened, self.rows, self.finished = [], [], 0
        self.Settings = lambda **_: type("Settings", (), {"project": None})

    def init(self, **about):
        self.opened.append(about)
        return self

    def define_metric(self, name, step_metric):
        assert (name, step_metric) == ("*", "episodes")

    def log(self, values, step):
        self.rows.append((step, values))

    def finish(self):
        self.finished += 1


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def train(budget: int) -> None:
    algorithm, spec = make_toy(episodes=budget, solves_at=100)
    with WeightsAndBiases(Path("toy"), spec) as tracker:
        session.run(algorithm, spec, "toy", resume=True, callbacks=[tracker])


def test_a_resumed_run_continues_its_record_and_logs_every_row(monkeypatch):
    recorder = Recorder()
    monkeypatch.setitem(sys.modules, "wandb", recorder)
    train(30)
    train(50)
    first, second = recorder.opened
    assert first["id"] == second["id"]
    assert (first["project"], first["name"], first["config"]["seed"]) == ("briee", "toy", 1)
    assert [step for step, _ in recorder.rows] == [1, 2, 3, 1, 2, 3, 4, 5]
    wanted = read_metrics(Path("toy/metrics.csv"))
    assert recorder.rows[-1][1] == pytest.approx({k: v for k, v in wanted[-1].items() if v is not None})
    assert recorder.finished == 2
    shutil.rmtree("toy")
    monkeypatch.setattr(
        session, "make_manifest", lambda command, before: {"started": "later", "sessions": [{}]}
    )
    train(10)
    assert recorder.opened[-1]["id"] != first["id"]


def test_without_the_package_the_sentence_says_how_to_install_it(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    assert main(["train", "lock", "--track", "wandb"]) == 2
    assert "pip install 'briee[wandb]'" in capsys.readouterr().err
    assert not Path("runs").exists()


@pytest.mark.slow
def test_offline_mode_writes_a_record(monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    train(30)
    (record,) = Path("toy/wandb").glob("offline-run-*/run-*.wandb")
    assert record.stat().st_size > 0
    assert json.loads(Path("toy/summary.json").read_text())["episodes"] == 30


def test_a_run_ends_with_the_states_it_chose_and_whether_it_keeps_finding_some():
    row = {"representation": 3, "states_most": 37, "states_mean": 37.0, "discovery_chance": 0.01}
    assert states_lines(row, True) == ["states: pooled, 37 in all"]
    row |= {"representation": 0, "states_mean": 2.5, "discovery_chance": 0.57}
    first, second = states_lines(row, False)
    assert first == "states: per level, 2.5 a level"
    assert second.startswith("states keep being found, by 57% of exploring episodes: either more episodes")
    assert states_lines(row, True) == [first]
    assert states_lines(ROW, False) == []
