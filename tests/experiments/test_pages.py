"""README.md and docs/ show the numbers of results/: no digit can drift."""

import re

import pytest

import pages
from briee.errors import RunError
from briee.experiments import FIGURES
from briee.experiments.fig1b import REFERENCES
from briee.experiments.runner import find_figure

BUDGETS = {setting.episodes for name in FIGURES for setting in find_figure(name).settings}
OTHERS = {
    1_000: "episodes between two evaluations of PPO; RND's coefficient; episodes of a measurement of memory",
    2_000: "the example; further episodes that judge a policy; budget of the random block MDPs",
    5_000: "budget of slippery FrozenLake",
    20_000: "HOMER's samples a level; budget of the lock with noise and H = 50",
}
"""Numbers that are not results, and what they are."""
MARKED = [page for page in pages.PAGES if pages.TABLE.search(page.read_text()) or "<!--=" in page.read_text()]


def unmarked(text: str) -> list[int]:
    """Large numbers of a page that stand in no mark."""
    plain = pages.NUMBER.sub("", pages.TABLE.sub("", text))
    return [int(found.replace(",", "")) for found in re.findall(r"\b\d{1,3}(?:,\d{3})+\b", plain)]


@pytest.mark.parametrize("page", pages.PAGES, ids=lambda page: page.name)
def test_a_page_agrees_with_the_files(page):
    text = page.read_text()
    assert pages.filled(text) == text, f"{page.name} disagrees with results/: `make tables` writes it"


@pytest.mark.parametrize("page", MARKED, ids=lambda page: page.name)
def test_every_digit_of_a_mark_counts(page):
    text = page.read_text()
    marks = [*pages.TABLE.finditer(text), *pages.NUMBER.finditer(text)]
    for mark in marks:
        for digit in list(re.finditer(r"\d", mark[2]))[:3]:
            at = mark.start(2) + digit.start()
            other = f"{text[:at]}{(int(text[at]) + 1) % 10}{text[at + 1 :]}"
            assert pages.filled(other[mark.start() : mark.end()]) == mark[0], "the right digit comes back"
            assert other != text


def test_the_pages_with_results_are_marked():
    names = {"README.md", "results.md", "efficient_measurements.md", "efficient_ablation.md"}
    names |= {"deviations.md", "performance.md", "stationary.md"}
    assert names <= {page.name for page in MARKED}
    for mark in ("<!--=", "<!--/-->", "<!-- table", "<!-- /table"):
        for page in MARKED:
            left = pages.NUMBER.sub("", pages.TABLE.sub("", page.read_text()))
            assert mark not in left, f"{page.name} has an incomplete mark"


@pytest.mark.parametrize(
    "name", ["README.md", "results.md", "efficient.md", "efficient_measurements.md", "efficient_ablation.md"]
)
def test_no_result_stands_outside_the_marks(name):
    (page,) = (page for page in pages.PAGES if page.name == name)
    text = page.read_text()
    assert set(unmarked(text)) <= BUDGETS | set(OTHERS), f"{name}: mark these numbers"
    assert 4_567 in unmarked(text + "\nIt needs 4,567 episodes.\n")


def test_a_published_budget_is_written_where_it_is_cited():
    shown = pages.fig1b() + pages.readme()
    assert all(f"{value:,}" in shown for points, _ in REFERENCES.values() for value in points.values())


def test_a_query_without_runs_is_refused():
    with pytest.raises(RunError, match="fig1b has no runs of 'briee papyrus' at '6'"):
        pages.filled("<!--= fig1b; briee papyrus; 6; median -->1<!--/-->")
