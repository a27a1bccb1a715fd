"""The report: contents of runs, figures, the page, and its drawing by a browser."""

import dataclasses
import json
import re
import shutil
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from briee.diagnose.latent_map import LatentMap, Visits, level_history, map_latents
from briee.errors import RunError
from briee.report import interactive, static
from briee.report.contents import Found, read_run, read_runs
from briee.report.figures import (
    Bars,
    Heats,
    Lines,
    Map,
    run_figures,
    shared_figures,
)
from briee.report.html import page, write_report
from briee.rollout.trajectories import StoredRows
from briee.training.session import run
from briee.training.spec import RunSpec, build
from images import DESK, PHONE, Browser, find_browser
from small_runs import tiny

H, A = 2, 3


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    """Two seeds of a short run."""
    root = tmp_path_factory.mktemp("runs")
    for seed in (1, 2):
        spec = RunSpec("lock", "briee", "paper", H, seed, 80, tiny(), {"num_actions": A})
        run(build(spec), spec, root / f"s{seed}", command="<script>alert(1)</script>")
    return root


@pytest.fixture(scope="module")
def runs(root):
    return read_runs([root]).runs


def lock_visits(H: int = 3, n: int = 6000) -> Visits:
    """Rows of a lock with two good states and a bad one (2): action 0 is right, 1 leads astray."""
    rng = np.random.default_rng(0)
    state = np.stack([rng.integers(0, 3 if h else 2, n) for h in range(H)])
    action = rng.integers(0, 2, (H, n))
    stays = (state < 2) & (action == 0)
    following = np.where(stays, rng.integers(0, 2, (H, n)), 2)
    reward = np.zeros((H, n))
    reward[-1] = stays[-1]
    soft = np.eye(3)[state]
    valid = np.ones((H, n), bool)
    rank = np.tile(np.arange(n), (H, 1))
    seen = jnp.zeros((H, n, 1))
    bonus = (1.0, tiny(H).bonus.alpha, None)
    rows = StoredRows(seen, action, reward, seen, valid, valid, rank, bonus)
    return Visits(rows, state, soft, following, np.zeros((H, n), int), 2)


def test_the_map_counts_visits_transitions_and_values():
    found = map_latents(lock_visits())
    assert np.isnan(found.visits[0, 2])
    np.testing.assert_allclose(np.nansum(found.visits, axis=1), 1)
    np.testing.assert_array_equal(found.value[:, :2], 1.0)  # the observed means, not shrunk
    assert found.value[1, 2] == found.value[2, 2] == 0
    np.testing.assert_allclose(found.probability[0, 0, 1], [0, 0, 1])
    np.testing.assert_allclose(found.probability[0, :2, 0, :2], 0.5, atol=0.1)
    assert found.planned.tolist() == [[0, 0, 0]] * 3


def test_history_grows_coverage_and_shrinks_the_bonus():
    config = tiny(3)
    coverage, bonus = level_history(lock_visits(), np.array([0.0005, 0.1, 1.0]), 0.0)
    assert (np.diff(coverage, axis=1) >= 0).all()
    np.testing.assert_allclose(coverage[:, -1], 1)
    assert bonus is not None
    assert (np.diff(bonus, axis=1) < 0).all()
    n = 6000 / 6  # one-hot features: the bonus is alpha / sqrt(n + lam) with n rows of a pair
    np.testing.assert_allclose(bonus[2, -1], config.bonus.alpha / np.sqrt(n + 1), rtol=0.1)


def test_a_map_has_the_good_lanes_on_top(runs):
    contents = dataclasses.replace(runs[0], latent_map=map_latents(lock_visits()))
    (figure,) = [figure for figure in run_figures(contents) if isinstance(figure, Map)]
    assert [(node.level, node.lane) for node in figure.nodes if node.value < 0.1] == [(1, 2), (2, 2)]
    astray = [edge for edge in figure.edges if figure.nodes[edge.end].lane == 2 and not edge.planned]
    assert {figure.nodes[edge.start].lane for edge in astray} == {0, 1, 2} - (
        {2} if len(astray) == 4 else set()
    )
    assert all(figure.nodes[edge.end].lane < 2 for edge in figure.edges if edge.planned and edge.start < 2)


def test_runs_are_read_with_their_latent_states(runs, root):
    assert [contents.config["seed"] for contents in runs] == [1, 2]
    assert runs[0].group == runs[1].group
    for contents in runs:
        assert contents.note == ""
        assert contents.metrics["episodes"].tolist() == [40, 80]
        assert contents.latent_map.visits.shape == (H, 3)
        assert contents.coverage.shape == contents.bonus.shape == (H, 2)
        np.testing.assert_allclose(contents.times, [40, 80])
    assert len(read_runs([root, root / "s1"], checkpoints=False).runs) == 2  # no run is listed twice


