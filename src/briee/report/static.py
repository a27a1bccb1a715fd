"""Figures as PNG and PDF files, drawn by matplotlib."""

import io
from functools import singledispatch
from pathlib import Path
from typing import Any

import numpy as np

from briee.report.figures import ACTIVITY_COLOURS, Bars, Figure, Heats, Lines, Map


def save(figure: Figure, folder: Path, name: str) -> list[Path]:
    """Write `name`.png and `name`.pdf into `folder`."""
    drawn = draw(figure)
    paths = [folder / f"{name}.{kind}" for kind in ("png", "pdf")]
    for path in paths:
        drawn.savefig(path, dpi=150, metadata={"CreationDate": None} if path.suffix == ".pdf" else None)
    return paths


@singledispatch
def draw(figure: Figure) -> Any:
    """A matplotlib figure."""
    raise NotImplementedError(type(figure).__name__)


def _blank(figure: Figure, width: float, height: float) -> Any:
    from matplotlib.figure import Figure as Drawing

    class Shown(Drawing):
        """A figure without pyplot, which a notebook still shows."""

        def _repr_png_(self) -> bytes:
            self.savefig(image := io.BytesIO(), format="png", dpi=80)
            return image.getvalue()

    drawing = Shown(figsize=(width, height), layout="constrained")
    drawing.suptitle(figure.title, fontsize=11)
    return drawing


@draw.register
def _(figure: Lines) -> Any:
    drawing = _blank(figure, 7, 4)
    axis = drawing.subplots()
    for line in figure.lines:
        colour, dash = line.look
        width, alpha = (2.5, 1.0) if line.bold else (0.8, 0.6)
        mark, name = dash if len(line.x) > 1 else "o", line.name if line.bold else None
        axis.plot(line.x, line.y, mark, color=colour, linewidth=width, alpha=alpha, label=name)
        if line.low is not None:
            axis.fill_between(line.x, line.low, line.high, color=colour, alpha=0.18, linewidth=0)
    if figure.reference is not None:
        axis.axhline(figure.reference, linestyle="--", color="0.5", linewidth=1)
    if figure.log:
        axis.set_yscale("log")
    axis.set_xlabel("training episodes")
    axis.set_ylabel(figure.y_label)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False, fontsize=8)
    return drawing


@draw.register
def _(figure: Heats) -> Any:
    from matplotlib.colors import LogNorm, Normalize

    rows = sum(len(panel) for panel in figure.panels)
    drawing = _blank(figure, 7, 1.4 + 0.25 * rows + 0.4 * len(figure.panels))
    axes = drawing.subplots(len(figure.panels), 1, sharex=True, squeeze=False)[:, 0]
    norm = LogNorm(*figure.limits) if figure.log else Normalize(*figure.limits)
    edges = _edges(figure.x)
    for axis, panel, name in zip(axes, figure.panels, figure.names, strict=True):
        shown = np.clip(panel, *figure.limits)
        image = axis.pcolormesh(edges, np.arange(len(panel) + 1) - 0.5, shown, norm=norm)
        axis.invert_yaxis()
        axis.set_ylabel(f"{name}\n{figure.y_label}" if name else figure.y_label, fontsize=8)
        axis.yaxis.get_major_locator().set_params(integer=True)
        drawing.colorbar(image, ax=axis, label=figure.colour_label)
    axes[-1].set_xlabel(figure.x_label)
    return drawing


@draw.register
def _(figure: Map) -> Any:
    drawing = _blank(figure, min(2.5 + 0.7 * figure.horizon, 24), 1.6 + min(0.8 * figure.lanes, 7.4))
    axis = drawing.subplots()
    for edge in sorted(figure.edges, key=lambda edge: edge.planned):
        start, end = figure.nodes[edge.start], figure.nodes[edge.end]
        axis.plot(
            [start.level, end.level], [-start.lane, -end.lane], color="#3f7fd1" if edge.planned else "0.75",
            linewidth=0.5 + 4 * edge.probability, zorder=1, solid_capstyle="round",
        )  # fmt: skip
    values = [node.value for node in figure.nodes]
    dots = axis.scatter(
        [node.level for node in figure.nodes], [-node.lane for node in figure.nodes], c=values,
        s=[60 + 700 * node.share for node in figure.nodes], edgecolors="0.4", zorder=2,
        vmin=min(0.0, *values), vmax=max(1e-9, *values),
    )  # fmt: skip
    drawing.colorbar(dots, ax=axis, label="value")
    axis.set_xlim(-0.5, figure.horizon - 0.5)
    axis.set_ylim(-figure.lanes + 0.4, 0.6)
    axis.set_xlabel("level")
    axis.set_yticks([])
    axis.xaxis.get_major_locator().set_params(integer=True)
    axis.spines[["top", "right", "left"]].set_visible(False)
    return drawing


@draw.register
def _(figure: Bars) -> Any:
    drawing = _blank(figure, 7, 1.3 + 0.4 * len(figure.labels))
    axis = drawing.subplots()
    left = np.zeros(len(figure.labels))
    for name, values in figure.parts.items():
        axis.barh(figure.labels, values, left=left, color=ACTIVITY_COLOURS[name], label=name, height=0.6)
        left = left + values
    axis.invert_yaxis()
    axis.tick_params(axis="y", labelsize=8)
    axis.set_xlabel(figure.x_label)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False, fontsize=8)
    return drawing


def _edges(centres: np.ndarray) -> np.ndarray:
    """The borders of cells with these centres."""
    if len(centres) < 2:
        return np.array([centres[0] - 0.5, centres[0] + 0.5])
    middle = (centres[1:] + centres[:-1]) / 2
    return np.concatenate([[2 * centres[0] - middle[0]], middle, [2 * centres[-1] - middle[-1]]])
