"""Weights & Biases in its offline mode gets every row of a run once, also of one that was resumed."""

import json
import shutil
import sys
from pathlib import Path

import pytest

from briee.cli.main import main
from briee.training import session
from briee.training.directory import read_metrics
from briee.training.tracking import WeightsAndBiases
from toy_run import make_toy


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
