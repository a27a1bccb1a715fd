"""Numbers of results/ for the pages: statistics of the runs of a line, values of other files, some tables."""

import json
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

from briee.errors import RunError
from briee.experiments.paper_figures import MEASURED
from briee.experiments.rivals import DIFFERENCES, LOCK, UNEVEN, WORLDS, cell, refuses
from briee.experiments.tables import Row, read_curves
from briee.experiments.worlds import WORLDS as OWN_WORLDS
from briee.experiments.worlds import World as OwnWorld
from briee.experiments.worlds import share
from briee.training.directory import read_table

RESULTS = Path(__file__).parents[1] / "results"
HORIZONS = (6, 12, 25, 50, 100)


@cache
def runs(experiment: str) -> list[Row]:
    """The runs of an experiment."""
    return read_table(RESULTS / experiment / "runs.csv", "label")


def line(experiment: str, label: str, where: str = "*") -> list[Row]:
    """The runs of a line at a horizon or in a world, or all of them; `RunError` if there are none."""
    found = [
        row
        for row in runs(experiment)
        if row["label"] == label and where in ("*", row["horizon"], row["world"])
    ]
    if not found:
        raise RunError(f"{experiment} has no runs of {label!r} at {where!r}")
    return found


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    first, *others = (f"| {' | '.join(cells)} |\n".replace("|  |", "| |") for cells in [head, *rows])
    return f"{first}|{'---|' * len(head)}\n{''.join(others)}"


def solved(rows: Sequence[Row]) -> list[int]:
    """Episodes to solve of the runs that were solved."""
    return [int(row["episodes_to_solve"]) for row in rows if row["episodes_to_solve"]]


def finished(rows: Sequence[Row]) -> list[Row]:
    """The runs that are over."""
    return [row for row in rows if row["finished"] == "True"]


def span(values: Sequence[float], form: str = ",") -> str:
    """The smallest and the largest value, or the only one."""
    ends = [format(value, form) for value in (min(values), max(values))]
    return ends[0] if ends[0] == ends[1] else "–".join(ends)


def count(value: float) -> str:
    """A number of episodes."""
    return f"{value:,.0f}"


def outcome(rows: Sequence[Row]) -> str:
    """Median and range of the episodes to solve, and how many runs were solved unless all of five were.

    Runs that are not over are counted separately.
    """
    over, done = finished(rows), solved(rows)
    text = f"none of {len(over)} in {max(int(row['episodes']) for row in over):,}" if over else ""
    if done:
        text = count(median(done)) + (f" ({span(done)})" if len(set(done)) > 1 else "")
        text = text if len(done) == len(over) == 5 else f"{text}, {len(done)} of {len(over)}"
    open_ones = f"{len(rows) - len(over)} unfinished" if len(over) < len(rows) else ""
    return ", ".join(filter(None, (text, open_ones)))


def each(rows: Sequence[Row]) -> str:
    """Episodes to solve of each run, a dash if it was not solved."""
    return ", ".join(count(int(row["episodes_to_solve"])) if row["solved"] == "True" else "–" for row in rows)


def late_returns(rows: Sequence[Row], evaluations: int) -> list[float]:
    """The mean return of the last evaluations of each run, from the largest down."""
    curves = read_curves(RESULTS / _home(rows))
    key = lambda row: (row["label"], row["world"], row["seed"])  # noqa: E731
    returns: dict[tuple[str, ...], list[float]] = {key(row): [] for row in rows}
    for point in curves:
        if key(point) in returns:
            returns[key(point)].append(float(point["eval_return"]))
    means = [sum(values[-evaluations:]) / len(values[-evaluations:]) for values in returns.values()]
    return sorted(means, reverse=True)


def curves_of(rows: Sequence[Row]) -> list[list[tuple[int, float]]]:
    """Episodes and return of the evaluations of each run."""
    key = lambda row: (row["label"], row["world"], row["seed"])  # noqa: E731
    found: dict[tuple[str, ...], list[tuple[int, float]]] = {key(row): [] for row in rows}
    for point in read_curves(RESULTS / _home(rows)):
        if key(point) in found:
            found[key(point)].append((int(point["episodes"]), float(point["eval_return"])))
    return list(found.values())


