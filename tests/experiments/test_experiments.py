"""Experiments as data: settings can be built, smoke runs draw a figure, what is done is skipped; worlds."""

import dataclasses
import json
import shlex
import shutil
from importlib.util import find_spec
from pathlib import Path
from statistics import median

import pytest

from briee.cli.main import main
from briee.cli.train import parse_train
from briee.envs.adapters.third_party import project_of
from briee.errors import RunError
from briee.experiments import FIGURES, runner
from briee.experiments.ablations import OTHER, switched
from briee.experiments.fingerprint import machine
from briee.experiments.plots import moving_average
from briee.experiments.rivals import HOMES, refuses, setting_of
from briee.experiments.rivals import WORLDS as SMALL_WORLDS
from briee.experiments.runner import Outcome, draw, find_figure, reproduce, run_setting
from briee.experiments.setting import Setting, select, sweep_file
from briee.experiments.tables import Existing, configuration_hash, is_done, read_curves
from briee.experiments.worlds import WORLDS, World, share
from briee.training.directory import read_table
from briee.training.spec import with_instance
from briee.training.sweep import read_sweep


@pytest.mark.parametrize("name", FIGURES)
def test_every_run_has_a_configuration_and_a_directory_of_its_own(name):
    figure = find_figure(name)
    for settings in (figure.settings, figure.smoke):
        assert len({setting.name for setting in settings}) == len(settings)
        for setting in settings:
            assert "," not in setting.variant, "--only could not name it"
            spec = setting.spec()
            assert spec.episodes == setting.episodes
            instance = {setting.instance: setting.seed} if setting.instance else {}
            assert spec.env_arguments == {**instance, **dict(setting.arguments)}


@pytest.mark.parametrize("name", ["fig1b", "fig2b", "fig2c", "decoder", "ablation", "rivals"])
def test_every_line_of_a_figure_has_a_smoke_run(name):
    figure = find_figure(name)
    lines = lambda settings: {(setting.algorithm, setting.preset) for setting in settings}  # noqa: E731
    assert lines(figure.smoke) == lines(figure.settings)


@pytest.mark.parametrize("name", FIGURES)
def test_every_experiment_is_a_sweep_file(name, capsys):
    all_settings = find_figure(name).settings
    settings = [setting for setting in all_settings if find_spec(project_of(setting.env) or "briee")]
    text = sweep_file(settings)
    runs = read_sweep(Path("fig.toml"), lambda argv: parse_train(argv)[1], text=text)
    hashes = [configuration_hash(with_instance(run.spec)) for run in runs]
    assert sorted(hashes) == sorted(configuration_hash(setting.spec()) for setting in settings)
    assert sorted(run.spec.episodes for run in runs) == sorted(s.episodes for s in settings)


@pytest.mark.parametrize(
    ("home", "world"),
    [(home, world) for home in HOMES for world in SMALL_WORLDS.values() if refuses(home[0], world)],
)
def test_a_world_that_is_marked_as_refused_is_refused_in_a_sentence(home, world):
    from briee.training.spec import build

    algorithm, preset, budget, *_ = home
    with pytest.raises(ValueError, match=r"olive enumerates|lsvi-ucb needs ground-truth features"):
        build(setting_of(algorithm, preset, budget, world, 31).spec())


def test_an_experiment_is_carried_out_by_its_name(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["sweep", "fig2c", "--dry-run"]) == 0
    assert "runs in runs/fig2c" in capsys.readouterr().out
    assert not Path("runs").exists()


def test_all_switches_together_make_the_released_code():
    whole = Setting("briee", "paper", "lock", 12, 1, changes=sum(switched(12).values(), ()))
    own = Setting("briee", "released", "lock", 12, 1, changes=sum(OTHER.values(), ()))
    assert whole.spec().config == own.spec().config


