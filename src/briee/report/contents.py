"""What a report shows of a run: its files, and what its newest checkpoint reveals."""

import csv
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from briee.report.decoder import DecoderTable
from briee.report.latent_map import LatentMap, Visits, level_history, map_latents, stored_visits
from briee.rundir import RunError, flatten, list_runs, read_json

TIMES = ("collect", "represent", "plan", "evaluate")


@dataclasses.dataclass(frozen=True)
class RunContents:
    """One run. What needs its checkpoint is None where that is missing, with the reason in `note`."""

    path: Path
    config: dict[str, Any]
    manifest: dict[str, Any]
    summary: dict[str, Any]
    metrics: dict[str, np.ndarray]
    """f64[iterations] by column of metrics.csv; NaN for empty cells."""
    latent_map: LatentMap | None = None
    decoder: DecoderTable | None = None
    coverage: np.ndarray | None = None
    """f64[H, T]: share of (decoded state, action) pairs seen by then, at each of T iterations."""
    bonus: np.ndarray | None = None
    """f64[H, T]: mean exploration bonus of a level's data, at each of T iterations."""
    times: np.ndarray | None = None
    """f64[T]: training episodes at these iterations."""
    note: str = ""
    setting: str = ""
    """Values that tell this run from others in the report with the same algorithm, preset and horizon."""
    place: str = ""
    """Its directory, where nothing else tells it from another run in the report."""

    @property
    def group(self) -> tuple[str, ...]:
        """Runs that differ in their seeds and budgets alone belong together."""
        flat = flatten({**self.config, "env_arguments": dict(self.config.get("env_arguments") or {})})
        free = ("seed", "episodes", "env_arguments.instance_seed", "config.workers")
        return tuple(f"{name}={value}" for name, value in sorted(flat.items()) if name not in free)

    @property
    def title(self) -> str:
        """What was run, in a few words."""
        c = self.config
        what = f"{c['algorithm']} ({c['preset']}) on {c['env']}, H = {c['horizon']}"
        return f"{what}, {self.setting}" if self.setting else what

    @property
    def label(self) -> str:
        """What was run, and the seed."""
        label = f"{self.title}, seed {self.config['seed']}"
        return f"{label}, {self.place}" if self.place else label

    def column(self, name: str) -> np.ndarray:
        """f64[iterations]; NaN throughout where there is no such column."""
        return self.metrics.get(name, np.full(len(self.metrics["iteration"]), np.nan))


class Found(NamedTuple):
    """The runs that a report is about, and one sentence about each that could not be read."""

    runs: list[RunContents]
    skipped: list[str]


def read_runs(paths: Sequence[Path], checkpoints: bool = True) -> Found:
    """The runs in or below `paths`, sorted by what was run and seed; `RunError` where there is none."""
    found: dict[Path, RunContents] = {}
    skipped: dict[Path, str] = {}
    for path in paths:
        if not path.is_dir():
            raise RunError(f"{path} is not a directory")
        listed = list_runs(path)
        if not listed:
            odd = (path / "config.json").exists()
            reason = "its config.json does not describe a run" if odd else "it has no config.json"
            raise RunError(f"no run in {path}: {reason}")
        for folder in (run.path for run in listed if run.path.resolve() not in found):
            try:
                found[folder.resolve()] = read_run(folder, checkpoints)
            except RunError as error:
                skipped[folder.resolve()] = str(error)
    reasons = list(skipped.values())
    if not found:
        raise RunError(reasons[0] + (f"; likewise {len(reasons) - 1} more" if reasons[1:] else ""))
    runs = sorted(found.values(), key=lambda run: (run.title, run.group, run.config["seed"], str(run.path)))
    return Found(told_apart(runs), reasons)


