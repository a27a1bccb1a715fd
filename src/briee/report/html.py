"""`briee report`: one self-contained HTML file about one or more runs, and its figures as files."""

import base64
import gzip
import json
import re
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import NamedTuple

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
COLUMNS = ("run", "seed", "state", "episodes", "solved after", "last return", "optimal", "seconds")


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
    """The report as HTML. The template escapes every text it is given."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    runs = found.runs
    drawn = {figure.key: draw(figure) for figure in shared}
    for index, own in enumerate(single):
        drawn |= {f"{figure.key}-{index}": draw(figure) for figure in own}
    titles = list(dict.fromkeys(run.title for run in runs))
    pages = Environment(loader=PackageLoader("briee", "report"), autoescape=True, undefined=StrictUndefined)
    return pages.get_template("template.html").render(
        title=titles[0] if len(titles) == 1 else f"{len(titles)} experiments",
        subtitle=_subtitle(runs),
        columns=COLUMNS,
        rows=[_cells(run) for run in runs],
        skipped=found.skipped,
        learning=[figure for figure in shared if figure.key in LEARNING],
        computed=[figure for figure in shared if figure.key not in LEARNING],
        discovered=list(zip(runs, single, strict=True)),
        settings=_settings(runs),
        manifests=[(run.label, str(run.path), json.dumps(run.manifest, indent=2)) for run in runs],
        version=briee.__version__,
        figures=json.dumps(drawn, separators=(",", ":")).replace("</", "<\\/"),
        plotly=_plotly(),
    )


def _cells(run: RunContents) -> list[str]:
    """The run's line of the table, under `COLUMNS`."""
    s = run.summary
    state = "solved" if s.get("solved") else "finished" if s.get("finished") else "not finished"
    numbers = (
        (",.0f", s.get("episodes", run.column("episodes")[-1])), (",.0f", s.get("episodes_to_solve")),
        (".3f", s.get("final_return", run.column("eval_return")[-1])), (".3f", s.get("optimal_return")),
        (",.0f", s.get("seconds", {}).get("total")),
    )  # fmt: skip
    cells = ["–" if value is None else format(value, form) for form, value in numbers]
    return [run.title, str(run.config["seed"]), state, *cells]


class Settings(NamedTuple):
    """All settings side by side; runs with the same settings share a column."""

    head: list[str]
    rows: list[tuple[str, list[str], bool]]
    """Name, a value for each column, and whether the runs differ; those that differ come first."""


def _settings(runs: Sequence[RunContents]) -> Settings:
    flat = [flatten(run.config) for run in runs]
    names = list(dict.fromkeys(name for values in flat for name in values))
    kinds: list[list[int]] = []
    for index in range(len(runs)):
        equal = next((kind for kind in kinds if flat[kind[0]] == flat[index]), None)
        equal.append(index) if equal else kinds.append([index])
    rows = []
    for name in names:
        values = [json.dumps(flat[kind[0]].get(name)) for kind in kinds]
        rows.append((name, values, len(set(values)) > 1))
    head = [", ".join(runs[i].label for i in kind) for kind in kinds]
    return Settings(head, sorted(rows, key=lambda row: not row[2]))


def _subtitle(runs: Sequence[RunContents]) -> str:
    solved = sum(bool(run.summary.get("solved")) for run in runs)
    when = max((str(run.manifest.get("ended") or "") for run in runs), default="")[:10]
    many = f"{len(runs)} runs" if len(runs) > 1 else "one run"
    return f"{many}, {solved} solved" + (f"; last one ended {when}" if when else "")


def _plotly() -> str:
    """plotly.js, compressed to a third of its size: beside this file in a wheel, else of the package."""
    packed = resources.files("briee.report").joinpath("plotly.min.js.gz")
    if packed.is_file():
        return base64.b64encode(packed.read_bytes()).decode()
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
