"""Draws episodes to solve and learning curves from the tables of an experiment."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from briee.training.directory import Table

COLOURS = [*(f"C{i}" for i in range(10) if i != 7), "black", "navy", "darkgreen", "goldenrod"]
"""Matplotlib's colours but grey, which published numbers have."""


def plot_episodes_to_solve(
    runs: Table,
    curves: Table,
    path: Path,
    caption: str,
    references: Mapping[str, tuple[Mapping[int, float], str]],
) -> None:
    """Episodes to solve against the horizon: median and range over seeds.

    A run that was not solved is an open triangle at the episodes it used, a square if it is unfinished.
    `references` are published numbers: name -> ({horizon: episodes}, source).
    """
    figure, axis = new_figure(caption)
    for index, label in enumerate(dict.fromkeys(row["label"] for row in runs)):
        colour = COLOURS[index % len(COLOURS)]
        solved: dict[int, list[int]] = defaultdict(list)
        for row in (row for row in runs if row["label"] == label):
            horizon = int(row["horizon"])
            if row["episodes_to_solve"]:
                solved[horizon].append(int(row["episodes_to_solve"]))
            else:
                axis.plot(horizon, int(row["episodes"]), censored(row), color=colour, fillstyle="none")
        horizons = sorted(solved)
        median = [float(np.median(solved[h])) for h in horizons]
        span = [[m - min(solved[h]), max(solved[h]) - m] for h, m in zip(horizons, median, strict=True)]
        if horizons:
            style = {"fmt": "o-", "color": colour, "capsize": 3, "label": label}
            axis.errorbar(horizons, median, np.transpose(span), **style)
        else:
            axis.plot([], [], "^", color=colour, fillstyle="none", label=f"{label} (not solved)")
    for marker, (name, (points, source)) in zip("xs+d", references.items(), strict=False):
        label = f"{name} ({source})"
        axis.plot(list(points), list(points.values()), marker, color="0.5", linestyle=":", label=label)
    axis.set(xscale="log", yscale="log", xlabel="horizon H", ylabel="training episodes until solved")
    ticks = sorted({int(row["horizon"]) for row in runs} | {h for p, _ in references.values() for h in p})
    axis.set_xticks(ticks, [str(h) for h in ticks])
    axis.minorticks_off()
    title = (
        "lines: median and range over seeds; triangles: not solved within their budget, squares: unfinished"
    )
    finish(figure, axis, title, path)


def censored(row: Mapping[str, str]) -> str:
    """The mark of a run that was not solved: its budget is spent, or it is unfinished."""
    return "^" if row["finished"] == "True" else "s"


def plot_variants(
    runs: Table, curves: Table, path: Path, caption: str, panel: Literal["horizon", "world"] = "horizon"
) -> None:
    """Episodes to solve of every variant, a panel for each horizon or world, with the median of the first.

    A run that was not solved is an open triangle, a square if it is unfinished.
    """
    from matplotlib.figure import Figure

    title = "{env}, H = {horizon}" if panel == "horizon" else "{world}"
    worlds, labels = (list(dict.fromkeys(t.format(**row) for row in runs)) for t in (title, "{label}"))
    figure = Figure(figsize=(3.2 * len(worlds) + 2, 1.4 + 0.3 * len(labels)), layout="constrained")
    axes = figure.subplots(1, len(worlds), sharey=True, squeeze=False)[0]
    for axis, world in zip(axes, worlds, strict=True):
        complete = []
        for row in (row for row in runs if title.format(**row) == world):
            y = labels.index(row["label"])
            if not row["episodes_to_solve"]:
                axis.plot(int(row["episodes"]), y, censored(row), color="C3", fillstyle="none")
                continue
            axis.plot(int(row["episodes_to_solve"]), y, "o", color="C0")
            complete += [int(row["episodes_to_solve"])] if y == 0 else []
        if complete:
            axis.axvline(float(np.median(complete)), color="0.6", linestyle=":")
        axis.set(title=world, xlabel="training episodes until solved", xlim=(0, None))
        axis.locator_params(axis="x", nbins=5)
        axis.grid(alpha=0.3)
    axes[0].set_yticks(range(len(labels)), labels, fontsize=8)
    axes[0].invert_yaxis()
    figure.supxlabel(caption, fontsize=7)
    figure.savefig(path, dpi=150)


def plot_curves(
    runs: Table,
    curves: Table,
    path: Path,
    caption: str,
    *,
    column: str = "eval_return",
    window: int = 1,
    log: bool = False,
) -> None:
    """A column of the evaluations against episodes, as moving average over `window` of them, and its optimum.

    A thin line is one seed, a thick one the mean over seeds, in which a run that has ended keeps its last
    value.
    """
    figure, axis = new_figure(caption)
    by_label: dict[str, dict[str, list[tuple[float, float]]]] = defaultdict(lambda: defaultdict(list))
    for row in curves:
        if row[column]:
            by_label[row["label"]][row["seed"]].append((float(row["episodes"]), float(row[column])))
    for index, (label, seeds) in enumerate(by_label.items()):
        colour, lines = COLOURS[index % len(COLOURS)], []
        for points in seeds.values():
            x, y = np.array(points).T
            y = moving_average(y, window)
            lines.append((x, y))
            axis.plot(x, y, color=colour, alpha=0.3, linewidth=0.8)
        x = np.unique(np.concatenate([x for x, _ in lines]))
        mean = np.mean([np.interp(x, *line) for line in lines], axis=0)
        counted = "1 seed" if len(lines) == 1 else f"{len(lines)} seeds"
        axis.plot(x, mean, color=colour, linewidth=2, label=f"{label} ({counted})")
    best = [float(row["optimal_return"]) for row in runs if row["optimal_return"]]  # each seed draws a lock
    best = [1.0] if column == "decoder_accuracy" else best
    if best:
        low, high = (f"{value:.3g}" for value in (min(best), max(best)))
        label = f"optimum {low}" if low == high else f"optimum, {low} to {high} by lock"
        middle = (min(best) + max(best)) / 2
        axis.axhline(middle, color="black", linestyle="--", linewidth=1, label=label)
        axis.axhspan(min(best), max(best), color="black", alpha=0.1, linewidth=0)
    axis.set(xlabel="training episodes", ylabel=column.replace("_", " "))
    if log:
        axis.set_xscale("log")
    finish(figure, axis, f"moving average over {window} evaluations" if window > 1 else "", path)


def moving_average(y: Sequence[float] | np.ndarray, window: int) -> np.ndarray:
    """Mean of the last `window` values, of fewer at the beginning."""
    total = np.concatenate([[0.0], np.cumsum(y)])
    end = np.arange(1, len(total))
    start = np.maximum(end - window, 0)
    return (total[end] - total[start]) / (end - start)


def new_figure(caption: str) -> tuple[Any, Any]:
    """A figure with one axis and a caption below it."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5), layout="constrained")
    axis = figure.subplots()
    figure.supxlabel(caption, fontsize=7)
    axis.grid(alpha=0.3)
    return figure, axis


def finish(figure: Any, axis: Any, title: str, path: Path) -> None:
    """Add legend and title, and write the file."""
    axis.legend(fontsize=7, loc="upper left", bbox_to_anchor=(1, 1))
    axis.set_title(title, fontsize=8)
    figure.savefig(path, dpi=150)
