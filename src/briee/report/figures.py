"""The figures of a report as data; `interactive` draws them for a browser, `static` as PNG and PDF."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from briee.algorithms.registry import colour, style
from briee.diagnose.latent_map import LatentMap
from briee.report.contents import TIMES, RunContents

MOST_STATES = 12
"""The map draws at most this many states of a level."""
OTHER = "the rest"
ACTIVITY_COLOURS = {
    "collect": "#3f7fd1", "represent": "#e0862a", "plan": "#2f9e77", "evaluate": "#b5529c", OTHER: "#9aa5b4",
}  # fmt: skip


@dataclass(frozen=True)
class Line:
    """One curve; with `low` and `high`, a band around it."""

    name: str
    x: np.ndarray
    y: np.ndarray
    look: tuple[str, str]
    """Colour `#rrggbb`, and line style as in matplotlib."""
    bold: bool = False
    low: np.ndarray | None = None
    high: np.ndarray | None = None


@dataclass(frozen=True)
class Figure:
    """The common part of every figure; `key` names its files."""

    key: str
    title: str
    caption: str


@dataclass(frozen=True)
class Lines(Figure):
    """Curves over training episodes."""

    y_label: str
    lines: tuple[Line, ...]
    log: bool = False
    reference: float | None = None
    """A dashed level, such as the optimal return."""


@dataclass(frozen=True)
class Heats(Figure):
    """Heat maps with one colour scale, one below the other."""

    panels: tuple[np.ndarray, ...]
    """f64[rows, columns] each; NaN stays blank."""
    names: tuple[str, ...]
    x: np.ndarray
    x_label: str
    y_label: str
    colour_label: str
    limits: tuple[float, float]
    log: bool = False


@dataclass(frozen=True)
class Node:
    """A discovered state: level, lane from the top, share of visits, value, and its description."""

    level: int
    lane: int
    share: float
    value: float
    about: str


@dataclass(frozen=True)
class Edge:
    """A transition between two nodes, by position in the list of nodes."""

    start: int
    end: int
    probability: float
    planned: bool
    """Whether the greedy policy takes this action; else it is the likeliest other action."""
    about: str


@dataclass(frozen=True)
class Map(Figure):
    """Discovered states, levels from left to right."""

    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]
    horizon: int
    lanes: int


@dataclass(frozen=True)
class Bars(Figure):
    """Stacked bars, one per run."""

    labels: tuple[str, ...]
    parts: dict[str, np.ndarray]
    x_label: str


def shared_figures(runs: Sequence[RunContents]) -> list[Figure]:
    """The figures that show all runs together, without those that have no data."""
    optimal = {run.summary.get("optimal_return") for run in runs}
    best = optimal.pop() if len(optimal) == 1 else None
    band = "Thin: every seed. Bold: median over seeds, with the band between the quartiles"
    found = [
        curves(runs, "return", "Return of the learned policy", f"{band}; a run that ended keeps its last "
               "value. Dashed: the optimal return.", "eval_return", "mean return", reference=best),
        curves(runs, "level", "How deep exploration reaches", f"{band}. The deepest "
               "level at which an exploring episode was still on the way to the goal. Exploration goes where "
               "something new is likely, so in a solved run it may stay below the last level: the learned "
               "policy is what reaches the goal.", "reached_level",
               "deepest level still on the way"),
        curves(runs, "accuracy", "Latent states decoded correctly", f"{band}. Only for environments "
               "that reveal their latent states; the learner never sees them.", "decoder_accuracy",
               "share of observations"),
        curves(runs, "gap", *gap_words(runs, band), log=True),
        spent(runs),
    ]  # fmt: skip
    return [figure for figure in found if figure is not None]


def gap_words(runs: Sequence[RunContents], band: str) -> tuple[str, str, str, str]:
    """Title, caption, column and axis of the figure about the features' objective."""
    algorithms, column = {run.config["algorithm"] for run in runs}, "replearn_gap"
    if algorithms == {"general"}:
        says = "How well the discovered states predict what comes before and after them, mean over levels; "
        return (
            "Score of the states",
            f"{band}. {says}higher is better, and more data gives more.",
            column,
            "nats",
        )
    caption = (
        f"{band}. How much better other features could predict: the largest objective of the last "
        "discriminator, over levels (Algorithm 2, line 6); for the algorithm efficient, the mean objective "
        "of the levels' fits. It may rise while the return rises: new states make the prediction harder, "
        "not the decoders worse."
    )
    if "general" in algorithms:
        caption += " For the algorithm general it is a score, of which more is better."
    return "RepLearn's gap", caption, column, "objective"


