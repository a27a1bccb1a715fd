"""Statistics over seeds against closed forms and by hand; the leaderboard and what a submission must have."""

import csv
import functools
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from briee.algorithms.registry import ALGORITHMS, LOOKS, colour, in_words, style
from briee.cli.leaderboard import SUITE as SUITE_FILE
from briee.cli.leaderboard import read_suite
from briee.cli.main import main
from briee.report.compare import (
    Sample,
    compare,
    estimate,
    improvement,
    interquartile_mean,
    latex,
    median,
    profile,
    read_rows,
    solved_within,
)
from briee.report.leaderboard import NOT_IN_SUITE, REFUSED, leaderboard, left_out
from briee.training.directory import read_table
from briee.training.sweep import Run
from suite import collect

ROOT = Path(__file__).parents[2]


def sample(text: str) -> Sample:
    """`6 9+` is a run solved after 6 episodes and one that was not solved within 9."""
    return Sample.of(
        [float(t.rstrip("+")) for t in text.split()], [not t.endswith("+") for t in text.split()]
    )


def rng() -> np.random.Generator:
    return np.random.default_rng(5)


def test_kaplan_meier_agrees_with_the_textbook():
    """The remission times of the group 6-MP (Freireich et al. 1963), the example of every textbook."""
    group = sample("6 6 6 6+ 7 9+ 10 10+ 11+ 13 16 17+ 19+ 20+ 22 23 25+ 32+ 32+ 34+ 35+")
    remaining = {6: 0.857, 7: 0.807, 10: 0.753, 13: 0.690, 16: 0.627, 22: 0.538, 23: 0.448}
    for time, expected in remaining.items():
        last = np.flatnonzero((group.times == time) & group.solved)[-1]
        assert 1 - solved_within(group)[last] == pytest.approx(expected, abs=5e-4)
    assert median(group) == 23


def test_a_censored_median_by_hand():
    """Left after 10, 20 and 40: 4/5, 4/5 · 3/4 = 3/5, 3/5 · 1/2 = 3/10."""
    runs = sample("30+ 10 50+ 40 20")
    np.testing.assert_allclose(solved_within(runs), [0.2, 0.4, 0.4, 0.7, 0.7])
    assert median(runs) == 40
    assert interquartile_mean(runs) == np.inf
    assert median(sample("10 20+ 30+")) == np.inf


def test_without_censoring_the_usual_numbers():
    assert median(sample("5 1 4 2 3")) == 3
    assert interquartile_mean(sample("4 3 2 1")) == pytest.approx(2.5)
    assert interquartile_mean(sample("1 2 3 4 5")) == pytest.approx((0.15 * 2 + 0.2 * 3 + 0.15 * 4) / 0.5)


def test_weights_are_repeated_runs():
    runs, weights = sample("10 20 30+ 40 50+"), np.array([2, 0, 1, 3, 1])
    same = sample("10 10 30+ 40 40 40 50+")
    assert median(runs, weights[None]) == median(same) == 40
    assert interquartile_mean(runs, weights[None])[0] == pytest.approx(float(interquartile_mean(same)))


def test_intervals_are_reproducible_and_narrow_with_more_seeds():
    few = Sample.of([*range(10, 110, 10)], [True] * 10)
    many = Sample.of([*range(10, 110, 10)] * 20, [True] * 200)
    one, two, sure = (estimate(median, group, rng()) for group in (few, few, many))
    assert one == two
    assert one.low < one.value < one.high
    assert sure.high - sure.low < one.high - one.low
    unsolved = estimate(median, sample("10 20 30 40+ 40+"), rng())
    assert (unsolved.value, unsolved.high) == (30, np.inf)


def test_improvement_counts_what_censoring_leaves_open_as_half():
    ours, theirs = {"a": sample("10 30"), "b": sample("5")}, {"a": sample("20 20+"), "c": sample("1")}
    # in a: 10 beats both; 30 loses to 20; 30 against "not solved within 20" is open
    assert improvement(ours, theirs, rng()).value == pytest.approx((1 + 1 + 0 + 0.5) / 4)
    assert improvement(theirs, ours, rng()).value == pytest.approx(1 - 2.5 / 4)
    assert improvement({"a": sample("9+")}, {"a": sample("9+")}, rng()).value == 0.5


