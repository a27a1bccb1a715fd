"""The leaderboard says what the tables say; a submission with anything wrong is told what."""

import json
import shutil
from pathlib import Path

import pytest

from briee.algorithms.registry import ALGORITHMS
from briee.cli.leaderboard import SUITE as SUITE_FILE
from briee.cli.leaderboard import read_suite
from briee.cli.main import main
from briee.report.leaderboard import NOT_IN_SUITE, leaderboard
from briee.training.directory import read_table
from briee.training.sweep import Run
from suite import collect

ROOT = Path(__file__).parents[2]
SUITE = """
seed = [1, 2]
env = "lock"
horizon = [2, 3]
algo = "lsvi-ucb"
episodes = 1000
episodes_per_update = 50
"""
ROW = "label,world,algorithm,preset,seed,solved,episodes,episodes_to_solve,seconds\n"


def test_the_page_is_that_of_the_committed_tables():
    suite = read_suite(ROOT / SUITE_FILE)
    tables = sorted((ROOT / "results").glob("*/runs.csv"))
    assert (ROOT / "docs" / "leaderboard.md").read_text() == leaderboard(suite, tables), (
        "run briee leaderboard"
    )


def test_every_algorithm_is_in_the_suite_or_there_is_a_reason():
    listed = {run.spec.algorithm for run in read_suite(ROOT / SUITE_FILE)}
    assert listed | NOT_IN_SUITE.keys() == ALGORITHMS.keys()
    assert not listed & NOT_IN_SUITE.keys()
    page = (ROOT / "docs" / "leaderboard.md").read_text()
    assert all(f"`{name}`" in page for name in NOT_IN_SUITE)


def test_runs_are_cut_at_the_budget_and_entries_need_all_seeds(tmp_path):
    (tmp_path / "suite.toml").write_text(SUITE)
    (tmp_path / "runs.csv").write_text(
        ROW + '"x","lock, H = 2",x,default,1,True,400,400,1\n"x","lock, H = 2",x,default,2,True,5000,5000,1\n'
        '"y","lock, H = 2",y,default,1,True,300,300,1\n"x","lock, H = 9",x,default,1,True,1,1,1\n'
        '"x","lock, H = 2",x,default,7,True,1,1,1\n'
    )
    page = leaderboard(read_suite(tmp_path / "suite.toml"), [tmp_path / "runs.csv"])
    assert "| x | 1 of 2 | 400 [400, ∞] | > 1,000 | 1 |" in page
    assert "Only some seeds: y (1). Not run: lsvi-ucb." in page
    assert "| y |" not in page
    assert "H = 9" not in page


def make_run(run: Run, folder: Path) -> Path:
    """The files of a run that was solved in its sixth iteration."""
    path, horizon = folder / run.name, run.spec.horizon
    path.mkdir(parents=True)
    arguments = {"env_arguments": {**run.spec.env_arguments, "instance_seed": run.spec.seed}}
    (path / "config.json").write_text(json.dumps(run.spec.to_json() | arguments))
    rows = [f"{i},{50 * i},{50 * i * horizon},{float(i > 1)},{i - 1}" for i in range(1, 7)]
    (path / "metrics.csv").write_text(
        "\n".join(["iteration,episodes,env_steps,eval_return,solved_streak", *rows, ""])
    )
    summary = {"solved": True, "finished": True, "episodes": 300, "episodes_to_solve": 300}
    summary |= {"env_steps": 300 * horizon, "optimal_return": 1.0}
    (path / "summary.json").write_text(json.dumps(summary))
    return path