def run_figures(run: RunContents) -> list[Figure]:
    """The figures of one run."""
    found = [latent_map(run), decoder(run), *level_maps(run)]
    return [figure for figure in found if figure is not None]


def curves(
    runs: Sequence[RunContents], key: str, title: str, caption: str, column: str, y_label: str, *,
    log: bool = False, reference: float | None = None,
) -> Lines | None:  # fmt: skip
    """Every run thin, the median of its group bold; with `log`, logarithmic if the values span a decade."""
    groups = list(dict.fromkeys(run.group for run in runs))
    lines: list[Line] = []
    names = [next(run.group_label for run in runs if run.group == group) for group in groups]
    for group, name in zip(groups, names, strict=True):
        look, members = (colour(name), style(name, names)[1]), []
        for run in (run for run in runs if run.group == group):
            x, y = run.column("episodes"), run.column(column)
            ok = np.isfinite(y) & ((y > 0) if log else True)
            if ok.any():
                members.append((run, x[ok], y[ok]))
        alone = len(members) == 1
        lines += [Line(run.label, x, y, look, bold=alone) for run, x, y in members]
        if len(members) > 1:
            lines.append(_median(members[0][0].title, [(x, y) for _, x, y in members], look))
    values = np.concatenate([line.y for line in lines]) if lines else np.ones(1)
    log = log and values.max() >= 10 * values.min()
    return Lines(key, title, caption, y_label, tuple(lines), bool(log), reference) if lines else None


def _median(title: str, members: list[tuple[np.ndarray, np.ndarray]], look: tuple[str, str]) -> Line:
    """Median and quartiles over seeds; each curve is interpolated, and constant after its end."""
    start = max(x[0] for x, _ in members)
    grid = np.unique(np.concatenate([x for x, _ in members]))
    grid = grid[grid >= start]
    if len(grid) > 400:
        grid = grid[np.unique(np.linspace(0, len(grid) - 1, 400).astype(int))]
    values = np.stack([np.interp(grid, x, y) for x, y in members])
    low, middle, high = np.quantile(values, [0.25, 0.5, 0.75], axis=0)
    return Line(f"{title}, median of {len(members)} seeds", grid, middle, look, True, low, high)


def spent(runs: Sequence[RunContents]) -> Bars | None:
    """Seconds by activity."""
    seconds = [run.summary.get("seconds", {}) for run in runs]
    parts = {name: np.array([float(s.get(name, 0.0)) for s in seconds]) for name in TIMES}
    if not any(values.any() for values in parts.values()):
        return None
    total = np.array([float(s.get("total", 0.0)) for s in seconds])
    parts[OTHER] = np.maximum(total - np.sum(list(parts.values()), axis=0), 0.0)
    caption = "Collecting episodes, learning features, planning, evaluating; the rest is mostly compilation."
    return Bars("time", "Where the time goes", caption, tuple(r.label for r in runs), parts, "seconds")


def latent_map(run: RunContents) -> Map | None:
    """The map of discovered states, with the most valuable state of each level on top."""
    found = run.latent_map
    if found is None:
        return None
    H, K = found.visits.shape
    nodes: list[Node] = []
    position: dict[tuple[int, int], int] = {}
    kept, hidden = drawn_states(found)
    for h in range(H):
        for lane, k in enumerate(sorted(kept[h], key=lambda k: (-round(found.value[h, k], 2), k))):
            share, value = float(found.visits[h, k]), float(found.value[h, k])
            about = f"level {h}, state {k}: {share:.0%} of visits, value {value:.2f}"
            position[h, k] = len(nodes)
            nodes.append(Node(h, lane, share, value, f"{about}, plans action {found.planned[h, k]}"))
    edges = []
    for (h, k), start in position.items():
        if h == H - 1:
            continue
        for j in (j for j in range(K) if (h + 1, j) in position):
            planned, end = int(found.planned[h, k]), position[h + 1, j]
            edges += _edges(found.probability[h, k, :, j], planned, start, end)
    caption = (
        "Levels from left to right, the most valuable state of each level on top. Circles: discovered "
        "states, larger with more visits, coloured by value. Blue: where the greedy policy's action leads; "
        "grey: where the likeliest other action leads; wider with higher estimated probability. Values and "
        "probabilities are means of the run's own data."
    )
    if hidden:
        caption += f" At most {MOST_STATES} states a level are drawn, {hidden} less visited ones are not."
    lanes = max((node.lane for node in nodes), default=0) + 1
    return Map("map", "Map of the discovered latent states", caption, tuple(nodes), tuple(edges), H, lanes)


