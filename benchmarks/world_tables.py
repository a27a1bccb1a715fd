"""The table of the page Worlds, from results/worlds-general."""

from functools import cache
from statistics import median

from briee.experiments.tables import Row, read_curves
from briee.experiments.worlds import WORLDS, World, share
from queries import RESULTS, count, finished, runs, solved, span, table

NAME = "worlds-general"
RIVALS = {"sb3:PPO paper": "PPO", "sb3:DQN paper": "DQN"}


def worlds_of_people() -> str:
    """Every environment: episodes, seconds, share of the optimum, and Stable-Baselines3."""
    head = [
        "environment",
        "runs",
        "episodes until solved",
        "share of the optimum",
        "seconds",
        *RIVALS.values(),
        "better one over ours",
    ]
    return table(head, [_line(world) for world in WORLDS])


def commands() -> str:
    """The command of every environment."""
    return table(["environment", "command"], [[_words(w), f"`{w.command}`"] for w in WORLDS])


def shares_of(world: World, label: str = "general") -> list[float]:
    """The share of the optimum of every run of a line."""
    curves = _curves().get((label, world.name), [])
    found = [share(curves, row) for row in _rows(world, label)]
    return [value for value in found if value is not None]


@cache
def _curves() -> dict[tuple[str, str], list[Row]]:
    """The curves of every line in every world."""
    found: dict[tuple[str, str], list[Row]] = {}
    for point in read_curves(RESULTS / NAME):
        found.setdefault((point["label"], point["world"]), []).append(point)
    return found


def _rows(world: World, label: str) -> list[Row]:
    """The runs of a line that are over."""
    own = [row for row in runs(NAME) if (row["label"], row["world"]) == (label, world.name)]
    return finished(own)


def _words(world: World) -> str:
    return f"{world.words} (`--rich {world.rich}`)" if world.rich else world.words


def _episodes(rows: list[Row]) -> str:
    done = solved(rows)
    if not done:
        return f"{count(median(int(row['episodes']) for row in rows))} in all"
    missing = "" if len(done) == len(rows) else f" ({len(done)} of {len(rows)})"
    return f"{span(sorted(done))}{missing}"


def _line(world: World) -> list[str]:
    """A row of the table."""
    rows = _rows(world, "general")
    if not rows:
        return [_words(world), *["not run"] * (5 + len(RIVALS))]
    own = shares_of(world)
    reached = [round(float(row["final_return"]), 2) for row in rows]
    optimum = span([round(value, 2) for value in own], ".2f") if own else f"return {span(reached, '.2f')}"
    seconds = f"{median(float(row['seconds']) for row in rows):.0f}"
    own_cells = [_words(world), str(len(rows)), _episodes(rows), optimum, seconds]
    return [*own_cells, *(_rival(world, name) for name in RIVALS), _factor(world, rows)]


def _rival(world: World, label: str) -> str:
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


def _factor(world: World, ours: list[Row]) -> str:
    """Episodes of the better rival over ours; if neither solved the world, all of theirs over ours."""
    theirs = [row for label in RIVALS for row in _rows(world, label)]
    if not theirs:
        return "–"
    own = median(solved(ours) or [int(row["episodes"]) for row in ours])
    if not solved(ours):
        return "see shares"
    if done := solved(theirs):
        return f"{min(done) / own:.0f}"
    return f"> {max(int(row['episodes']) for row in theirs) / own:.0f}"
