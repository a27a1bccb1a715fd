"""The contents of a run for a report: its files, and the latent states in its newest checkpoint."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from briee.algorithms.registry import in_words
from briee.configuration import flatten
from briee.diagnose.decoder_table import DecoderTable
from briee.diagnose.latent_map import LatentMap, level_history, map_latents, stored_visits
from briee.errors import RunError
from briee.training.directory import read_json, read_metrics
from briee.training.spec import list_runs

TIMES = ("collect", "represent", "plan", "evaluate")
POINTS = 40
"""Coverage and bonus are shown at up to this many iterations."""


@dataclasses.dataclass(frozen=True)
class RunContents:
    """One run. Fields that need its checkpoint are None if it cannot be read; `note` has the reason."""

    path: Path
    config: dict[str, Any]
    manifest: dict[str, Any]
    summary: dict[str, Any]
    metrics: dict[str, np.ndarray]
    """f64[iterations] by column of metrics.csv; NaN for empty cells."""
    latent_map: LatentMap | None = None
    decoder: DecoderTable | None = None
    coverage: np.ndarray | None = None
    """f64[H, T]: share of (decoded state, action) pairs seen until each of T iterations."""
    bonus: np.ndarray | None = None
    """f64[H, T]: mean exploration bonus of a level's data, at each of T iterations."""
    times: np.ndarray | None = None
    """f64[T]: training episodes at these iterations."""
    note: str = ""
    setting: str = ""
    """Values that distinguish this run from others with the same algorithm, preset and horizon."""
    place: str = ""
    """Its directory, if nothing else distinguishes it from another run in the report."""

    @property
    def group(self) -> tuple[str, ...]:
        """Equal for runs that differ only in seed and budget."""
        flat = flatten({**self.config, "env_arguments": dict(self.config.get("env_arguments") or {})})
        free = ("seed", "episodes", "env_arguments.instance_seed", "config.workers")
        return tuple(f"{name}={value}" for name, value in sorted(flat.items()) if name not in free)

    @property
    def group_label(self) -> str:
        """The group as tables name it: algorithm, preset, and what distinguishes it."""
        c = self.config
        preset = "" if c["preset"] == "default" else c["preset"]
        where = f"{c['env']} {c['horizon']} {self.setting}".strip()
        return " ".join(filter(None, (c["algorithm"], preset, where)))

    @property
    def title(self) -> str:
        """The run in a few words, without its seed."""
        c = self.config
        what = f"{in_words(c['algorithm'] + ' ' + c['preset'])} on {c['env']}, H = {c['horizon']}"
        return f"{what}, {self.setting}" if self.setting else what

    @property
    def label(self) -> str:
        """The run in a few words, with its seed."""
        label = f"{self.title}, seed {self.config['seed']}"
        return f"{label}, {self.place}" if self.place else label

    def column(self, name: str) -> np.ndarray:
        """f64[iterations]; NaN if there is no such column."""
        return self.metrics.get(name, np.full(len(self.metrics["iteration"]), np.nan))


class Found(NamedTuple):
    """The runs of a report, and one sentence about each that could not be read."""

    runs: list[RunContents]
    skipped: list[str]


def read_runs(paths: Sequence[Path], checkpoints: bool = True) -> Found:
    """The runs in or below `paths`, sorted by title and seed; `RunError` if there is none."""
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
    """The runs; those with equal labels get up to three values that differ, or else their directory."""
    marked = []
    for run in runs:
        groups = [set(other.group) for other in runs if other.title == run.title]
        own = [item for item in run.group if item not in set.intersection(*groups)]
        names = [item.replace("env_arguments.", "env.").removeprefix("config.") for item in own]
        marked.append(dataclasses.replace(run, setting=", ".join(names[:3])))
    labels = [run.label for run in marked]
    places = [str(run.path) if labels.count(run.label) > 1 else "" for run in marked]
    return [dataclasses.replace(run, place=place) for run, place in zip(marked, places, strict=True)]


def read_run(folder: Path, checkpoints: bool = True) -> RunContents:
    """One run, with its checkpoint if that can be read. `RunError` names a damaged file."""
    names = ("config", "manifest", "summary")
    config, manifest, summary = (read_json(folder / f"{name}.json") or {} for name in names)
    for name in ("algorithm", "preset", "env", "horizon", "seed"):
        if name not in config:
            raise RunError(f"{folder / 'config.json'} does not describe a run: it lacks {name!r}")
    rows = read_metrics(folder / "metrics.csv")
    if not rows:
        raise RunError(f"{folder} has completed no iteration yet")
    metrics = {name: np.array([row[name] for row in rows], float) for name in rows[0]}
    run = RunContents(folder, config, manifest, summary, metrics)
    if not checkpoints:
        return run
    try:
        return _examine(run)
    except (ValueError, OSError, NotImplementedError, ImportError) as error:
        return dataclasses.replace(run, note=" ".join(str(error).split()) or type(error).__name__)


def _examine(run: RunContents) -> RunContents:
    """Add the latent states in the newest checkpoint."""
    from briee.training.checkpoint import Folder
    from briee.training.session import load_moment
    from briee.training.spec import build, load_spec

    folder = Folder(run.path / "checkpoint")
    if not folder.numbers():
        return dataclasses.replace(run, note="the run has no checkpoint")
    spec = load_spec(run.path)
    algorithm = build(spec)
    return examined(run, algorithm, load_moment(algorithm, spec, folder).state, spec)


def examined(run: RunContents, algorithm: Any, state: Any, spec: Any) -> RunContents:
    """Add the latent states of an algorithm in this state."""
    from briee.training.loop import examine_decoder

    visits = stored_visits(algorithm, state)
    decoder = examine_decoder(algorithm, state, spec)
    if visits is None:
        return dataclasses.replace(run, decoder=decoder, note=f"{spec.algorithm} keeps no latent states")
    episodes = run.column("episodes")
    chosen = np.array([len(episodes) - 1])  # the last iteration, unless the order of the rows is known
    if visits.rows.rank is not None:
        chosen = np.unique(np.linspace(0, len(episodes) - 1, POINTS).astype(int))
    warmup = float(run.summary.get("warmup_episodes", 0))
    coverage, bonus = level_history(visits, (chosen + 1) / len(episodes), warmup)
    found = {"latent_map": map_latents(visits), "decoder": decoder}
    return dataclasses.replace(run, **found, coverage=coverage, bonus=bonus, times=episodes[chosen])