def told_apart(runs: Sequence[RunContents]) -> list[RunContents]:
    """The runs, those with the same label with what differs: a few values, or else the directory."""
    marked = []
    for run in runs:
        groups = [set(other.group) for other in runs if other.title == run.title]
        own = [item for item in run.group if item not in set.intersection(*groups)]
        names = [item.replace("env_arguments.", "env.").removeprefix("config.") for item in own]
        marked.append(dataclasses.replace(run, setting=", ".join(names[:3])))
    labels = [run.label for run in marked]
    return [
        dataclasses.replace(run, place=str(run.path)) if labels.count(run.label) > 1 else run
        for run in marked
    ]


def read_run(folder: Path, checkpoints: bool = True) -> RunContents:
    """One run; its checkpoint too, unless it cannot be read. `RunError` names a damaged file."""
    run = RunContents(
        path=folder,
        config=read_json(folder / "config.json") or {},
        manifest=read_json(folder / "manifest.json") or {},
        summary=read_json(folder / "summary.json") or {},
        metrics=read_metrics(folder / "metrics.csv"),
    )
    for name in ("algorithm", "preset", "env", "horizon", "seed"):
        if name not in run.config:
            raise RunError(f"{folder / 'config.json'} does not describe a run: it lacks {name!r}")
    if not len(run.metrics["iteration"]):
        raise RunError(f"{folder} has completed no iteration yet")
    if not checkpoints:
        return run
    try:
        return _examine(run)
    except (ValueError, OSError, NotImplementedError, ImportError) as error:
        return dataclasses.replace(run, note=" ".join(str(error).split()) or type(error).__name__)


def read_metrics(path: Path) -> dict[str, np.ndarray]:
    """Columns of metrics.csv as f64[iterations]; a last line cut short is dropped."""
    try:
        text = path.read_text() if path.exists() else ""
    except (OSError, ValueError) as error:
        raise RunError(f"cannot read {path}: {error}") from None
    rows = list(csv.reader(text[: text.rfind("\n") + 1].splitlines())) or [["iteration"]]
    if "iteration" not in rows[0]:
        raise RunError(f"cannot read {path}: its first line does not name the column 'iteration'")
    table = [[_number(cell) for cell in row] for row in rows[1:] if len(row) == len(rows[0])]
    columns = np.array(table, float).reshape(len(table), len(rows[0])).T
    return dict(zip(rows[0], columns, strict=True))


def _number(cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        return float("nan")


def _examine(run: RunContents) -> RunContents:
    """Add what the newest checkpoint reveals."""
    from briee.algorithms import build
    from briee.arguments import load_spec
    from briee.checkpoint import Folder
    from briee.runs import load_state
    from briee.training import examine_decoder

    folder = Folder(run.path / "checkpoint")
    if not folder.numbers():
        return dataclasses.replace(run, note="the run has no checkpoint")
    spec = load_spec(run.path)
    algorithm = build(spec)
    state, *_ = load_state(algorithm, spec.seed, folder)
    visits = stored_visits(algorithm, state)
    decoder = examine_decoder(algorithm, state, spec)
    if visits is None:
        return dataclasses.replace(run, decoder=decoder, note=f"{spec.algorithm} keeps no latent states")
    coverage, bonus, times = _over_time(run, visits, spec.config)
    return dataclasses.replace(
        run,
        latent_map=map_latents(visits),
        decoder=decoder,
        coverage=coverage,
        bonus=bonus,
        times=times,
    )


def _over_time(run: RunContents, visits: Visits, config: Any, points: int = 40):
    """Coverage and bonus at up to `points` iterations, from the rows in the order they came."""
    episodes = run.column("episodes")
    if visits.rank is None:  # data without an order: the end alone
        chosen = np.array([len(episodes) - 1])
    else:
        chosen = np.unique(np.linspace(0, len(episodes) - 1, points).astype(int))
    warm = float(run.summary.get("warmup_episodes", 0))
    history = level_history(visits, (chosen + 1) / len(episodes), warm, config)
    return *history, episodes[chosen]