def test_a_profile_averages_worlds_and_an_unsolved_world_counts_zero():
    runs = {"a": sample("10 40"), "b": sample("100+ 100+")}
    share, low, high = profile(runs, {"a": 10.0, "b": np.inf}, np.array([1.0, 2.0, 4.0]), rng())
    np.testing.assert_allclose(share, [0.25, 0.25, 0.5])
    assert (low <= share).all()
    assert (share <= high).all()


def test_the_readme_has_the_medians_of_the_tables():
    """`briee compare` gives every number of ours in the README's table, and nothing else."""
    lines = compare([row for row in read_rows([ROOT / "results" / "fig1b"]) if row["finished"] == "True"])
    defaults = compare(read_rows([ROOT / "results" / "worlds"]))
    table = re.search(r"<!-- table: readme -->\n(.*?)<!-- /table -->", (ROOT / "README.md").read_text(), re.S)
    assert table is not None
    head, _, *rows = [line.strip("| ").split(" | ") for line in table[1].splitlines()]
    assert {int(row[0]) for row in rows} >= {6, 12, 25, 50, 100}
    checked = 0
    for column, title in enumerate(head):
        names = re.findall("`([^`]+)`", title)
        label = f"briee {names[0]}" if "preset" in title else names[0] if names else None
        for row in rows if label else ():
            found = [line for line in lines if (line.label, line.world) == (label, f"lock, H = {row[0]}")]
            if label == "general":
                found = [line for line in defaults if line.world == f"general-lock-h{row[0]}"]
            if row[column] == "–":
                assert not found
                continue
            (line,) = found
            number = re.match(r"\**([\d,]+)", row[column])
            assert number is not None, row[column]
            assert line.median.value == int(number[1].replace(",", "")), (label, row[0])
            said = re.search(r"\((one|\d+) seeds?\)", row[column])
            seeds = 5 if said is None else 1 if said[1] == "one" else int(said[1])
            assert line.sample.solved.tolist() == [True] * seeds, (label, row[0])
            checked += 1
    assert checked >= 14


def write(path: Path, *rows: str) -> Path:
    head = "label,world,seed,solved,episodes,episodes_to_solve,seconds"
    path.write_text("\n".join([head, *rows, ""]))
    return path


def test_the_command_writes_tables_and_figures(tmp_path, capsys):
    table = write(
        tmp_path / "runs.csv",
        *(f"efficient,w_1,{seed},True,{100 + seed},{100 + seed},2.0" for seed in range(4)),
        *(f"ppo paper,w_1,{seed},False,500,,3.0" for seed in range(3)),
        "ppo paper,w_1,9,,,,",
    )
    assert main(["compare", str(table), "--output", str(tmp_path / "out")]) == 0
    said = capsys.readouterr().out
    assert "| w_1 | efficient | 4 | 100% | 101 [100, 103] |" in said
    assert "| w_1 | ppo paper | 3 | 0% | > 500 | > 500 |" in said
    assert "| efficient | ppo paper | 1 | 1.00 [1.00, 1.00] |" in said
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {f"compare.{kind}" for kind in ("md", "csv", "tex")} | {
        f"{name}.{kind}" for name in ("episodes", "profile") for kind in ("png", "pdf")
    }
    assert r"w\_1 & ppo paper & 3 & 0\% & $>$ 500" in (tmp_path / "out" / "compare.tex").read_text()
    with (tmp_path / "out" / "compare.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["solved"], row["median"]) for row in rows] == [("4", "101.0"), ("0", "")]


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        (["a,w,1,True,5,5,1", "a,w,1,True,6,6,1"], "two runs of a on w, seed 1 differ"),
        (["a,w,1,,,,"], "no run has begun yet"),
        ([], "no runs in"),
    ],
)
def test_tables_that_cannot_be_compared_are_refused(tmp_path, capsys, rows, sentence):
    assert main(["compare", str(write(tmp_path / "runs.csv", *rows))]) == 2
    assert sentence in capsys.readouterr().err


def test_latex_escapes():
    assert r"50\% \& more" in latex(("a", "b"), [["50% & more", "_"]])


def test_every_algorithm_has_a_name_and_a_colour_of_its_own():
    assert LOOKS.keys() == ALGORITHMS.keys()
    names, colours = zip(*LOOKS.values(), strict=True)
    assert len(set(names)) == len(set(colours)) == len(ALGORITHMS)
    assert colour("ppo paper, rounds = 3") == colour("ppo") != colour("someone-elses")
    assert in_words("ppo-rnd paper half step") == "PPO + RND, half the step size"
    assert in_words("briee paper") == "BRIEE, Algorithm 1 (as in the paper)"
    assert in_words("someone-elses, K = 3") == "someone-elses, K = 3"


