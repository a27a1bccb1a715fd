"""Carries out `briee reproduce`: run what is not done yet, write CSV files, draw from them.

A run is done when a table, of this experiment or another, has it, or when the summary.json of a run directory
says `finished`. A run that was killed goes on from its checkpoint. So the same command can be given again at
any time, and the figure always shows what there is. Imports no JAX itself.
"""

import importlib
import multiprocessing
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from briee.configuration import changed
from briee.errors import RunError
from briee.experiments import FIGURES
from briee.experiments.setting import Experiment, Setting, select
from briee.experiments.tables import RUN_COLUMNS, Existing, Found, Row, read_curves, write_curves, write_runs
from briee.training.directory import read_table
from briee.training.progress import clock


class Outcome(NamedTuple):
    """How a run ended, in words."""

    words: str
    failed: bool = False


Run = Callable[[Setting, Path], Outcome]
"""Carries out a setting in a directory."""


def reproduce(
    name: str,
    root: Path,
    *,
    smoke: bool = False,
    only: str = "",
    workers: int = 1,
    plot_only: bool = False,
    further: Sequence[Path] = (),
    command: str = "",
    say: Callable[[str], Any] = print,
) -> Path:
    """Run the experiment `name` under `root`, as far as it is not done, and draw it; returns the image file.

    Run directories below the folders `further` count like those of the experiment. Failed runs do not stop
    the others; a `RunError` names them in the end.
    """
    experiment = find_figure(name)
    all_settings = experiment.smoke if smoke else experiment.settings
    settings = select(all_settings, only)
    if workers < 1:
        raise RunError(f"workers must be >= 1, got {workers}")
    own = experiment.folder or name
    folder = root / (f"{own}-smoke" if smoke else own)
    folder.mkdir(parents=True, exist_ok=True)
    failed = []
    if not plot_only:
        existing = Existing(root, further)
        left = [setting for setting in settings if not existing.is_done(setting, folder)]
        say(f"{len(settings)} runs, {len(settings) - len(left)} done before")
        run = partial(run_setting, command=command or f"briee reproduce {name}", hasty=smoke)
        failed = run_all(left, folder, workers, run, say)
    write_tables(all_settings, folder, Existing(root, further), fingerprinted=not smoke)
    image = folder / f"{name}.png"
    if not failed or (folder / "runs.csv").exists():
        draw(experiment, folder, image)
        say(str(image) if smoke else f"{image}\nclaim: {experiment.claim}")
    if failed:
        raise RunError(f"{len(failed)} of {len(settings)} runs failed: {'; '.join(failed)}")
    return image


def find_figure(name: str) -> Experiment:
    """The experiment of that name, from the module of that name."""
    if name not in FIGURES:
        raise RunError(f"unknown figure {name!r}: known are {', '.join(FIGURES)}")
    module, _, variable = FIGURES[name].partition(":")
    return getattr(importlib.import_module(f"briee.experiments.{module}"), variable)


def run_all(
    settings: Sequence[Setting], folder: Path, workers: int, run: Run, say: Callable[[str], Any]
) -> list[str]:
    """Run settings, `workers` at a time, and report progress; returns which failed and why."""
    began, failed = time.monotonic(), []
    for count, (setting, outcome) in enumerate(outcomes(settings, folder, workers, run), start=1):
        each = (time.monotonic() - began) / count
        rest = f"{len(settings) - count} left, about {clock(each * (len(settings) - count))}"
        say(f"{setting.name}: {'failed: ' * outcome.failed}{outcome.words}; {rest}")
        if outcome.failed:
            failed.append(f"{setting.name}: {outcome.words}")
    return failed