COMPILES_MUCH = ("fig1b", "fig2b", "fig2c", "decoder", "rivals", "ablation", "ablation-efficient")
"""Their smoke runs use many algorithms, each compiled anew."""


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow if name in COMPILES_MUCH else ()) for name in FIGURES],
)
def test_smoke_runs_draw_a_figure_and_are_done_once(name, tmp_path):
    said: list[str] = []
    image = reproduce(name, tmp_path, smoke=True, say=said.append)
    figure, folder = find_figure(name), image.parent
    assert image.stat().st_size > 5_000
    assert all(is_done(folder / setting.name) for setting in figure.smoke)
    runs = read_table(folder / "runs.csv")
    assert [row["label"] for row in runs] == [setting.label for setting in figure.smoke]
    assert len(read_curves(folder)) >= len(runs)
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("metrics.csv")}
    again: list[str] = []
    reproduce(name, tmp_path, smoke=True, say=again.append)
    assert f"{len(figure.smoke)} done before" in again[0]
    assert before == {path: path.stat().st_mtime_ns for path in folder.rglob("metrics.csv")}
    for setting in figure.smoke:
        shutil.rmtree(folder / setting.name)
    image.unlink()
    reproduce(name, tmp_path, smoke=True, plot_only=True, say=again.append)
    assert image.exists(), "the tables alone are enough to draw"
    assert read_table(folder / "runs.csv") == runs


def test_a_finished_run_of_another_folder_is_not_repeated(tmp_path):
    setting = find_figure("fig1b").smoke[0]
    assert run_setting(setting, tmp_path / "elsewhere" / "other-name", "").words.startswith("solved")
    own, other = tmp_path / "fig1b", tmp_path / "elsewhere" / "other-name"
    assert found(setting, own) == other
    assert found(dataclasses.replace(setting, episodes=9_999), own) == other, "solved is enough"
    for change in (
        {"seed": 2},
        {"horizon": 3},
        {"changes": (("beta", 9.0),)},
        {"arguments": (("noise", 0.2),)},
    ):
        assert found(dataclasses.replace(setting, **change), own) is None, change
    for root, further in ((tmp_path, ()), (tmp_path / "new", (tmp_path / "elsewhere",))):
        said: list[str] = []
        reproduce(
            "fig1b", root, smoke=True, only="algo=lsvi-ucb,preset=paper", further=further, say=said.append
        )
        assert "1 done before" in said[0]
        assert [row["label"] for row in read_table(root / "fig1b-smoke" / "runs.csv")] == [setting.label]
    shutil.rmtree(tmp_path / "elsewhere")
    assert found(setting, own) == tmp_path / "fig1b-smoke", "the row of a table is enough"


def found(setting: Setting, folder: Path) -> Path | None:
    """Where the run is that stands for a setting of the experiment in a folder."""
    run, existing = Existing(folder.parent).best(setting, folder), Existing(folder.parent)
    assert existing.is_done(setting, folder) == (run is not None and run.lasted(setting.episodes))
    return run.place if run is not None and run.lasted(setting.episodes) else None


def test_a_run_of_other_numerics_is_made_again(tmp_path):
    setting, folder = Setting("ppo", "paper", "lock", 6, 100), tmp_path / "fig"
    store_done(setting, tmp_path / "fig" / "old")
    (tmp_path / "fig" / "old" / "manifest.json").write_text(json.dumps({"commit": "a1", "briee": "0.1.0"}))
    commits = {"a1": {"ppo paper": "before"}, "b2": {"ppo paper": "now"}}
    for present, done in (("before", True), ("now", False)):
        values = {"machine": machine(), "present": {"ppo paper": present}, "commits": commits}
        (tmp_path / "fingerprints.json").write_text(json.dumps(values))
        assert Existing(tmp_path).is_done(setting, folder) == done
    store_done(setting, tmp_path / "fig" / setting.name)
    (tmp_path / "fig" / setting.name / "manifest.json").write_text(json.dumps({"commit": "b2"}))
    assert found(setting, folder) == tmp_path / "fig" / setting.name


def store_done(setting: Setting, run_dir: Path, *without: str) -> None:
    """A run directory of a setting that is done, from before its configuration had some fields."""
    values = setting.spec().to_json()
    for name in without:
        *groups, last = name.split(".")
        group = values["config"]
        for part in groups:
            group = group[part]
        del group[last]
    run_dir.mkdir(parents=True)
    (run_dir / "config.json").write_text(json.dumps(values))
    outcome = {"finished": True, "solved": False, "episodes": setting.episodes}
    (run_dir / "summary.json").write_text(json.dumps(outcome))


