"""Figures for a browser, in the format of plotly.js; the page chooses the colours of text and grid."""

from functools import singledispatch
from typing import Any

import numpy as np

from briee.report.figures import ACTIVITY_COLOURS, Bars, Edge, Figure, Heats, Line, Lines, Map

Drawn = dict[str, Any]
GREY, BLUE = "rgba(128,128,128,0.45)", "#3f7fd1"
DASHES = {"-": "solid", "--": "dash", ":": "dot", "-.": "dashdot"}
WIDTHS = (0.8, 1.6, 3.0, 5.0)
"""Widths of edges, by quarter of the probability."""


@singledispatch
def draw(figure: Figure) -> Drawn:
    """A plotly figure: {"data", "layout", "width"}; `width` is the minimum width in pixels, or None."""
    raise NotImplementedError(type(figure).__name__)


@draw.register
def _(figure: Lines) -> Drawn:
    data: list[Drawn] = []
    for line in figure.lines:
        if line.low is not None and line.high is not None:
            data += _band(line)
        data.append(_curve(line))
    y_axis: Drawn = {"title": {"text": figure.y_label}}
    if figure.log:
        y_axis |= {"type": "log", "exponentformat": "power", "dtick": 1}
    layout = _layout({"title": {"text": "training episodes"}, "rangemode": "tozero"}, y_axis, 360)
    if figure.reference is not None:
        layout["shapes"] = [
            {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": figure.reference,
             "y1": figure.reference, "line": {"dash": "dash", "width": 1, "color": "#888"}}
        ]  # fmt: skip
    return {"data": data, "layout": layout, "width": None}


def _scatter(x: list[Any], y: list[Any], mode: str = "lines", **style: Any) -> Drawn:
    return {"type": "scatter", "mode": mode, "x": x, "y": y, "showlegend": False, **style}


def _curve(line: Line) -> Drawn:
    return _scatter(
        _list(line.x),
        _list(line.y),
        "lines" if len(line.x) > 1 else "markers",
        name=line.name,
        line={"color": line.look[0], "dash": DASHES[line.look[1]], "width": 3 if line.bold else 1},
        opacity=1.0 if line.bold else 0.75,
        showlegend=line.bold,
        hovertemplate="%{y:.4g} after %{x:,} episodes<extra>" + line.name + "</extra>",
    )


def _band(line: Line) -> list[Drawn]:
    fill = "rgba({},{},{},0.18)".format(*(int(line.look[0][i : i + 2], 16) for i in (1, 3, 5)))
    x, edge = _list(line.x), {"line": {"width": 0}, "hoverinfo": "skip"}
    upper = _scatter(x, _list(line.high), fill="tonexty", fillcolor=fill, **edge)
    return [_scatter(x, _list(line.low), **edge), upper]


