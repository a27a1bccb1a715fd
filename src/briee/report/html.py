"""`briee report`: one self-contained HTML file about one or more runs, and its figures as files."""

import base64
import gzip
import json
import re
from collections.abc import Iterable, Sequence
from html import escape
from importlib import resources
from pathlib import Path
from typing import Any

import briee
from briee.configuration import flatten
from briee.errors import RunError
from briee.report import static
from briee.report.contents import Found, RunContents, read_runs
from briee.report.figures import Figure, run_figures, shared_figures
from briee.report.interactive import draw
from briee.training.directory import os_errors, write_atomically

LEARNING = ("return", "level", "accuracy")
"""Figures that come first; the other figures about all runs describe the computation."""


def write_report(
    paths: Sequence[Path | str], output: Path | str = "report.html", figures: Path | str | None = None
) -> Path:
    """Write a report about the runs in or below `paths`, and each figure as PNG and PDF into `figures`.

    Returns the path of the HTML file; raises `RunError` with one sentence.
    """
    return write_page(read_runs([Path(path) for path in paths]), Path(output), figures)


def write_page(found: Found, output: Path, figures: Path | str | None) -> Path:
    """Write the report about runs that are read already."""
    runs = found.runs
    shared, single = shared_figures(runs), [run_figures(run) for run in runs]
    with os_errors(output):
        if output.parent != Path():
            output.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(output, page(found, shared, single))
    if figures is not None:
        folder = Path(figures)
        with os_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            for figure in shared:
                static.save(figure, folder, figure.key)
            for run, own in zip(runs, single, strict=True):
                for figure in own:
                    static.save(figure, folder, f"{figure.key}-{_file_name(run)}")
    return output


def page(found: Found, shared: Sequence[Figure], single: Sequence[Sequence[Figure]]) -> str:
    """The report as HTML."""
    runs = found.runs
    left_out = "".join(f"<p class='soft'>Left out: {escape(reason)}.</p>" for reason in found.skipped)
    drawn = {figure.key: draw(figure) for figure in shared}
    for index, own in enumerate(single):
        drawn |= {f"{figure.key}-{index}": draw(figure) for figure in own}
    titles = list(dict.fromkeys(run.title for run in runs))
    title = titles[0] if len(titles) == 1 else f"{len(titles)} experiments"
    first = [figure for figure in shared if figure.key in LEARNING]
    rest = [figure for figure in shared if figure.key not in LEARNING]
    parts = {
        "title": escape(title),
        "subtitle": escape(_subtitle(runs)),
        "runs": run_table(runs) + left_out,
        "learning": holders(first[:1]) + f'<div class="pair">{holders(first[1:])}</div>',
        "chooser": _chooser(runs),
        "discovered": "\n".join(
            _discovered(i, run, own) for i, (run, own) in enumerate(zip(runs, single, strict=True))
        ),
        "computed": f'<div class="pair">{holders(rest)}</div>',
        "details": settings_table(runs) + _manifests(runs),
        "footer": f"Made by briee {escape(briee.__version__)} from files alone; this page loads nothing.",
        "figures": json.dumps(drawn, separators=(",", ":")).replace("</", "<\\/"),
        "plotly": _plotly(),
    }
    template = resources.files("briee.report").joinpath("template.html").read_text()
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], template)


def holders(figures: Iterable[Figure], suffix: str = "") -> str:
    """Empty elements into which the figures are drawn."""
    return "\n".join(
        f"<figure><h3>{escape(figure.title)}</h3>"
        f'<div class="scroll"><div class="plot" id="{figure.key}{suffix}"></div></div>'
        f"<figcaption>{escape(figure.caption)}</figcaption></figure>"
        for figure in figures
    )


def run_table(runs: Sequence[RunContents]) -> str:
    """One line per run."""
    names = ("run", "seed", "state", "episodes", "solved after", "last return", "optimal", "seconds")
    kinds = ["" if name in ("run", "state") else "number" for name in names]

    def row(tag: str, cells: Sequence[Any]) -> str:
        items = (f'<{tag} class="{kind}">{cell}</{tag}>' for kind, cell in zip(kinds, cells, strict=True))
        return f"<tr>{''.join(items)}</tr>"

    lines = []
    for run in runs:
        s = run.summary
        state = "solved" if s.get("solved") else "finished" if s.get("finished") else "not finished"
        badge = f'<span class="{"solved" if s.get("solved") else "other"}">{state}</span>'
        numbers = (
            (",.0f", s.get("episodes", run.column("episodes")[-1])), (",.0f", s.get("episodes_to_solve")),
            (".3f", s.get("final_return", run.column("eval_return")[-1])), (".3f", s.get("optimal_return")),
            (",.0f", s.get("seconds", {}).get("total")),
        )  # fmt: skip
        cells = ["" if value is None else format(value, form) for form, value in numbers]
        lines.append(row("td", [escape(run.title), run.config["seed"], badge, *cells]))
    return f"<table id='runs'><thead>{row('th', names)}</thead><tbody>{''.join(lines)}</tbody></table>"


