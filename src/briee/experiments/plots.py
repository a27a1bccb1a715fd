"""Draws episodes to solve and learning curves from the tables of an experiment."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import fill
from typing import Any, Literal

import numpy as np

from briee.algorithms.registry import colour, in_words, style
from briee.training.directory import Table

AXES = {
    "eval_return": "mean return of an evaluation",
    "decoder_accuracy": "share of latent states decoded correctly",
}
"""Titles of the vertical axis by column."""


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
    labels = solved_first(runs)
    figure, axis = new_figure(caption, len(labels) + len(references))
    for label in labels:
        marker, line = style(label, labels)
        solved: dict[int, list[int]] = defaultdict(list)
        for row in (row for row in runs if row["label"] == label):
            horizon = int(row["horizon"])
            if row["episodes_to_solve"]:
                solved[horizon].append(int(row["episodes_to_solve"]))
            else:
                axis.plot(horizon, int(row["episodes"]), censored(row), color=colour(label), fillstyle="none")
        horizons = sorted(solved)
        median = [float(np.median(solved[h])) for h in horizons]
        span = [[m - min(solved[h]), max(solved[h]) - m] for h, m in zip(horizons, median, strict=True)]
        if horizons:
            look = {"fmt": marker + line, "color": colour(label), "capsize": 3, "label": in_words(label)}
            axis.errorbar(horizons, median, np.transpose(span), **look)
        else:
            name = f"{in_words(label)}: not solved"
            axis.plot([], [], "^", color=colour(label), fillstyle="none", label=name)
    for marker, (name, (points, source)) in zip("xs+d", references.items(), strict=False):
        label = f"{name} ({source})"
        axis.plot(list(points), list(points.values()), marker, color="0.5", linestyle=":", label=label)
    axis.set(xscale="log", yscale="log", xlabel="horizon H", ylabel="training episodes until solved")
    ticks = sorted({int(row["horizon"]) for row in runs} | {h for p, _ in references.values() for h in p})
    axis.set_xticks(ticks, [str(h) for h in ticks])
    axis.minorticks_off()
    title = "lines: median and range over seeds; open marks: not solved (triangle) or unfinished (square)"
    finish(figure, axis, title, path)


def solved_first(runs: Table) -> list[str]:
    """The labels of a table, by the share of their runs that were solved, else in its order."""
    solved: dict[str, list[bool]] = defaultdict(list)
    for row in runs:
        solved[row["label"]].append(bool(row["episodes_to_solve"]))
    return sorted(solved, key=lambda label: -float(np.mean(solved[label])))


def censored(row: Mapping[str, str]) -> str:
    """The mark of a run that was not solved: its budget is spent, or it is unfinished."""
    return "^" if row["finished"] == "True" else "s"


def plot_variants(
    runs: Table,
    curves: Table,
    path: Path,
    caption: str,
    panel: Literal["horizon", "world"] = "horizon",
    scale: Literal["linear", "log"] = "linear",
) -> None:
    """Episodes to solve of every variant, a panel for each horizon or world, with the median of the first.

    A run that was not solved is an open triangle, a square if it is unfinished.
    """
    from matplotlib.figure import Figure

    title = "{env}, H = {horizon}" if panel == "horizon" else "{world}"
    worlds, labels = (list(dict.fromkeys(t.format(**row) for row in runs)) for t in (title, "{label}"))
    names = [in_words(label).removeprefix(f"{in_words(labels[0])}, ") for label in labels]
    columns, lines = min(len(worlds), 4), -(-len(worlds) // 4)
    figure = Figure(figsize=(3.2 * columns + 2, (1.4 + 0.3 * len(labels)) * lines), layout="constrained")
    axes = figure.subplots(lines, columns, sharey=True, squeeze=False).ravel()
    for axis in axes[len(worlds) :]:
        axis.set_visible(False)
    for axis, world in zip(axes, worlds, strict=False):
        complete = []
        for row in (row for row in runs if title.format(**row) == world):
            y = labels.index(row["label"])
            if not row["episodes_to_solve"]:
                axis.plot(
                    int(row["episodes"]), y, censored(row), color=colour(row["label"]), fillstyle="none"
                )
                continue
            axis.plot(int(row["episodes_to_solve"]), y, "o", color=colour(row["label"]), clip_on=False)
            complete += [int(row["episodes_to_solve"])] if y == 0 else []
        if complete:
            axis.axvline(float(np.median(complete)), color="0.6", linestyle=":")
        axis.set(title=fill(world, 31), xlabel="training episodes until solved", xscale=scale)
        if scale == "linear":
            axis.set_xlim(0, None)
            axis.locator_params(axis="x", nbins=5)
        axis.grid(alpha=0.3)
    axes[0].set_yticks(range(len(labels)), names)
    for axis in axes[::columns]:
        axis.tick_params(axis="y", labelsize=8)
    axes[0].invert_yaxis()
    figure.suptitle(fill(caption, 50 * columns), fontsize=9)
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
    by_label: dict[str, dict[str, list[tuple[float, float]]]] = defaultdict(lambda: defaultdict(list))
    for row in curves:
        if row[column]:
            by_label[row["label"]][row["seed"]].append((float(row["episodes"]), float(row[column])))
    labels = [label for label in solved_first(runs) if label in by_label]
    figure, axis = new_figure(caption, len(labels) + 1)
    for label in labels:
        look, lines = {"color": colour(label), "linestyle": style(label, labels)[1]}, []
        for points in by_label[label].values():
            x, y = np.array(points).T
            y = moving_average(y, window)
            lines.append((x, y))
            axis.plot(x, y, **look, alpha=0.3, linewidth=0.8)
        x = np.unique(np.concatenate([x for x, _ in lines]))
        mean = np.mean([np.interp(x, *line) for line in lines], axis=0)
        counted = "1 seed" if len(lines) == 1 else f"{len(lines)} seeds"
        axis.plot(x, mean, **look, linewidth=2, label=f"{in_words(label)}: {counted}")
    best = [float(row["optimal_return"]) for row in runs if row["optimal_return"]]  # each seed draws a lock
    best = [1.0] if column == "decoder_accuracy" else best
    if best:
        low, high = (f"{value:.3g}" for value in (min(best), max(best)))
        label = f"optimum {low}" if low == high else f"optimum, {low} to {high} by lock"
        middle = (min(best) + max(best)) / 2
        axis.axhline(middle, color="black", linestyle="--", linewidth=1, label=label)
        axis.axhspan(min(best), max(best), color="black", alpha=0.1, linewidth=0)
    axis.set(xlabel="training episodes", ylabel=AXES.get(column, column.replace("_", " ")))
    if log:
        axis.set_xscale("log")
    finish(figure, axis, f"moving average over {window} evaluations" if window > 1 else "", path)


def moving_average(y: Sequence[float] | np.ndarray, window: int) -> np.ndarray:
    """Mean of the last `window` values, of fewer at the beginning."""
    total = np.concatenate([[0.0], np.cumsum(y)])
    end = np.arange(1, len(total))
    start = np.maximum(end - window, 0)
    return (total[end] - total[start]) / (end - start)


def new_figure(caption: str, entries: int) -> tuple[Any, Any]:
    """A figure with one axis, room below it for a legend with this many entries, and a caption."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5 + 0.16 * ((entries + 1) // 2)), layout="constrained")
    axis = figure.subplots()
    figure.suptitle(fill(caption, 110), fontsize=9)
    axis.grid(alpha=0.3)
    return figure, axis


def finish(figure: Any, axis: Any, title: str, path: Path) -> None:
    """Add the legend below the axis, which keeps its width, and the title, and write the file."""
    handles, names = axis.get_legend_handles_labels()
    place = {line.get_label(): at for at, line in enumerate(axis.lines)}  # error bars are containers
    place |= {bar.get_label(): axis.lines.index(bar[0]) for bar in axis.containers}
    pairs = sorted(zip(names, handles, strict=True), key=lambda pair: place[pair[0]])
    shown = {"handles": [handle for _, handle in pairs], "labels": [name for name, _ in pairs]}
    figure.legend(**shown, fontsize=8, loc="outside lower center", ncols=2, frameon=False)
    axis.set_title(title, fontsize=8)
    figure.savefig(path, dpi=150)