def test_a_run_without_a_readable_checkpoint_still_has_curves(root, tmp_path):
    shutil.copytree(root / "s1", tmp_path / "s1")
    for file in (tmp_path / "s1" / "checkpoint").iterdir():
        file.write_bytes(b"nonsense")
    contents = read_run(tmp_path / "s1")
    assert contents.latent_map is None
    assert "cannot load" in contents.note
    html = page(Found([contents], []), shared_figures([contents]), [run_figures(contents)])
    assert "No map of the latent states" in html


def copies(root: Path, folder: Path, *names: str, **changes) -> list[Path]:
    """Copies of one run, each with changes to its config.json."""
    made = [folder / name for name in names]
    for i, path in enumerate(made):
        shutil.copytree(root / "s1", path)
        config = json.loads((path / "config.json").read_text())
        config |= {name: values[i] for name, values in changes.items()}
        (path / "config.json").write_text(json.dumps(config))
    return made


def test_runs_that_differ_in_a_value_have_labels_and_files_of_their_own(root, tmp_path):
    arguments = [{"num_actions": A}, {"num_actions": A, "noise": 0.2}, {"num_actions": A, "noise": 0.2}]
    made = copies(root, tmp_path, "a", "b", "c", env_arguments=arguments, seed=[1, 1, 2])
    found = read_runs(made, checkpoints=False).runs
    plain, noisy, other = sorted(found, key=lambda run: run.path)
    assert plain.label == "BRIEE, Algorithm 1 (as in the paper) on lock, H = 2, seed 1"
    assert noisy.label == "BRIEE, Algorithm 1 (as in the paper) on lock, H = 2, env.noise=0.2, seed 1"
    assert other.title == noisy.title
    write_report(made[:2], tmp_path / "report.html", tmp_path / "figures")
    names = {file.name for file in (tmp_path / "figures").glob("map-*.png")}
    assert names == {"map-lock-h2-briee-paper-s1.png", "map-lock-h2-briee-paper-s1-env.noise-0.2.png"}


def test_equal_runs_are_told_apart_by_their_directories(root, tmp_path):
    runs = read_runs(copies(root, tmp_path, "a", "b"), checkpoints=False).runs
    assert [run.label for run in runs] == [
        f"BRIEE, Algorithm 1 (as in the paper) on lock, H = 2, seed 1, {tmp_path / name}" for name in "ab"
    ]


@pytest.mark.parametrize(
    ("file", "text", "sentence"),
    [
        ("metrics.csv", "garbage,row\n", "metrics.csv: its first line does not name the column 'iteration'"),
        ("metrics.csv", "iteration,episodes\n", "has completed no iteration yet"),
        ("config.json", "{", "cannot read .*config.json: "),
        ("config.json", '{"env": "lock", "algorithm": "briee", "seed": 1}', "config.json .* lacks 'preset'"),
        ("summary.json", "[1]", "cannot read .*summary.json: it is not a JSON object"),
    ],
)
def test_damaged_runs_are_named(root, tmp_path, file, text, sentence):
    good, bad = copies(root, tmp_path, "good", "bad")
    (bad / file).write_text(text)
    with pytest.raises(RunError, match=sentence):
        read_runs([bad], checkpoints=False)
    found = read_runs([tmp_path], checkpoints=False)
    assert [run.path for run in found.runs] == [good]
    assert re.search(sentence, found.skipped[0])
    assert "Left out: " in page(found, shared_figures(found.runs), [[]])


def test_metrics_cut_short_and_empty_cells(root, tmp_path):
    (path,) = copies(root, tmp_path, "short")
    (path / "metrics.csv").write_text("iteration,episodes,eval_return\n1,50,\n2,100,0.5\n3,15")
    metrics = read_run(path, checkpoints=False).metrics
    assert metrics["iteration"].tolist() == [1, 2]
    np.testing.assert_array_equal(metrics["eval_return"], [np.nan, 0.5])


def test_curves_have_every_seed_and_the_median(runs):
    figure = shared_figures(runs)[0]
    assert isinstance(figure, Lines)
    assert [line.bold for line in figure.lines] == [False, False, True]
    seeds, median = figure.lines[:2], figure.lines[2]
    np.testing.assert_allclose(median.y, (seeds[0].y + seeds[1].y) / 2)
    assert figure.reference == pytest.approx(1.0)