def settings_table(runs: Sequence[RunContents]) -> str:
    """All settings side by side; those that differ between runs come first, in colour."""
    flat = [flatten(run.config) for run in runs]
    names = list(dict.fromkeys(name for values in flat for name in values))
    rows = {name: [json.dumps(values.get(name)) for values in flat] for name in names}
    order = sorted(names, key=lambda name: len(set(rows[name])) == 1)
    kinds: list[list[int]] = []  # runs with the same settings share a column
    for index in range(len(runs)):
        equal = next((kind for kind in kinds if flat[kind[0]] == flat[index]), None)
        equal.append(index) if equal else kinds.append([index])
    head = "".join(f"<th>{escape(', '.join(runs[i].label for i in kind))}</th>" for kind in kinds)
    body = []
    for name in order:
        cells = "".join(f"<td><code>{escape(rows[name][kind[0]])}</code></td>" for kind in kinds)
        mark = ' class="differs"' if len(set(rows[name])) > 1 else ""
        body.append(f"<tr{mark}><td><code>{escape(name)}</code></td>{cells}</tr>")
    table = (
        f"<table id='settings'><thead><tr><th></th>{head}</tr></thead><tbody>{''.join(body)}</tbody></table>"
    )
    return f"<details><summary>Settings</summary><div class='scroll'>{table}</div></details>"


def _manifests(runs: Sequence[RunContents]) -> str:
    """Versions, machine and command of each run."""
    parts = [
        f"<h3>{escape(run.label)}</h3><p class='soft'>{escape(str(run.path))}</p>"
        f"<pre>{escape(json.dumps(run.manifest, indent=2))}</pre>"
        for run in runs
    ]
    return f"<details id='manifests'><summary>Versions, machine, commands</summary>{''.join(parts)}</details>"


def _discovered(index: int, run: RunContents, figures: Sequence[Figure]) -> str:
    """The figures of one run; hidden at first, except for the first run."""
    wide = [figure for figure in figures if figure.key == "map"]
    rest = [figure for figure in figures if figure.key != "map"]
    note = f"<p class='soft'>No map of the latent states: {escape(run.note)}.</p>" if run.note else ""
    suffix = f"-{index}"
    shown = note + holders(wide, suffix) + f'<div class="pair">{holders(rest, suffix)}</div>'
    return f'<section class="run" id="run{index}"{" hidden" if index else ""}>{shown}</section>'


def _chooser(runs: Sequence[RunContents]) -> str:
    options = "".join(f'<option value="run{i}">{escape(run.label)}</option>' for i, run in enumerate(runs))
    return f'<select id="chooser" aria-label="run">{options}</select>'


def _subtitle(runs: Sequence[RunContents]) -> str:
    solved = sum(bool(run.summary.get("solved")) for run in runs)
    when = max((str(run.manifest.get("ended") or "") for run in runs), default="")[:10]
    many = f"{len(runs)} runs" if len(runs) > 1 else "one run"
    return f"{many}, {solved} solved" + (f"; last one ended {when}" if when else "")


def _plotly() -> str:
    """plotly.js from the Python package, compressed to a third of its size."""
    try:
        source = resources.files("plotly").joinpath("package_data/plotly.min.js").read_bytes()
    except (ModuleNotFoundError, FileNotFoundError):
        raise RunError("the report needs the package plotly: pip install plotly") from None
    return base64.b64encode(gzip.compress(source, 9, mtime=0)).decode()


def _file_name(run: RunContents) -> str:
    c = run.config
    name = f"{c['env']}-h{c['horizon']}-{c['algorithm']}-{c['preset']}-s{c['seed']}"
    name = "-".join(part for part in (name, run.setting, run.place) if part)
    return re.sub(r"[^\w.-]+", "-", name)
