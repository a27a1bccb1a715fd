"""A sweep file: the product it describes, the names of its runs, and one sentence for everything wrong."""

import gzip
import json
from pathlib import Path

import pytest

from briee.cli.train import parse_train
from briee.errors import RunError, UsageError
from briee.training.directory import locked, read_table
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
        "lock-h6-noise0.1-efficient-s1",
        "lock-h6-noise0.2-efficient-s1",
        "lock-h6-noise0.1-efficient-s2",
        "lock-h6-noise0.2-efficient-s2",
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
        ('env = "lock"\nseed = [1, 1]', 2, "two runs are equal: lock-h6-efficient-s1"),
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