def test_every_figure_is_drawn_for_the_page_and_as_files(runs, tmp_path):
    figures = [*shared_figures(runs), *run_figures(runs[0])]
    assert {type(figure) for figure in figures} == {Lines, Heats, Map, Bars}
    keys = [figure.key for figure in figures]
    assert keys == ["return", "level", "accuracy", "gap", "time", "map", "decoder", "coverage", "bonus"]
    for figure in figures:
        json.dumps(interactive.draw(figure), allow_nan=False)
        png, pdf = static.save(figure, tmp_path, figure.key)
        assert png.read_bytes()[:4] == b"\x89PNG"
        assert pdf.read_bytes()[:4] == b"%PDF"


def test_the_page_is_small_needs_no_network_and_runs_no_foreign_code(root, tmp_path):
    output = write_report([root], tmp_path / "deep" / "report.html", tmp_path / "figures")
    html = output.read_text()
    assert output.stat().st_size < 3e6
    assert not re.search(r'(src|href)="(?!data:)', html)
    assert "<script>alert" not in html
    assert "&lt;script&gt;alert(1)" in html
    assert "{{" not in html.split("<script type=")[0]
    assert len(list((tmp_path / "figures").iterdir())) == 2 * (5 + 2 * 4)


def test_wrong_directories_get_one_sentence(tmp_path):
    with pytest.raises(RunError, match="nowhere is not a directory"):
        read_runs([tmp_path / "nowhere"])
    with pytest.raises(RunError, match=r"no run in .*: it has no config.json"):
        read_runs([tmp_path])


@pytest.fixture(scope="module")
def browser():
    program = find_browser()
    if program is None:
        pytest.skip("no Chromium here: install it from the system's packages to test the report in a browser")
    with Browser(program) as browser:
        yield browser


@pytest.mark.parametrize("width", [DESK, PHONE])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_browser_draws_every_figure_within_the_width_of_the_device(root, tmp_path, browser, width, scheme):
    browser.open(write_report([root], tmp_path / "report.html"), width, scheme)
    assert browser.errors == []
    assert (
        browser.run("document.querySelectorAll('.plot.js-plotly-plot').length") == 5 + 4
    )  # one run is shown
    browser.run("for (const part of document.querySelectorAll('details')) part.open = true")
    assert browser.run("document.documentElement.scrollWidth") == width
    assert browser.run("document.getElementById('settings').scrollWidth") <= width
    shown = browser.run("getComputedStyle(document.querySelector('#runs thead')).display")
    assert shown == ("none" if width == PHONE else "table-header-group")  # cards on a phone
    back = browser.run("getComputedStyle(document.body).backgroundColor")
    assert (int(re.findall(r"\d+", back)[0]) < 100) == (scheme == "dark")


def test_a_browser_shows_what_the_mouse_points_at(root, tmp_path, browser):
    browser.open(write_report([root], tmp_path / "report.html"), DESK, "light", height=6000)
    place = "document.querySelector('#map-0 .scatterlayer .trace:last-child .points path')"
    x, y = browser.run(f"(b => [b.x + b.width / 2, b.y + b.height / 2])({place}.getBoundingClientRect())")
    browser.hover(x, y)
    text = browser.run("document.querySelector('#map-0 .hoverlayer').textContent")
    assert re.search(r"level 0, state \d: \d+% of visits, value \d", text)


def test_the_map_shows_few_states_of_a_level_those_of_the_greedy_path_first(runs):
    H, K = 3, 40
    probability = np.zeros((H - 1, K, 2, K))
    probability[:, :, 1] = np.eye(K)
    probability[:, :, 0, 39] = 1.0  # the greedy policy goes to the least visited state
    visits = np.tile(np.linspace(2, 1, K), (H, 1))
    visits /= visits.sum(1, keepdims=True)
    value, planned = np.zeros((H, K)), np.zeros((H, K), int)
    found = LatentMap(visits, value, planned, probability, np.ones((H, K, 2)))
    (figure, *_) = run_figures(dataclasses.replace(runs[0], latent_map=found))
    assert isinstance(figure, Map)
    assert [sum(node.level == h for node in figure.nodes) for h in range(H)] == [12] * 3
    assert all(any(f"level {h}, state 39" in node.about for node in figure.nodes) for h in (1, 2))
    assert "84 less visited ones are not" in figure.caption
    assert interactive.draw(figure)["layout"]["height"] < 900


def test_an_algorithm_without_an_order_of_rows_has_coverage_and_bonus_of_its_states(runs):
    contents = dataclasses.replace(runs[0], times=None, latent_map=map_latents(lock_visits()))
    coverage, bonus = (figure for figure in run_figures(contents) if figure.key in ("coverage", "bonus"))
    assert isinstance(coverage, Heats)
    assert isinstance(bonus, Heats)
    np.testing.assert_array_equal(coverage.panels[0][:, 1:], 1.0)
    assert np.isnan(coverage.panels[0][2, 0])
    np.testing.assert_allclose(bonus.panels[0][:, 1:], 1 / np.sqrt(1001), rtol=0.1)