def reached(rows: Sequence[Row], share: float = 0.98, streak: int = 5) -> list[int]:
    """Episodes of each run until so many evaluations in a row have a mean of this share of the optimum."""
    ends = []
    for row, curve in zip(rows, curves_of(rows), strict=True):
        good = [value >= share * float(row["optimal_return"]) for _, value in curve]
        ends += [curve[i][0] for i in range(streak - 1, len(good)) if all(good[i - streak + 1 : i + 1])][:1]
    return ends


def late_shares(rows: Sequence[Row], evaluations: int = 50) -> list[float]:
    """The mean return of the last evaluations of each run, as a share of its optimum."""
    tails = [[value for _, value in curve[-evaluations:]] for curve in curves_of(rows)]
    return [
        sum(tail) / len(tail) / float(row["optimal_return"]) for row, tail in zip(rows, tails, strict=True)
    ]


def _home(rows: Sequence[Row]) -> str:
    """The experiment whose table has these rows."""
    names = (path.parent.name for path in sorted(RESULTS.glob("*/runs.csv")))
    return next(name for name in names if any(row is rows[0] for row in runs(name)))


def shares(rows: Sequence[Row]) -> list[float]:
    """Judged return over the optimum, of each run."""
    return [float(row["judged_return"]) / float(row["optimal_return"]) for row in rows]


STATISTICS: dict[str, Callable[[Sequence[Row]], str]] = {
    "outcome": outcome,
    "median": lambda rows: count(median(solved(rows))),
    "range": lambda rows: span(solved(rows)),
    "least": lambda rows: count(min(solved(rows))),
    "most": lambda rows: count(max(solved(rows))),
    "each": each,
    "solved": lambda rows: f"{len(solved(rows))} of {len(rows)}",
    "medians": lambda rows: ", ".join(
        count(median(solved(own))) for h in HORIZONS if (own := [r for r in rows if r["horizon"] == str(h)])
    ),
    "seed 1": lambda rows: next(_first(row) for row in rows if row["seed"] == "1"),
    "episodes": lambda rows: span([int(row["episodes"]) for row in rows]),
    "return": lambda rows: span([float(row["final_return"]) for row in rows], ".2f"),
    "optimum": lambda rows: span([float(row["optimal_return"]) for row in rows], ".3f"),
    "late returns": lambda rows: ", ".join(f"{value:.2f}" for value in late_returns(rows, 100)),
    "within 2 %": lambda rows: f"{count(median(reached(rows)))} ({span(reached(rows))})",
    "reached": lambda rows: f"{len(reached(rows))} of {len(rows)}",
    "late shares": lambda rows: span(late_shares(rows), ".3f"),
    "seconds": lambda rows: f"{median(float(row['seconds']) for row in rows):.0f}",
    "shares": lambda rows: ", ".join(f"{share:.2f}" for share in shares(rows)),
    "least share": lambda rows: f"{min(shares(rows)):.3f}",
    "minutes": lambda rows: span([round(float(row["seconds"]) / 60) for row in rows]),
    "accuracy": lambda rows: span([_last_accuracy(row) for row in rows if row["solved"] == "True"], ".4f"),
    "version": lambda rows: ", ".join(sorted({row["version"] for row in rows})),
}
"""Statistics that a query may ask of runs."""


def _last_accuracy(row: Row) -> float:
    """Decoder accuracy at the last evaluation of a run."""
    points = read_curves(RESULTS / _home([row]))
    own = [p for p in points if all(p[name] == row[name] for name in ("label", "world", "seed"))]
    return float(own[-1]["decoder_accuracy"])


def _first(row: Row) -> str:
    if row["episodes_to_solve"]:
        return count(int(row["episodes_to_solve"]))
    return f"not solved, a return of {float(row['final_return']):.2f}"


