"""The runner: outcome, judgement, files, and runs that are never lost."""

import csv
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from briee.algorithms.paper.config import BrieeConfig
from briee.algorithms.registry import preset
from briee.configuration import EvaluationConfig, config_from_json
from briee.errors import RunError
from briee.protocols import no_phases
from briee.training import loop
from briee.training import session as runs
from briee.training.checkpoint import CheckpointError, Folder
from briee.training.directory import MetricsFile, read_metrics, read_table
from briee.training.loop import SETTLED, DivergedError, Progress, count_settled, reaches_optimum
from briee.training.session import RunInterrupted, claimed, load_moment, run
from briee.training.spec import RunSpec, list_runs
from toy_run import Toy, ToySampler, make_toy

SUMMARY = {
    "algorithm", "preset", "env", "horizon", "seed", "solved", "finished", "episodes", "episodes_to_solve",
    "warmup_episodes", "env_steps", "eval_episodes", "final_return", "optimal_return", "seconds",
}  # fmt: skip
COLUMNS = [
    "iteration", "episodes", "env_steps", "eval_return", "explore_return", "reached_level", "levels_refit",
    "decoder_accuracy", "replearn_gap",
    "seconds_collect", "seconds_represent", "seconds_plan", "seconds_evaluate",
]  # fmt: skip


def rows(run_dir: Path) -> list[dict[str, str]]:
    """metrics.csv without its time columns."""
    table = read_table(run_dir / "metrics.csv")
    return [{k: v for k, v in row.items() if not k.startswith("seconds")} for row in table]


def final_weights(run_dir: Path, algorithm: Toy) -> np.ndarray:
    spec = make_toy()[1]
    return np.asarray(load_moment(algorithm, spec, Folder(run_dir / "checkpoint")).state.weights)