def test_presets_and_variants_of_an_algorithm_have_styles_of_their_own_whatever_their_order():
    labels = ["briee paper no termination", "briee released", "efficient", "briee paper", "briee practical"]
    found = {label: style(label, labels) for label in labels}
    assert found["briee practical"] == found["efficient"] == ("o", "-")
    assert len({found[label] for label in labels if label != "efficient"}) == 4
    assert found == {label: style(label, labels[::-1]) for label in labels}


SUITE = """
seed = [1, 2]
env = "lock"
horizon = [2, 3]
algo = "lsvi-ucb"
episodes = 1000
episodes_per_update = 50
"""
ROW = "label,world,algorithm,preset,seed,solved,episodes,episodes_to_solve,seconds\n"


@functools.cache
def committed_suite() -> list[Run]:
    """The runs of benchmarks/block-mdp.toml, read once."""
    return read_suite(ROOT / SUITE_FILE)


def test_the_page_is_that_of_the_committed_tables():
    suite = committed_suite()
    tables = sorted((ROOT / "results").glob("*/runs.csv"))
    assert (ROOT / "docs" / "leaderboard.md").read_text() == leaderboard(suite, tables), (
        "run briee leaderboard"
    )


def test_every_algorithm_is_in_the_suite_or_there_is_a_reason():
    listed = {run.spec.algorithm for run in committed_suite()}
    assert listed | NOT_IN_SUITE.keys() == ALGORITHMS.keys()
    assert not listed & NOT_IN_SUITE.keys()
    page = (ROOT / "docs" / "leaderboard.md").read_text()
    assert all(f"`{name}`" in page for name in NOT_IN_SUITE)


def test_runs_are_cut_at_the_budget_and_entries_without_all_seeds_come_last(tmp_path):
    (tmp_path / "suite.toml").write_text(SUITE)
    (tmp_path / "runs.csv").write_text(
        ROW + '"x","lock, H = 2",x,default,1,True,400,400,1\n"x","lock, H = 2",x,default,2,True,5000,5000,1\n'
        '"y","lock, H = 2",y,default,1,True,300,300,1\n"x","lock, H = 9",x,default,1,True,1,1,1\n'
        '"x","lock, H = 2",x,default,7,True,1,1,1\n'
        '"lsvi-ucb, lam = 2","lock, H = 2",lsvi-ucb,default,1,True,2,2,1\n'  # of some seeds
    )
    page = leaderboard(read_suite(tmp_path / "suite.toml"), [tmp_path / "runs.csv"])
    assert "| x | 1 of 2 | 400 [400, ∞] | > 1,000 | 1 |" in page
    assert "Not run: lsvi-ucb." in page
    assert "lam" not in page
    assert page.index("| y | 1 of 1 | 300 | 300 | 1 |") > page.index("| x | 1 of 2 |")
    assert "H = 9" not in page


def test_a_budget_that_ends_before_all_levels_are_explored_is_told_from_a_run_that_nobody_made(tmp_path):
    text = SUITE.replace('"lsvi-ucb"', '["lsvi-ucb", "pcid"]').replace("episodes_per_update = 50\n", "")
    (tmp_path / "suite.toml").write_text(text)
    suite = read_suite(tmp_path / "suite.toml")
    assert left_out(suite, "lock, H = 2", {"lsvi-ucb"}) == ["Not run: pcid."]
    assert left_out(suite, "lock, H = 3", {}) == ["Beyond the budget: pcid.", "Not run: lsvi-ucb."]
    own = [run for run in suite if (run.world, run.spec.algorithm) != ("lock, H = 2", "lsvi-ucb")]
    assert left_out(own, "lock, H = 2", {"pcid"}) == [f"Refuses: lsvi-ucb ({REFUSED['lsvi-ucb']})."]


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
    suite = [run for run in committed_suite() if run.spec.algorithm == "ppo"]
    chosen = [run for run in suite if run.world in ("lock, H = 6", "lock, H = 25, noise = 0.2")]
    for run in chosen[::-1]:
        make_run(run, tmp_path / "runs")
    of_rivals = next(run for run in committed_suite() if run.spec.algorithm == "musik")
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