def drawn_states(found: LatentMap) -> tuple[list[list[int]], int]:
    """The states of each level that the map shows, and how many it leaves out.

    At most `MOST_STATES` a level: first those on the greedy policy's path, then the most visited.
    """
    H, K = found.visits.shape
    share = np.nan_to_num(found.visits)
    there, kept, hidden = share[0], [], 0
    for h in range(H):
        seen = np.flatnonzero(share[h])
        path = np.where(there[seen] > 0.01, there[seen], 0.0)
        order = seen[np.lexsort((-share[h, seen], -path))]
        kept.append([int(k) for k in order[:MOST_STATES]])
        hidden += max(len(seen) - MOST_STATES, 0)
        if h < H - 1:
            there = there @ found.probability[h, np.arange(K), found.planned[h]]
    return kept, hidden


def _edges(probability: np.ndarray, planned: int, start: int, end: int) -> list[Edge]:
    """Edges between two states: by the planned action, and by the likeliest other if that is likelier."""
    chosen = float(probability[planned])
    others = np.where(np.arange(len(probability)) == planned, 0.0, probability)
    best = int(others.argmax())
    leads = "{} leads here with probability {:.2f}".format
    found = []
    if (other := float(others[best])) > max(chosen, 0.05):
        found.append(Edge(start, end, other, False, leads(f"action {best}", other)))
    if chosen > 0.05:
        found.append(Edge(start, end, chosen, True, leads(f"planned action {planned}", chosen)))
    return found


def decoder(run: RunContents) -> Heats | None:
    """Decoded states by true latent state."""
    table = run.decoder
    if table is None:
        return None
    panels = tuple(
        np.where(table.reachable[:, z, None], table.average[:, z, : table.num_used], np.nan).T
        for z in range(table.average.shape[1])
    )
    caption = (
        "One panel per true latent state: the mean soft decoded state of its observations. One bright cell "
        "per level and panel is a perfect decoder; the order of decoded states differs between levels. "
        "Blank: no policy gets there."
    )
    levels = np.arange(table.average.shape[0])
    names = tuple(f"latent {z}" for z in range(len(panels)))
    return Heats("decoder", "What the decoders see", caption, panels, names, levels, "level", "decoded state",
                 "mean", (1e-3, 1.0), log=True)  # fmt: skip


def level_maps(run: RunContents) -> list[Heats]:
    """Coverage and bonus of each level over training; of each state if the data's order is not known."""
    if run.times is None or len(run.times) < 2:
        return state_maps(run)
    covered = "Share of (discovered state, action) pairs that the data of a level contains, over time."
    worth = "Mean exploration bonus of a level's data: how much is still worth a visit."
    origin = " Computed from the data that the run kept, as its last decoders see it."
    found = []
    for title, caption, values in (
        ("Coverage", covered, run.coverage),
        ("Exploration bonus", worth, run.bonus),
    ):
        if values is not None and np.isfinite(values).any():
            key = title.split()[-1].lower()
            limits = (0.0, 1.0 if key == "coverage" else float(np.nanmax(values)) or 1.0)
            found.append(Heats(key, f"{title} per level over time", caption + origin, (values,), ("",),
                               run.times, "training episodes", "level", title.lower(), limits))  # fmt: skip
    return found


def state_maps(run: RunContents) -> list[Heats]:
    """Coverage and bonus of each discovered state at the end, for algorithms that keep no order of rows."""
    found = run.latent_map
    if found is None:
        return []
    kept, _ = drawn_states(found)
    coverage, bonus = np.full((2, max(map(len, kept)), len(kept)), np.nan)
    for h, states in enumerate(kept):
        for lane, k in enumerate(sorted(states, key=lambda k: (-round(found.value[h, k], 2), k))):
            coverage[lane, h] = (found.tried[h, k] > 0).mean()
            bonus[lane, h] = (1 / np.sqrt(found.tried[h, k] + 1)).mean()
    order = " States are in the order of the map, from the top; blank: the level has fewer."
    covered = "Share of the actions that the data of a discovered state contains, at the end." + order
    worth = (
        "Mean over actions of 1/√(n + 1), n rows of the state with this action: what the bonus of "
        "Algorithm 1 is for discrete states, up to its factor. Yellow: hardly tried." + order
    )
    x = np.arange(len(kept))
    return [
        Heats("coverage", "Coverage of each state", covered, (coverage,), ("",), x, "level", "state",
              "coverage", (0.0, 1.0)),
        Heats("bonus", "Exploration bonus of each state", worth, (bonus,), ("",), x, "level", "state",
              "bonus", (0.0, 1.0)),
    ]  # fmt: skip