def test_another_number_of_threads_is_the_same_run_and_other_episodes_an_update_are_not(tmp_path):
    for algorithm, same in (("briee", True), ("ppo", False)):
        setting = Setting(algorithm, "paper", "lock", 6, 100, changes=(("workers", 2),))
        done, own = tmp_path / "done" / algorithm, tmp_path / "own"
        store_done(setting, done)
        assert found(setting, own) == done
        other = dataclasses.replace(setting, changes=(("workers", 3),))
        assert found(other, own) == (done if same else None)


def test_a_run_older_than_a_field_is_not_that_of_a_variant(tmp_path):
    setting = Setting("briee", "paper", "lock", 6, 100)
    done, own = tmp_path / "done" / "run", tmp_path / "own"
    store_done(setting, done, "features.standardize", "evaluation.tolerance")
    assert found(setting, own) == done
    assert found(dataclasses.replace(setting, episodes=101), own) is None
    for change in (("features.standardize", True), ("evaluation.tolerance", 0.5)):
        assert found(dataclasses.replace(setting, changes=(change,)), own) is None, change


def test_a_run_stored_under_the_names_of_version_0_1_is_found(tmp_path):
    setting = Setting("efficient", "default", "lock", 6, 100)
    done = tmp_path / "done" / "lock-h6-briee-efficient-s1"
    store_done(setting, done)
    values = json.loads((done / "config.json").read_text())
    old = values | {"algorithm": "briee", "preset": "efficient"}
    (done / "config.json").write_text(json.dumps(old))
    assert (setting.name, setting.label) == ("lock-h6-efficient-s1", "efficient")
    assert found(setting, tmp_path / "own") == done
    shutil.copytree(done, tmp_path / "own" / setting.name)
    assert found(setting, tmp_path / "own") == tmp_path / "own" / setting.name, "the own folder comes first"


def test_failed_runs_do_not_stop_the_others_and_are_named_in_the_end(tmp_path, monkeypatch):
    names = [setting.name for setting in find_figure("fig2b").smoke]
    said: list[str] = []

    def run(setting, run_dir, **how):
        return Outcome("solved") if setting.name == names[1] else Outcome("disk full", failed=True)

    monkeypatch.setattr(runner, "run_setting", run)
    failed = "; ".join(f"{name}: disk full" for name in names if name != names[1])
    with pytest.raises(RunError, match=rf"^{len(names) - 1} of {len(names)} runs failed: {failed}$"):
        reproduce("fig2b", tmp_path, smoke=True, say=said.append)
    outcomes = [line.split(";")[0] for line in said[1:]]
    assert outcomes == [f"{name}: {'solved' if name == names[1] else 'failed: disk full'}" for name in names]


def test_an_unfinished_run_whose_checkpoint_is_gone_fails_and_stays_in_the_figure(tmp_path, capsys):
    folder, name = tmp_path / "fig2c", "lock-dense-h30-briee-paper-s1"
    (setting,) = (s for s in find_figure("fig2c").settings if s.name == name)
    store_done(setting, folder / name)
    outcome = json.loads((folder / name / "summary.json").read_text()) | {"finished": False}
    (folder / name / "summary.json").write_text(json.dumps(outcome))
    rows = "".join(f"{n},{1500 * n},0.1,\n" for n in (1, 2))
    (folder / name / "metrics.csv").write_text("iteration,episodes,eval_return,decoder_accuracy\n" + rows)
    files = lambda: {path: path.read_bytes() for path in folder.glob("*/*")}  # noqa: E731
    before = files()
    sentence = f"{name} has rows in metrics.csv but no checkpoint to continue from"
    only = "algo=briee,preset=paper,seed=1"
    assert main(["reproduce", "fig2c", "--output", str(tmp_path), "--only", only]) == 2
    error = capsys.readouterr().err
    assert f"1 of 1 runs failed: {name}: " in error
    assert sentence in error
    assert error.count("\n") == 1
    (row,) = read_table(folder / "runs.csv")
    assert (row["label"], row["finished"]) == ("briee paper", "False")
    assert (folder / "fig2c.png").exists()
    assert (
        main(["train", "lock-dense", "--preset", "paper", "--run-dir", str(folder / name), "--resume"]) == 2
    )
    assert sentence in capsys.readouterr().err
    assert files() == before