@pytest.fixture
def submission(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("suite.toml").write_text(SUITE)
    for run in read_suite(Path("suite.toml")):
        make_run(run, Path("mine"))
    return tmp_path / "mine"


def judge(capsys, *options: str) -> str:
    code = main(["submit", "mine", "--suite", "suite.toml", *options])
    said = capsys.readouterr().out
    assert code == (0 if "complete and consistent" in said else 2)
    return said


def test_a_correct_submission_is_accepted(submission, capsys):
    assert judge(capsys) == "mine is complete and consistent\n"


@pytest.mark.parametrize(
    ("file", "old", "new", "sentence"),
    [
        ("metrics.csv", "3,150,300,1.0,2\n", "", "metrics.csv lacks rows: it has 5, the last is iteration 6"),
        ("metrics.csv", "6,300,600,1.0,5\n", "", "summary.json counts 300 episodes, metrics.csv 250"),
        (
            "metrics.csv",
            "2,100,200",
            "2,100,201",
            "counts 201 steps of 100 episodes, which have at most 2 each",
        ),
        ("metrics.csv", "1.0,4", "0.2,4", "but one of its last 5 evaluations is 0.200 of 1.000"),
        ("metrics.csv", "1.0,5", "1.0,0", "says solved after 300 episodes, metrics.csv None"),
        ("summary.json", '"env_steps": 600', '"env_steps": 500', "counts 500 env_steps, metrics.csv 600"),
        ("summary.json", '"finished": true', '"finished": false', "the run is not finished"),
        ("config.json", '"streak": 5', '"streak": 3', "evaluation.streak is 3, the suite has 5"),
        ("config.json", '"horizon": 2', '"horizon": 4', "no world of the suite is lock, H = 4"),
        (
            "config.json",
            '"instance_seed": 1',
            '"instance_seed": 3',
            "no world of the suite is lock, H = 2, inst",
        ),
    ],
)
def test_what_is_wrong_is_said(submission, capsys, file, old, new, sentence):
    path = submission / "lock-h2-lsvi-ucb-paper-s1" / file
    text = path.read_text()
    assert text.count(old) == 1
    path.write_text(text.replace(old, new))
    assert sentence in judge(capsys)


def test_a_missing_seed_and_a_small_budget_are_said(submission, capsys):
    for file in (submission / "lock-h3-lsvi-ucb-paper-s2").iterdir():
        file.unlink()
    path = submission / "lock-h2-lsvi-ucb-paper-s2"
    (path / "config.json").write_text(
        (path / "config.json").read_text().replace('"episodes": 1000', '"episodes": 300')
    )
    summary = json.loads((path / "summary.json").read_text()) | {"solved": False}
    (path / "summary.json").write_text(json.dumps(summary))
    said = judge(capsys)
    assert "lsvi-ucb paper: seed 2 of lock, H = 3 is missing" in said
    assert "its budget is 300 episodes, the suite has 1,000" in said


def test_counters_are_those_of_the_environment(submission, capsys):
    for folder in submission.glob("lock-h3-*"):
        shutil.rmtree(folder)
    assert judge(capsys, "--replay", "2") == "mine is complete and consistent\n"
    path = submission / "lock-h2-lsvi-ucb-paper-s1" / "metrics.csv"
    path.write_text(path.read_text().replace("1,50,100,", "1,50,60,"))
    assert judge(capsys) == "mine is complete and consistent\n"
    said = judge(capsys, "--replay", "1")
    assert said == "lock-h2-lsvi-ucb-paper-s1: env_steps of iteration 1 are 60, 100 when repeated here\n"
    assert main(["submit", "mine", "--replay", "-1"]) == 2
    assert "--replay must be >= 0, got -1" in capsys.readouterr().err


def test_runs_of_the_suite_become_rows_once(tmp_path):
    suite = [run for run in read_suite(ROOT / SUITE_FILE) if run.spec.algorithm == "ppo"]
    chosen = [run for run in suite if run.world in ("lock, H = 6", "lock, H = 25, noise = 0.2")]
    for run in chosen[::-1]:
        make_run(run, tmp_path / "runs")
    of_rivals = next(run for run in read_suite(ROOT / SUITE_FILE) if run.spec.algorithm == "musik")
    make_run(of_rivals, tmp_path / "runs")
    output = tmp_path / "results" / "suite"
    for _ in range(2):
        rows = collect([tmp_path / "runs"], output)
        assert [(row["world"], row["label"], row["seed"]) for row in rows] == [
            (run.world, "ppo paper", str(run.spec.seed)) for run in chosen
        ]
    assert [row["episodes"] for row in read_table(output / "runs.csv")] == ["300"] * 10
    page = leaderboard(suite, [output / "runs.csv"])
    assert page.count("| ppo paper | 5 of 5 | 300 [300, 300] | 300 [300, 300] | 0 |") == 2