def outcomes(
    settings: Sequence[Setting], folder: Path, workers: int, run: Run
) -> Iterator[tuple[Setting, Outcome]]:
    """Each setting with its outcome, as they finish. A failed run does not stop the others."""
    if workers == 1:
        yield from ((setting, run(setting, folder / setting.name)) for setting in settings)
        return
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        running = {pool.submit(run, setting, folder / setting.name): setting for setting in settings}
        try:
            yield from ((running[future], future.result()) for future in as_completed(running))
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def run_setting(setting: Setting, run_dir: Path, command: str, hasty: bool = False) -> Outcome:
    """Carry out one run, or what is left of it. If `hasty`, compile without most optimisations."""
    from briee.compute import prepare_process

    prepare_process()
    import jax

    from briee.training.session import run
    from briee.training.spec import build

    spec = setting.spec()
    if "workers" in spec.config.free_fields:
        spec = changed(spec, "config.workers", 1)
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", before or hasty)
    try:
        summary = run(build(spec), spec, run_dir, resume=True, command=command)
    except ValueError as error:
        return Outcome(str(error), failed=True)
    finally:
        jax.config.update("jax_disable_most_optimizations", before)
    if summary["solved"]:
        return Outcome(f"solved after {summary['episodes_to_solve']:,} episodes")
    reached = f"return {summary['final_return']:.3f} after {summary['episodes']:,} episodes"
    return Outcome(f"{reached}, not solved")


def write_tables(
    settings: Sequence[Setting], folder: Path, existing: Existing, fingerprinted: bool = True
) -> None:
    """Write runs.csv, curves.csv.gz and manifest.json of an experiment from the runs that exist."""
    chosen = [(setting, existing.best(setting, folder)) for setting in settings]
    runs = [(setting, run) for setting, run in chosen if run is not None]
    if not runs:
        return
    rows = [own_row(setting, run, existing, fingerprinted) for setting, run in runs]
    rows = apart(rows, existing.fingerprints.present)
    curves = [
        {"label": row["label"], "world": row["world"], "seed": row["seed"]} | point
        for row, (_, run) in zip(rows, runs, strict=True)
        for point in existing.curve(run)
    ]
    write_runs(folder, rows, existing.origins([run for _, run in runs]))
    write_curves(folder, curves)


def own_row(setting: Setting, run: Found, existing: Existing, fingerprinted: bool) -> Row:
    """The row of a run under the names that a setting has in its experiment."""
    names = {name: getattr(setting, name) for name in ("label", "world", "variant")}
    numerics = run.row["numerics"]
    if fingerprinted and not numerics:
        numerics = existing.fingerprints.find(run.row)
    return {name: run.row[name] for name in RUN_COLUMNS} | names | {"numerics": numerics}


def apart(rows: Sequence[Row], present: Mapping[str, str]) -> list[Row]:
    """The rows, with a line of its own for each version of an algorithm that computes other numbers.

    The name of a line goes to the present numerics, or to those of most rows; others add their commit.
    """
    named = []
    for row in rows:
        line = [other["numerics"] for other in rows if other["label"] == row["label"]]
        now = present.get(f"{row['algorithm']} {row['preset']}", "")
        main = now if now in line else Counter(line).most_common(1)[0][0]
        suffix = "" if row["numerics"] == main else f" (version {row['version']}, {row['commit'][:7]})"
        named.append(row | {"label": row["label"] + suffix})
    return named


def draw(experiment: Experiment, folder: Path, image: Path) -> None:
    """Draw the figure from the two tables in a folder, without training."""
    runs, curves = read_table(folder / "runs.csv"), read_curves(folder)
    if not runs:
        raise RunError(f"{folder} has no results yet: run the experiment first")
    seeds = sorted({int(row["seed"]) for row in runs})
    budgets = sorted({int(row["budget"]) for row in runs})
    unfinished = sum(row["finished"] != "True" for row in runs)
    budget = f"budget {budgets[0]:,}" if len(budgets) == 1 else f"budgets {budgets[0]:,} to {budgets[-1]:,}"
    caption = (
        f"seeds {', '.join(map(str, seeds))}; {budget} episodes; "
        f"{len(runs)} runs{f', {unfinished} of them unfinished' if unfinished else ''}; "
        f"briee {', '.join(sorted({row['version'] for row in runs}))}"
    )
    experiment.plot(runs, curves, image, caption)