def test_features_that_an_environment_does_not_know_are_refused_in_one_sentence(tmp_path, capsys):
    arguments = ["train", "FrozenLake-v1", "--algo", "lsvi-ucb", "--horizon", "5"]
    assert main([*arguments, "--run-dir", str(tmp_path / "run")]) == 2
    error = capsys.readouterr().err
    assert "lsvi-ucb needs ground-truth features, which this environment does not have" in error
    assert error.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_runs_are_selected_by_their_environment_s_arguments():
    def worlds(only: str) -> set[str]:
        return {setting.world for setting in select(find_figure("rivals").settings, only)}

    assert worlds("env=lock,horizon=6,args=distractors20") == {"lock, H = 6, distractors = 20"}
    assert worlds("env=lock,horizon=6,args=") == {"lock, H = 6"}


def test_bad_requests_are_refused_in_one_sentence(tmp_path):
    with pytest.raises(RunError, match="unknown figure 'fig9'"):
        reproduce("fig9", tmp_path)
    with pytest.raises(RunError, match=r"algo is one of 'lsvi-ucb', 'efficient'.*, got 'homer'"):
        reproduce("fig1b", tmp_path, only="algo=homer")
    with pytest.raises(RunError, match="--only takes"):
        reproduce("fig1b", tmp_path, only="speed=9")
    with pytest.raises(RunError, match="has no results yet"):
        draw(find_figure("fig1b"), tmp_path, tmp_path / "figure.png")


def test_moving_average_uses_what_there_is():
    assert moving_average([1.0, 2.0, 3.0, 4.0], 2).tolist() == [1.0, 1.5, 2.5, 3.5]


FOLDER = Path(__file__).parents[2] / "results" / "worlds-general"
SHARES = {"FrozenLake-v1, H = 100": 0.95, "Taxi-v4, H = 200": 0.98}
SHARES |= {"bsuite/deep_sea_stochastic-v0, H = 10, size = 10": 0.9}
"""Least share of the optimum, the median over seeds, where even the best policy fails now and then."""
names = pytest.mark.parametrize("world", WORLDS, ids=lambda world: world.name)


def test_every_world_has_a_name_and_a_command_of_its_own():
    assert len({world.name for world in WORLDS}) == len({world.command for world in WORLDS}) == len(WORLDS)


def test_the_share_of_a_negative_optimum_is_one_less_what_is_lost():
    points = [{"seed": "1", "eval_return": str(value)} for value in (-99, -13, -13, -13, -13, -26)]
    assert share(points, {"seed": "1", "optimal_return": "-13.0"}) == pytest.approx(0.8)
    assert share(points, {"seed": "1", "optimal_return": ""}) is None


@names
def test_committed_runs_reach_their_target(world: World):
    own = [row for row in read_table(FOLDER / "runs.csv") if row["world"] == world.name]
    ours = [row for row in own if row["label"] == "general" and row["finished"] == "True"]
    assert len(ours) == 5
    if world.name in SHARES:
        curves = [c for c in read_curves(FOLDER) if (c["label"], c["world"]) == ("general", world.name)]
        shares = [share(curves, row) for row in ours]
        assert median(value for value in shares if value is not None) >= SHARES[world.name]
    else:
        assert all(row["solved"] == "True" for row in ours)
        assert all(int(row["episodes_to_solve"]) <= world.budget for row in ours)


@pytest.mark.slow
@names
def test_the_command_of_the_page_runs_and_reaches_its_target(world: World, tmp_path):
    pytest.importorskip(project_of(world.env) or "gymnasium")
    assert main([*shlex.split(world.command)[1:], "--run-dir", str(tmp_path / "run")]) == 0
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    if world.name in SHARES:
        returns = [float(row["eval_return"]) for row in read_table(tmp_path / "run" / "metrics.csv")][-5:]
        assert sum(returns) / 5 >= (SHARES[world.name] - 0.05) * summary["optimal_return"]
    else:
        assert summary["solved"]
