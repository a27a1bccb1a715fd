"""Carries out `briee reproduce`: run what is not done yet, write CSV files, draw from them.

A run is done when its summary.json says `finished`, in the experiment's folder or in one next to it. A run
that was killed goes on from its checkpoint. So the same command can be given again at any time, and the
figure always shows what there is. Imports no JAX itself.
"""

import importlib
import multiprocessing
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import briee
from briee.configuration import changed
from briee.errors import RunError
from briee.experiments import FIGURES
from briee.experiments.finished import Finished, is_done
from briee.experiments.setting import Experiment, Setting, select
from briee.training.directory import read_json, read_table, write_table
from briee.training.progress import clock


class Outcome(NamedTuple):
    """How a run ended, in words."""

    words: str
    failed: bool = False


Run = Callable[[Setting, Path], Outcome]
"""Carries out a setting in a directory."""
RUN_COLUMNS = (
    "solved",
    "finished",
    "episodes",
    "episodes_to_solve",
    "env_steps",
    "final_return",
    "optimal_return",
)
CURVE_COLUMNS = ("iteration", "episodes", "env_steps", "eval_return", "decoder_accuracy")


def reproduce(
    name: str,
    root: Path,
    *,
    smoke: bool = False,
    only: str = "",
    workers: int = 1,
    plot_only: bool = False,
    command: str = "",
    say: Callable[[str], Any] = print,
) -> Path:
    """Run the experiment `name` under `root`, as far as it is not done, and draw it; returns the image file.

    Failed runs do not stop the others; a `RunError` names them in the end.
    """
    experiment = find_figure(name)
    all_settings = experiment.smoke if smoke else experiment.settings
    settings = select(all_settings, only)
    if workers < 1:
        raise RunError(f"workers must be >= 1, got {workers}")
    folder = root / (f"{name}-smoke" if smoke else name)
    folder.mkdir(parents=True, exist_ok=True)
    failed = []
    if not plot_only:
        run = partial(run_setting, command=command or f"briee reproduce {name}", hasty=smoke)
        failed = run_all(settings, folder, workers, run, say)
    write_tables(all_settings, folder)
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
    return importlib.import_module(f"briee.experiments.{name.replace('-', '_')}").FIGURE


def run_all(
    settings: Sequence[Setting], folder: Path, workers: int, run: Run, say: Callable[[str], Any]
) -> list[str]:
    """Run what is not done, `workers` at a time, and report progress; returns which failed and why."""
    finished = Finished(folder.parent)
    left = [s for s in settings if not is_done(finished.directory(s, folder / s.name))]
    say(f"{len(settings)} runs, {len(settings) - len(left)} done before")
    began, failed = time.monotonic(), []
    for count, (setting, outcome) in enumerate(outcomes(left, folder, workers, run), start=1):
        each = (time.monotonic() - began) / count
        rest = f"{len(left) - count} left, about {clock(each * (len(left) - count))}"
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


def trained(arguments: str, run_dir: Path) -> dict[str, Any]:
    """The summary of the run that `briee train` makes of these arguments, which is carried out first unless
    it is done."""
    if not is_done(run_dir):
        options = [*shlex.split(arguments), "--run-dir", str(run_dir), "--resume"]
        command = [sys.executable, "-m", "briee", "train", *options]
        made = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        if made.returncode:
            raise RunError(f"{run_dir.name}: {made.stderr.decode().strip()}")
    return read_json(run_dir / "summary.json") or {}


def write_tables(settings: Sequence[Setting], folder: Path) -> None:
    """Write runs.csv and curves.csv of a folder, unless they know more runs than there are directories of."""
    runs, curves = collect(settings, folder)
    if len(runs) >= max(1, len(read_table(folder / "runs.csv"))):
        write_table(folder / "runs.csv", runs)
        write_table(folder / "curves.csv", curves)


def collect(settings: Sequence[Setting], folder: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """One row per run that was begun, in the folder or in one next to it, and one row per evaluation."""
    runs, curves, finished = [], [], Finished(folder.parent)
    for setting in settings:
        directory = finished.directory(setting, folder / setting.name)
        summary, config = (read_json(directory / f"{name}.json") for name in ("summary", "config"))
        if summary is None or config is None:
            continue
        about = {name: getattr(setting, name) for name in ("label", "world", "env", "horizon", "seed")}
        runs.append(
            about
            | {"budget": config["episodes"]}
            | {name: summary[name] for name in RUN_COLUMNS}
            | {"seconds": round(summary["seconds"]["total"], 1)}
            | {"run": directory.relative_to(folder.parent).as_posix()}
        )
        for row in read_table(directory / "metrics.csv"):
            curves.append(about | {name: row.get(name, "") for name in CURVE_COLUMNS})
    return runs, curves


def draw(experiment: Experiment, folder: Path, image: Path) -> None:
    """Draw the figure from the two tables in a folder, without training."""
    runs, curves = read_table(folder / "runs.csv"), read_table(folder / "curves.csv")
    if not runs:
        raise RunError(f"{folder} has no results yet: run the experiment first")
    seeds = sorted({int(row["seed"]) for row in runs})
    budgets = sorted({int(row["budget"]) for row in runs})
    unfinished = sum(row["finished"] != "True" for row in runs)
    budget = f"budget {budgets[0]:,}" if len(budgets) == 1 else f"budgets {budgets[0]:,} to {budgets[-1]:,}"
    caption = (
        f"seeds {', '.join(map(str, seeds))}; {budget} episodes; "
        f"{len(runs)} runs{f', {unfinished} of them unfinished' if unfinished else ''}; "
        f"briee {briee.__version__}"
    )
    experiment.plot(runs, curves, image, caption)