@pytest.fixture(autouse=True, scope="module")
def checkpoint_after_every_iteration():
    """The toy's iterations take less time than a checkpoint."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runs, "CHECKPOINT_SHARE", float("inf"))
        yield


@pytest.fixture(scope="module")
def straight(tmp_path_factory) -> Path:
    """A run that was never disturbed: solved at iteration 12."""
    path = tmp_path_factory.mktemp("straight") / "run"
    run(*make_toy(solves_at=8), path)
    return path


def assert_same_run(run_dir: Path, straight: Path) -> None:
    algorithm, _ = make_toy()
    assert rows(run_dir) == rows(straight)
    np.testing.assert_array_equal(final_weights(run_dir, algorithm), final_weights(straight, algorithm))
    ours, theirs = (json.loads((path / "summary.json").read_text()) for path in (run_dir, straight))
    assert {k: v for k, v in ours.items() if k != "seconds"} == {
        k: v for k, v in theirs.items() if k != "seconds"
    }


def test_a_run_leaves_the_files_of_the_contract(straight):
    summary = json.loads((straight / "summary.json").read_text())
    assert summary.keys() == SUMMARY
    assert summary["seconds"].keys() == {"collect", "represent", "plan", "evaluate", "total"}
    assert summary["seconds"]["total"] > 0
    assert (summary["solved"], summary["finished"]) == (True, True)
    assert (summary["episodes"], summary["episodes_to_solve"], summary["env_steps"]) == (120, 120, 360)
    assert (summary["eval_episodes"], summary["final_return"], summary["optimal_return"]) == (240, 1.0, 1.0)
    with open(straight / "metrics.csv") as file:
        header, *lines = csv.reader(file)
    assert set(COLUMNS) <= set(header)
    assert "toy_norm" in header
    assert [line[0] for line in lines] == [str(n) for n in range(1, 13)]
    manifest = json.loads((straight / "manifest.json").read_text())
    assert {
        "briee",
        "commit",
        "packages",
        "python",
        "cpu",
        "cores",
        "threads",
        "command",
        "started",
    } <= manifest.keys()
    assert manifest["ended"] >= manifest["started"]
    assert json.loads((straight / "config.json").read_text())["config"]["solves_at"] == 8
    assert Folder(straight / "checkpoint").numbers() == [11, 12]
    assert not (straight / "lock").exists()


def test_every_column_is_documented(straight):
    documented = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()
    with open(straight / "metrics.csv") as file:
        columns = set(next(csv.reader(file))) - {"toy_norm"}
    assert [name for name in sorted(columns | SUMMARY) if f"`{name}`" not in documented] == []


def test_solved_needs_five_in_a_row(tmp_path):
    summary = run(*make_toy(solves_at=2, relapse=6), tmp_path / "a")
    assert summary["episodes_to_solve"] == 110
    assert [row["solved_streak"] for row in rows(tmp_path / "a")] == [*"01234012345"]
    unsolved = run(*make_toy(solves_at=9, episodes=75), tmp_path / "b")
    assert (unsolved["solved"], unsolved["finished"], unsolved["episodes"]) == (False, True, 80)
    assert unsolved["episodes_to_solve"] is None


def test_without_a_target_a_run_ends_when_it_has_settled(tmp_path):
    class Finds(Toy):
        def metrics(self, state):
            return super().metrics(state) | {"discovery_chance": 1.0 if state.iteration < 10 else 0.0}

    for target, last in ((None, 10 + SETTLED - 1), (2.0, 100)):
        toy, spec = make_toy(solves_at=4, evaluation=EvaluationConfig(target_return=target))
        algorithm = Finds(ToySampler(), toy.config)
        algorithm.sampler.optimal_return = None
        summary = run(algorithm, spec, tmp_path / str(target))
        assert (summary["solved"], summary["finished"]) == (False, True)
        assert summary["episodes"] == 10 * last


def test_returns_that_vary_fall_or_were_never_lower_do_not_settle():
    before = Progress(final_return=1.0, least_return=0.0, settled=3)

    def count(returns: list[float], progress: Progress = before, **measured: float) -> int:
        return count_settled(progress, np.array(returns), {"discovery_chance": 0.0} | measured).settled

    assert count([1.0, 1.0]) == 4
    assert count([0.5, 0.5]) == 1
    assert count([1.0, 0.0]) == count([0.0, 0.0]) == count([1.0], discovery_chance=0.02) == 0
    assert count_settled(before, np.ones(2), {}).settled == 0, "nobody knows what is left to discover"
    first = Progress()
    assert count([1.0], first) == count([1.0], first, explore_return=1.0) == 0
    assert count([1.0], first, explore_return=np.nan) == 0
    assert count([1.0], first, explore_return=0.2) == 1, "exploration earns less"


@pytest.mark.parametrize(
    ("returns", "optimal", "tolerance", "answer"),
    [
        ([1.0, 1.0], 1.0, None, True),
        ([1.0, 0.9], 1.0, None, False),
        ([3.8999999], 3.9, None, True),
        ([1.0, 0.0], 0.6, None, False),
        ([1.0, 0.0], 0.6, 0.1, True),
        ([1.0, 0.0], 0.6, 0.05, False),
        ([1.0], None, None, False),
    ],
)
def test_the_rule_for_one_evaluation(returns, optimal, tolerance, answer):
    assert reaches_optimum(np.asarray(returns), optimal, tolerance) is answer


def test_callbacks_stop_and_resume_equals_never_stopping(tmp_path, straight):
    algorithm, spec = make_toy(solves_at=8)
    for stop in (3, 4, 9):
        summary = run(
            algorithm, spec, tmp_path, resume=True, callbacks=[lambda row, n=stop: row["iteration"] == n]
        )
        assert (summary["finished"], summary["episodes"]) == (False, 10 * stop)
    run(algorithm, spec, tmp_path, resume=True)
    assert_same_run(tmp_path, straight)
    assert len(json.loads((tmp_path / "manifest.json").read_text())["sessions"]) == 4


def test_a_larger_budget_continues_a_finished_run(tmp_path, straight):
    assert run(*make_toy(solves_at=8, episodes=50), tmp_path)["finished"]
    run(*make_toy(solves_at=8), tmp_path, resume=True)
    assert_same_run(tmp_path, straight)


def test_resume_rewinds_metrics_to_the_checkpoint(tmp_path, straight):
    algorithm, spec = make_toy(solves_at=8)
    run(algorithm, spec, tmp_path, callbacks=[lambda row: row["iteration"] == 6])
    with open(tmp_path / "metrics.csv", "a") as file:
        file.write("7,70,999,rows that no checkpoint covers\n8,80")
    for name in (".summary.json.17.partial", "checkpoint/.00000007.npz.17.partial"):
        (tmp_path / name).write_bytes(b"half")
    run(algorithm, spec, tmp_path, resume=True)
    assert not list(tmp_path.rglob(".*.partial"))
    assert_same_run(tmp_path, straight)


def test_resume_refuses_metrics_that_lack_rows(tmp_path):
    algorithm, spec = make_toy(solves_at=8)
    run(algorithm, spec, tmp_path, callbacks=[lambda row: row["iteration"] == 3])
    (tmp_path / "metrics.csv").write_text("iteration\n1\n")
    with pytest.raises(RunError, match="lacks rows: it has 1 of 3 iterations"):
        run(algorithm, spec, tmp_path, resume=True)


@pytest.mark.parametrize("stop", [1, 3])
def test_resume_refuses_rows_whose_checkpoint_is_gone(tmp_path, stop):
    run(*make_toy(solves_at=8), tmp_path, callbacks=[lambda row: row["iteration"] == stop])
    shutil.rmtree(tmp_path / "checkpoint")
    before = {file: file.read_bytes() for file in tmp_path.iterdir()}
    with pytest.raises(RunError, match=r"has rows in metrics\.csv but no checkpoint .*: start anew with"):
        run(*make_toy(solves_at=8, episodes=2000), tmp_path, resume=True)
    assert {file: file.read_bytes() for file in tmp_path.iterdir()} == before


@pytest.mark.parametrize("moment", ["sync", "save"])
def test_a_run_killed_before_its_first_checkpoint_starts_anew(tmp_path, straight, monkeypatch, moment):
    class Killed(BaseException):
        pass

    def killed(*_):
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(*{"sync": (MetricsFile, "sync"), "save": (Folder, "save")}[moment], killed)
        with pytest.raises(Killed):
            run(*make_toy(solves_at=8), tmp_path)
    assert len(rows(tmp_path)) == 1
    run(*make_toy(solves_at=8), tmp_path, resume=True)
    assert_same_run(tmp_path, straight)


@pytest.mark.parametrize("kills", [3, pytest.param(50, marks=pytest.mark.slow)])
def test_a_killed_run_resumes_to_the_same_metrics(tmp_path, kills):
    program = [sys.executable, str(Path(__file__).parents[1] / "toy_run.py"), str(tmp_path / "victim")]
    rng, cut_short = random.Random(0), 0
    for _ in range(kills):
        with subprocess.Popen(program, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            for _ in range(rng.choice([1, 2, 2, 2])):  # until it is ready, or until its first iteration
                process.stdout.readline()
            time.sleep(rng.uniform(0, 0.02 if kills > 10 else 0.1))
            cut_short += process.poll() is None
            process.kill()
    assert cut_short > 0
    algorithm, spec = make_toy(solves_at=30, sleep=0.004)
    run(algorithm, spec, tmp_path / "victim", resume=True)
    run(algorithm, spec, tmp_path / "reference")
    assert_same_run(tmp_path / "victim", tmp_path / "reference")
    assert len(rows(tmp_path / "victim")) == 34


def test_ctrl_c_during_an_iteration_saves_the_one_before(tmp_path, straight):
    algorithm, spec = make_toy(solves_at=8)

    class Interrupted(Toy):
        def update(self, state, phase=no_phases):
            if state.iteration == 5:
                signal.raise_signal(signal.SIGINT)
            return super().update(state, phase)

    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(RunInterrupted):
        run(Interrupted(ToySampler(), algorithm.config), spec, tmp_path)
    assert signal.getsignal(signal.SIGINT) is handler
    assert Folder(tmp_path / "checkpoint").numbers()[-1] == 5
    assert not json.loads((tmp_path / "summary.json").read_text())["finished"]
    run(algorithm, spec, tmp_path, resume=True)
    assert_same_run(tmp_path, straight)


def test_ctrl_c_while_saving_waits_for_the_checkpoint_and_twice_does_not(tmp_path, straight, monkeypatch):
    algorithm, spec = make_toy(solves_at=8)
    whole = Folder.save

    def interrupted(presses):
        def save(self, number, state, extra):
            if number == 4:
                for _ in range(presses):
                    signal.raise_signal(signal.SIGINT)
            whole(self, number, state, extra)

        return save

    monkeypatch.setattr(Folder, "save", interrupted(1))
    with pytest.raises(RunInterrupted):
        run(algorithm, spec, tmp_path / "once")
    assert Folder(tmp_path / "once" / "checkpoint").numbers() == [3, 4]
    monkeypatch.setattr(Folder, "save", interrupted(2))
    with pytest.raises(KeyboardInterrupt) as caught:
        run(algorithm, spec, tmp_path / "twice")
    assert caught.type is KeyboardInterrupt
    assert Folder(tmp_path / "twice" / "checkpoint").numbers() == [2, 3]
    monkeypatch.setattr(Folder, "save", whole)
    run(algorithm, spec, tmp_path / "twice", resume=True)
    assert_same_run(tmp_path / "twice", straight)


class Diverging(Toy):
    """From the fourth iteration on it holds NaN at level 2."""

    def update(self, state, phase=no_phases):
        state = super().update(state, phase)
        bad = state.weights.at[2, 1].set(np.nan)
        return state if state.iteration < 4 else replace(state, weights=bad)


def test_divergence_names_quantity_level_and_iteration(tmp_path):
    algorithm, spec = make_toy(solves_at=8)
    sentence = "training diverged: weights holds NaN or infinity at level 2 after iteration 4"
    with pytest.raises(DivergedError, match=sentence):
        run(Diverging(ToySampler(), algorithm.config), spec, tmp_path)
    assert len(rows(tmp_path)) == 3
    assert load_moment(algorithm, spec, Folder(tmp_path / "checkpoint")).state.iteration == 3

    class BadMetric(Toy):
        def metrics(self, state):
            return super().metrics(state) | {"replearn_gap": float("nan")}

    with pytest.raises(DivergedError, match="replearn_gap is nan after iteration 1"):
        run(BadMetric(ToySampler(), algorithm.config), spec, tmp_path, overwrite=True)


def test_large_arrays_are_checked_before_every_checkpoint(tmp_path, monkeypatch):
    """They may hold NaN for a while, no checkpoint does."""
    monkeypatch.setattr(loop, "ALWAYS_CHECKED", 0)
    algorithm, spec = make_toy(solves_at=8)

    class Silently(Diverging):
        def metrics(self, state):
            return {}

    with pytest.raises(DivergedError, match="weights holds NaN or infinity at level 2 after iteration 4"):
        run(Silently(ToySampler(), algorithm.config), spec, tmp_path)
    assert load_moment(algorithm, spec, Folder(tmp_path / "checkpoint")).state.iteration == 3


def test_full_disk_is_one_sentence_and_loses_nothing(tmp_path, straight, monkeypatch):
    algorithm, spec = make_toy(solves_at=8)
    fsync, calls = os.fsync, []

    def disk_full(descriptor):
        calls.append(descriptor)
        if len(calls) > 30:
            raise OSError(28, "No space left on device")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", disk_full)
    with pytest.raises(RunError, match=r"cannot write .*: No space left on device"):
        run(algorithm, spec, tmp_path)
    monkeypatch.undo()
    assert 0 < len(rows(tmp_path)) < 12
    run(algorithm, spec, tmp_path, resume=True)
    assert_same_run(tmp_path, straight)


def test_unusable_places_are_one_sentence(tmp_path, straight):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="cannot write"):
        run(*make_toy(), tmp_path / "file")

    def delete(row):
        shutil.rmtree(tmp_path / "gone")

    with pytest.raises(RunError, match=r"cannot write .*: No such file or directory"):
        run(*make_toy(), tmp_path / "gone", callbacks=[delete])


def test_existing_directories_are_never_overwritten_unasked(tmp_path, straight):
    algorithm, spec = make_toy(solves_at=8)
    ours = tmp_path / "ours"
    shutil.copytree(straight, ours)
    before = {file: file.read_bytes() for file in ours.rglob("*") if file.is_file()}
    with pytest.raises(RunError, match="holds a finished run: add --resume"):
        run(algorithm, spec, ours)
    assert {file: file.read_bytes() for file in ours.rglob("*") if file.is_file()} == before
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "thesis.tex").write_text("precious")
    for resume in (False, True):
        with pytest.raises(RunError, match="is not empty and not a run directory"):
            run(algorithm, spec, foreign, resume=resume)
    run(algorithm, spec, foreign, overwrite=True)
    assert (foreign / "thesis.tex").read_text() == "precious"
    assert_same_run(foreign, straight)
    run(*make_toy(seed=2, solves_at=8), ours, overwrite=True)
    assert rows(ours) != rows(straight)


def test_resume_refuses_another_configuration_and_a_damaged_checkpoint(tmp_path):
    run(*make_toy(solves_at=8), tmp_path, callbacks=[lambda row: row["iteration"] == 3])
    with pytest.raises(RunError, match=r"was started with config\.solves_at = 8, not 5"):
        run(*make_toy(solves_at=5), tmp_path, resume=True)
    with pytest.raises(RunError, match="was started with seed = 1, not 2"):
        run(*make_toy(solves_at=8, seed=2), tmp_path, resume=True)
    newest = Folder(tmp_path / "checkpoint").file(3)
    newest.write_bytes(newest.read_bytes()[:500])
    with pytest.raises(CheckpointError, match=r"delete 00000003\.npz to go back to the previous one"):
        run(*make_toy(solves_at=8), tmp_path, resume=True)
    newest.unlink()
    assert run(*make_toy(solves_at=8), tmp_path, resume=True)["solved"]


def claim(run_dir: Path, algorithm: str, name: str, **changes) -> RunSpec:
    """Open the directory as a resumed run does; the run, a preset with some values changed."""
    config = config_from_json(preset(algorithm, name, 6), changes)
    spec = RunSpec("lock", algorithm, name, 6, 1, 100, config)
    with claimed(run_dir, spec, resume=True, overwrite=False):
        return spec


@pytest.mark.parametrize(
    ("algorithm", "name"),
    [("briee", "paper"), ("briee", "efficient"), ("reward-free", "paper"), ("stationary", "efficient")],
)
def test_threads_may_change_on_resume(tmp_path, algorithm, name):
    for workers in (1, 2):
        claim(tmp_path, algorithm, name, workers=workers)


@pytest.mark.parametrize(("algorithm", "workers"), [("ppo", 100), ("ppo-rnd", 100), ("sb3:PPO", 10)])
def test_copies_that_enter_an_update_may_not(tmp_path, algorithm, workers):
    claim(tmp_path, algorithm, "paper")
    with pytest.raises(RunError, match=rf"was started with config\.workers = {workers}, not 3"):
        claim(tmp_path, algorithm, "paper", workers=3)


def test_a_run_older_than_a_field_has_the_preset_s_value_there(tmp_path):
    spec = claim(tmp_path, "briee", "released")
    stored = spec.to_json()
    del stored["config"]["features"]["standardize"], stored["config"]["replearn"]["wait_for_rival"]
    (tmp_path / "config.json").write_text(json.dumps(stored))
    with pytest.raises(RunError, match=r"was started with config\.features\.standardize = False, not True"):
        claim(tmp_path, "briee", "released", features={"standardize": True})
    with pytest.raises(RunError, match=r"config\.replearn\.wait_for_rival = False, not True"):
        claim(tmp_path, "briee", "released", replearn={"wait_for_rival": True})
    claim(tmp_path, "briee", "released")
    assert json.loads((tmp_path / "config.json").read_text()) == spec.to_json()


def test_tables_are_read_without_a_line_cut_short(tmp_path):
    path = tmp_path / "metrics.csv"
    assert read_table(path) == read_metrics(path) == []
    path.write_text("iteration,episodes,eval_return\n1,50,\n2,100,0.5\n3,15")
    assert read_table(path)[0] == {"iteration": "1", "episodes": "50", "eval_return": ""}
    assert [tuple(row.values()) for row in read_metrics(path)] == [(1, 50, None), (2, 100, 0.5)]
    path.write_text("garbage,row\n1,2\n")
    assert len(read_table(path)) == 1
    with pytest.raises(RunError, match="first line does not name the column 'iteration'"):
        read_metrics(path)


def test_evaluation_draws_from_its_own_stream(tmp_path, straight):
    run(*make_toy(solves_at=8, evaluation=EvaluationConfig(episodes=40)), tmp_path)
    own = ("eval_return",)
    training = lambda path: [{k: v for k, v in row.items() if k not in own} for row in rows(path)]  # noqa: E731
    assert training(tmp_path) == training(straight)


def test_checkpoints_wait_when_they_are_expensive(tmp_path, monkeypatch):
    whole, saved = Folder.save, []

    def slow(self, number, state, extra):
        time.sleep(0.02)
        saved.append(number)
        whole(self, number, state, extra)

    monkeypatch.setattr(Folder, "save", slow)
    monkeypatch.setattr(runs, "CHECKPOINT_SHARE", 0.05)
    run(*make_toy(solves_at=8), tmp_path)
    assert saved[0] == 1
    assert saved[-1] == 12
    assert len(saved) < 6


def test_runs_are_listed_with_their_state(tmp_path, straight):
    shutil.copytree(straight, tmp_path / "a")
    run(*make_toy(solves_at=8), tmp_path / "b", callbacks=[lambda row: True])
    run(*make_toy(solves_at=8, episodes=10), tmp_path / "c")
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "config.json").write_text("{")
    with claimed(tmp_path / "e", make_toy()[1], resume=False, overwrite=False):
        listed = list_runs(tmp_path)
    assert [(run.path.name, run.state) for run in listed] == [
        ("a", "solved"), ("b", "stopped"), ("c", "finished"), ("d", "unreadable"), ("e", "running"),
    ]  # fmt: skip


@given(
    st.integers(1, 200),
    st.floats(0, 10),
    st.none() | st.floats(0.1, 9),
    st.sampled_from(["greedy", "optimistic"]),
)
def test_config_round_trips_through_json(rounds, alpha, cap, policy):
    config = BrieeConfig.paper(horizon=6)
    values = {
        "replearn": {"rounds": rounds},
        "bonus": {"alpha": alpha, "cap": cap},
        "evaluation": {"policy": policy},
    }
    changed = config_from_json(config, values)
    assert (changed.replearn.rounds, changed.bonus.cap, changed.evaluation.policy) == (rounds, cap, policy)
    spec = RunSpec("lock", "briee", "paper", 6, 1, 100, changed, {"noise": 0.2})
    stored = json.loads(json.dumps(spec.to_json()))
    assert config_from_json(BrieeConfig.released(horizon=12), stored["config"]) == changed
    with pytest.raises(RunError, match=r"unknown configuration field 'replearn.rouns'"):
        config_from_json(config, {"replearn": {"rouns": 1}})


def test_same_seed_same_run_other_seed_another(tmp_path, straight):
    run(*make_toy(solves_at=8), tmp_path / "same")
    assert_same_run(tmp_path / "same", straight)
    run(*make_toy(solves_at=8, seed=2), tmp_path / "other")
    assert rows(tmp_path / "other") != rows(straight)