def record(file: Path, section: str, figures: dict[str, Any]) -> None:
    """Write the figures of a benchmark into its section of a JSON file."""
    known = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps(known | {section: figures}, indent=2) + "\n")


def number(query: str) -> str:
    """The text that answers a query."""
    source, *rest = (part.strip() for part in query.split(";"))
    if source.endswith(".json"):
        key, form = rest
        value = json.loads((RESULTS / source).read_text())
        for part in key.split("."):
            value = value[part]
        return formatted(value, form)
    if source.endswith(".csv"):
        setting, column, form = rest
        values = [float(r[column]) for r in read_table(RESULTS / source) if r["setting"] == setting]
        return formatted(sum(values) / len(values), form)
    label, where, statistic = rest
    return STATISTICS[statistic](line(source, label, where))


def formatted(value: float, form: str) -> str:
    """A value in Python's format; `thousands`, `tens` and `millions` round first."""
    units = {"tens": 10, "thousands": 1000}
    if form == "millions":
        return f"{value / 1e6:.1f} million"
    return f"{round(value / units[form]) * units[form]:,}" if form in units else format(value, form)


def rivals() -> str:
    """Every algorithm in every small world."""
    rows = [row for row in runs("rivals") if not row["variant"]]
    names = {words: world.name for words, world in WORLDS.items()}
    names |= {f"lock, H = {H}": f"lock, H = {H}" for H in HORIZONS}
    there = {row["world"] for row in rows}
    worlds = {words: name for words, name in names.items() if name in there}
    known, lines = {world.name: world for world in WORLDS.values()}, []
    for label, algorithm in {row["label"]: row["algorithm"] for row in rows}.items():
        texts = [
            cell([r for r in rows if r["label"] == label and r["world"] == name])
            or ("refused" if refuses(algorithm, known.get(name, LOCK)) else "–")
            for name in worlds.values()
        ]
        lines.append([f"`{label}`", *texts])
    return table(["", *worlds], lines)


def measured_lines() -> list[list[str]]:
    """HOMER and MusIK as rows of the table of Figure 1(b), as far as they were run."""
    lines = []
    for label, name in MEASURED.items():
        own = [row for row in runs("rivals") if row["label"] == label]
        cells = [[row for row in own if row["world"] == f"lock, H = {H}"] for H in HORIZONS]
        texts = [outcome(cell) if cell else "–" for cell in cells]
        lines += [[f"{name}: `{label}`", *texts, STATISTICS["version"](own)]] if own else []
    return lines


CHECKS = (
    ("MusIK, H = 25, 65k + 8k", "solves it", "musik paper", "lock, H = 25"),
    ("MusIK, H = 25, 30k + 8k", "fails", "musik paper 1200 a level", "lock, H = 25"),
    ("MusIK, H = 25, 15k + 8k", "fails", "musik paper 600 a level", "lock, H = 25"),
    *(
        (f"MusIK, H = 25, 30k + 8k, {words}", "fails", f"musik paper 1200 a level: {words}", "lock, H = 25")
        for words in DIFFERENCES
    ),
    ("HOMER, H = 5, 5,000 a level", "solves it", "homer released", "lock, H = 5"),
    ("PCID, 4 actions, H = 5, lanes that mix unevenly", "solves its own lock", "pcid paper", UNEVEN.name),
)
"""Budget, what the authors' program does, and the line and world here."""


def authors_numbers() -> str:
    """Measurements with the authors' programs, beside the same here."""
    lines = []
    for words, theirs, label, world in CHECKS:
        own = [row for row in runs("rivals") if (row["label"], row["world"]) == (label, world)]
        lines += [[words, theirs, *_found(own)]] if own else []
    return table(["", "its authors' program", "solved here", "returns of the runs that were not"], lines)


def _found(rows: Sequence[Row]) -> tuple[str, str]:
    done = solved(rows)
    after = f", after {count(median(done))}" if done else ""
    failed = [f"{float(row['final_return']):.2f}" for row in rows if row["solved"] != "True"]
    return f"{len(done)} of {len(rows)}{after}", ", ".join(failed)