@draw.register
def _(figure: Heats) -> Drawn:
    n, (low, high) = len(figure.panels), figure.limits
    scale = np.log10 if figure.log else np.asarray
    bar: Drawn = {"title": {"text": figure.colour_label}, "thickness": 12, "outlinewidth": 0}
    if figure.log:
        decades = np.arange(np.log10(low), np.log10(high) + 1e-9)
        bar |= {"tickvals": decades.tolist(), "ticktext": [f"{10**d:g}" for d in decades]}
    gap = 0.1 if n > 1 else 0.0
    span = (1 - gap * (n - 1)) / n
    height = 110 + sum(max(60, 22 * len(panel)) + 26 for panel in figure.panels)
    x_axis = {"title": {"text": figure.x_label}, "anchor": "y" + (str(n) if n > 1 else "")}
    data, layout = [], _layout(x_axis, {}, height) | {"annotations": []}
    for index, (panel, name) in enumerate(zip(figure.panels, figure.names, strict=True)):
        suffix = "" if index == 0 else str(index + 1)
        data.append({
            "type": "heatmap", "z": _table(scale(np.clip(panel, low, high))), "x": _list(figure.x),
            "y": list(range(len(panel))), "customdata": _table(panel), "yaxis": "y" + suffix,
            "colorscale": "Viridis", "colorbar": bar, "zmin": float(scale(low)), "zmax": float(scale(high)),
            "showscale": index == 0, "xgap": 1, "ygap": 1, "hoverongaps": False,
            "hovertemplate": f"{name} {figure.x_label} %{{x}}, {figure.y_label} %{{y}}: "
                             "%{customdata:.3g}<extra></extra>",
        })  # fmt: skip
        bottom = (n - 1 - index) * (span + gap)
        layout["yaxis" + suffix] = {
            "domain": [bottom, bottom + span], "title": {"text": figure.y_label},
            "dtick": max(1, len(panel) // 6), "autorange": "reversed", "zeroline": False, "showgrid": False,
        }  # fmt: skip
        if name:
            layout["annotations"].append({
                "text": name, "xref": "paper", "yref": "paper", "x": 0, "y": bottom + span, "xanchor": "left",
                "yanchor": "bottom", "showarrow": False,
            })  # fmt: skip
    return {"data": data, "layout": layout, "width": None}


@draw.register
def _(figure: Map) -> Drawn:
    data = [trace for planned in (False, True) for trace in _edge_traces(figure, planned)]
    middle = [_middle(figure, edge) for edge in figure.edges]
    x, y = [x for x, _ in middle], [y for _, y in middle]
    hover = {"hovertemplate": "%{text}<extra></extra>"}
    about, invisible = [edge.about for edge in figure.edges], {"size": 14, "opacity": 0}
    data.append(_scatter(x, y, "markers", marker=invisible, text=about, **hover))
    levels, lanes = [node.level for node in figure.nodes], [-node.lane for node in figure.nodes]
    values, about = [node.value for node in figure.nodes], [node.about for node in figure.nodes]
    largest = 32 if figure.lanes < 7 else 22
    marker = {
        "size": [8 + largest * node.share**0.5 for node in figure.nodes], "color": values, "opacity": 1,
        "colorscale": "Viridis", "cmin": min(0.0, *values) if values else 0,
        "cmax": max(1e-9, *values) if values else 1,
        "colorbar": {"title": {"text": "value"}, "thickness": 12, "outlinewidth": 0},
        "line": {"width": 1.5, "color": "#888"},
    }  # fmt: skip
    data.append(_scatter(levels, lanes, "markers", marker=marker, text=about, cliponaxis=False, **hover))
    x_axis = {"title": {"text": "level"}, "dtick": 1 if figure.horizon <= 30 else 5, "showgrid": False,
              "zeroline": False, "range": [-0.5, figure.horizon - 0.5]}  # fmt: skip
    y_axis = {"visible": False, "range": [-figure.lanes + 0.45, 0.55]}
    layout = _layout(x_axis, y_axis, 130 + min(80 * figure.lanes, 740))
    layout["margin"] = layout["margin"] | {"l": 8}  # its vertical axis is not shown
    return {"data": data, "layout": layout, "width": max(340, 76 + 44 * figure.horizon)}


def _edge_traces(figure: Map, planned: bool) -> list[Drawn]:
    """One trace per width."""
    traces = []
    for index, width in enumerate(WIDTHS):
        xs: list[float | None] = []
        ys: list[float | None] = []
        for edge in figure.edges:
            if edge.planned is planned and min(int(4 * edge.probability), 3) == index:
                start, end = figure.nodes[edge.start], figure.nodes[edge.end]
                xs += [start.level, end.level, None]
                ys += [-start.lane, -end.lane, None]
        if xs:
            style = {"width": width, "color": BLUE if planned else GREY}
            traces.append(_scatter(xs, ys, line=style, hoverinfo="skip"))
    return traces


def _middle(figure: Map, edge: Edge) -> tuple[float, float]:
    """A point of the edge to hover over; not the middle, because edges cross there."""
    start, end = figure.nodes[edge.start], figure.nodes[edge.end]
    share = 0.42 if edge.planned else 0.58
    return start.level + share, -(start.lane + share * (end.lane - start.lane))


@draw.register
def _(figure: Bars) -> Drawn:
    data = [
        {"type": "bar", "orientation": "h", "name": name, "x": _list(values),
         "y": list(figure.labels), "marker": {"color": ACTIVITY_COLOURS[name]},
         "hovertemplate": "%{x:.1f} s<extra>" + name + "</extra>"}
        for name, values in figure.parts.items()
    ]  # fmt: skip
    y_axis = {"autorange": "reversed", "showticklabels": False}
    layout = _layout({"title": {"text": figure.x_label}}, y_axis, 120 + 56 * len(figure.labels))
    layout["legend"]["traceorder"] = "normal"
    layout |= {"barmode": "stack", "bargap": 0.62, "annotations": [
        {"text": label, "x": 0, "xanchor": "left", "y": label, "yshift": 24, "showarrow": False,
         "font": {"size": 11}} for label in figure.labels
    ]}  # fmt: skip
    return {"data": data, "layout": layout, "width": None}


def _layout(x_axis: Drawn, y_axis: Drawn, height: int) -> Drawn:
    return {
        "xaxis": x_axis,
        "yaxis": y_axis,
        "height": height,
        "margin": {"l": 56, "r": 16, "t": 16, "b": 52},
        "legend": {"orientation": "h", "x": 0, "y": 1, "yanchor": "bottom"},
        "hovermode": "closest",
        "autosize": True,
    }


def _list(values: Any) -> list[float | None]:
    """Numbers with six significant digits, enough for a figure; NaN is null."""
    return [None if not np.isfinite(v) else float(f"{v:.6g}") for v in np.asarray(values, float)]


def _table(values: np.ndarray) -> list[list[float | None]]:
    return [_list(row) for row in values]
