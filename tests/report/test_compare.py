"""Statistics over seeds: closed forms, hand-computed examples, and the table of the README."""

import csv
import re
from pathlib import Path

import numpy as np
import pytest

from briee.algorithms.registry import ALGORITHMS, LOOKS, colour, in_words, style
from briee.cli.main import main
from briee.report.compare import compare, latex, read_rows
from briee.report.statistics import (
    Sample,
    estimate,
    improvement,
    interquartile_mean,
    median,
    profile,
    solved_within,
)

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
    lines = compare(read_rows([ROOT / "results" / "fig1b"]))
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