PEOPLE = "worlds-general"
SB3 = {"sb3:PPO paper": "PPO", "sb3:DQN paper": "DQN"}


def worlds_of_people() -> str:
    """Every environment: episodes, seconds, share of the optimum, and Stable-Baselines3."""
    head = [
        "environment",
        "runs",
        "episodes until solved",
        "share of the optimum",
        "seconds",
        *SB3.values(),
        "better one over ours",
    ]
    return table(head, [_line(world) for world in OWN_WORLDS])


def commands() -> str:
    """The command of every environment."""
    return table(["environment", "command"], [[_words(w), f"`{w.command}`"] for w in OWN_WORLDS])


def shares_of(world: OwnWorld, label: str = "general") -> list[float]:
    """The share of the optimum of every run of a line."""
    curves = _curves().get((label, world.name), [])
    found = [share(curves, row) for row in _rows(world, label)]
    return [value for value in found if value is not None]


@cache
def _curves() -> dict[tuple[str, str], list[Row]]:
    """The curves of every line in every world."""
    found: dict[tuple[str, str], list[Row]] = {}
    for point in read_curves(RESULTS / PEOPLE):
        found.setdefault((point["label"], point["world"]), []).append(point)
    return found


def _rows(world: OwnWorld, label: str) -> list[Row]:
    """The runs of a line that are over."""
    own = [row for row in runs(PEOPLE) if (row["label"], row["world"]) == (label, world.name)]
    return finished(own)


def _words(world: OwnWorld) -> str:
    return f"{world.words} (`--rich {world.rich}`)" if world.rich else world.words


def _episodes(rows: list[Row]) -> str:
    done = solved(rows)
    if not done:
        return f"{count(median(int(row['episodes']) for row in rows))} in all"
    missing = "" if len(done) == len(rows) else f" ({len(done)} of {len(rows)})"
    return f"{span(sorted(done))}{missing}"


def _line(world: OwnWorld) -> list[str]:
    """A row of the table."""
    rows = _rows(world, "general")
    if not rows:
        return [_words(world), *["not run"] * (5 + len(SB3))]
    own = shares_of(world)
    reached = [round(float(row["final_return"]), 2) for row in rows]
    optimum = span([round(value, 2) for value in own], ".2f") if own else f"return {span(reached, '.2f')}"
    seconds = f"{median(float(row['seconds']) for row in rows):.0f}"
    own_cells = [_words(world), str(len(rows)), _episodes(rows), optimum, seconds]
    return [*own_cells, *(_rival(world, name) for name in SB3), _factor(world, rows)]


def _rival(world: OwnWorld, label: str) -> str:
    """Episodes until solved, or the share of the optimum, or the return, after all of them."""
    rows = _rows(world, label)
    if not rows:
        return "not run"
    if done := solved(rows):
        return span(done) if len(done) == len(rows) else f"{span(done)} ({len(done)} of {len(rows)})"
    shares = shares_of(world, label)
    reached = [round(float(row["final_return"]), 2) for row in rows]
    positive = shares and min(shares) > -0.5  # of a negative optimum, a share says little
    words = (
        span([round(value, 2) for value in shares], ".2f") if positive else f"return {span(reached, '.2f')}"
    )
    return f"{words.replace('-0.00', '0.00')} after {count(min(int(row['episodes']) for row in rows))}"


def _factor(world: OwnWorld, ours: list[Row]) -> str:
    """Episodes of the better rival over ours; if neither solved the world, all of theirs over ours."""
    theirs = [row for label in SB3 for row in _rows(world, label)]
    if not theirs:
        return "–"
    own = median(solved(ours) or [int(row["episodes"]) for row in ours])
    if not solved(ours):
        return "see shares"
    if done := solved(theirs):
        return f"{min(done) / own:.0f}"
    return f"> {max(int(row['episodes']) for row in theirs) / own:.0f}"
