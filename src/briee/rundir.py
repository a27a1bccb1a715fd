"""The run directory: its files, its lock, and what a list of runs shows. Imports no JAX.

config.json     every value of the run; enough to build it again
manifest.json   versions, machine, command and times
metrics.csv     one row per iteration, columns in docs/metrics.md
checkpoint/     the newest two checkpoints (briee.checkpoint)
summary.json    the outcome so far
decoder.png     decoded states by true latent state, where these are known
lock            who is writing, while somebody is
"""

import contextlib
import csv
import dataclasses
import io
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from briee.filelock import InUseError, lock_holder, locked

OUTCOMES = ("manifest.json", "metrics.csv", "summary.json", "decoder.png")


class RunError(ValueError):
    """The request cannot be carried out; the message is one sentence for the user."""


@dataclasses.dataclass(frozen=True)
class RunSpec:
    """Everything that determines a run."""

    env: str
    """Short name of the lock family, a Gymnasium id, or FILE.py:Class."""
    algorithm: str
    """Name of the algorithm."""
    preset: str
    """Preset the configuration started from."""
    horizon: int
    """Steps per episode, H."""
    seed: int
    """Seed of every random stream of the run."""
    episodes: int
    """Training budget: no iteration starts once this many episodes were used."""
    config: Any
    """The algorithm's configuration, a frozen dataclass."""
    env_arguments: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Further arguments of the environment."""
    rich: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Arguments of `RichObservation`, through which the environment is seen; empty: as it is."""

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values; `config_from_json` is the way back for the `config` part."""
        return json.loads(json.dumps(dataclasses.asdict(self)))


def config_from_json(default: Any, values: Any, name: str = "") -> Any:
    """A copy of the frozen dataclass `default` with a JSON object's values; unknown names are refused."""
    if not dataclasses.is_dataclass(default) or isinstance(default, type):
        return tuple(values) if isinstance(default, tuple) else values
    fields = {field.name for field in dataclasses.fields(default)}
    if not isinstance(values, dict):
        raise RunError(f"{name or 'the configuration'} must be a JSON object, got {values!r}")
    if unknown := sorted(set(values) - fields):
        raise RunError(f"unknown configuration field {name + unknown[0]!r}")
    changes = {
        key: config_from_json(getattr(default, key), value, f"{name}{key}.") for key, value in values.items()
    }
    return dataclasses.replace(default, **changes)


class Wanted:
    """The values of a run that is asked for, to be compared with those of a stored one."""

    def __init__(self, spec: RunSpec):
        self.values = flatten(spec.to_json())
        self.defaults = {name: value for name, value in _preset(spec).items() if name in self.values}
        self.free = {"episodes", *(f"config.{name}" for name in getattr(spec.config, "free_fields", ()))}

    def difference(self, stored: Mapping[str, Any]) -> tuple[str, Any, Any] | None:
        """The first name whose value in the flat values `stored` makes it another run, that value and ours.

        A run may change how many iterations there are and how fast, not what they compute. A field that is
        younger than the stored run has the preset's value there.
        """
        before, now = {**self.defaults, **stored}, self.values
        for name in {**now, **before}:
            if name not in self.free and before.get(name) != now.get(name):
                return name, before.get(name), now.get(name)
        return None


def _preset(spec: RunSpec) -> dict[str, Any]:
    """The configuration before any change, with dotted names; empty where no such preset is known."""
    from briee.algorithms import preset  # which imports this module

    try:
        config = preset(spec.algorithm, spec.preset, spec.horizon, spec.env, spec.env_arguments)
    except ValueError:
        return {}
    return flatten(dataclasses.replace(spec, config=config).to_json()["config"], "config.")


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested JSON objects as one dict with dotted names."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        flat |= flatten(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {prefix + key: value}
    return flat


class RunDirectory:
    """The files of one run. Use `open` to create or continue one, with the lock held."""

    def __init__(self, path: Path):
        self.path = Path(path)
        self.checkpoints = self.path / "checkpoint"

    @classmethod
    @contextlib.contextmanager
    def open(cls, path: Path, spec: RunSpec, *, resume: bool, overwrite: bool) -> Iterator["RunDirectory"]:
        """Check that `path` may be used for `spec`, lock it, and write config.json.

        A directory with a run in it needs `resume` (same values) or `overwrite` (its run files are removed),
        one with foreign files needs `overwrite` (they stay). Raises `RunError`.
        """
        directory = cls(path)
        with contextlib.ExitStack() as stack:
            with os_errors(path):
                directory.path.mkdir(parents=True, exist_ok=True)
                stack.enter_context(locked(directory.path / "lock"))
                directory._claim(spec, resume, overwrite)
            yield directory

    def _claim(self, spec: RunSpec, resume: bool, overwrite: bool) -> None:
        for leftover in self.path.glob(".*.partial"):
            leftover.unlink()
        known = self.read("config.json")
        if overwrite:
            self._remove_run()
        elif known is not None and not resume:
            state = "a finished" if (self.read("summary.json") or {}).get("finished") else "an unfinished"
            advice = "add --resume to continue it, --overwrite to replace it, or choose another --run-dir"
            raise RunError(f"{self.path} holds {state} run: {advice}")
        elif known is not None:
            self._compare(spec, known)
            self._require_checkpoint()
        elif any(file.name != "lock" for file in self.path.iterdir()):
            raise RunError(
                f"{self.path} is not empty and not a run directory: choose another or add --overwrite"
            )
        self.write("config.json", spec.to_json())

    def _compare(self, spec: RunSpec, stored: dict[str, Any]) -> None:
        if difference := Wanted(spec).difference(flatten(stored)):
            name, before, now = difference
            change = f"{name} = {before!r}, not {now!r}"
            raise RunError(f"{self.path} was started with {change}: resume with the same value")

    def _require_checkpoint(self) -> None:
        """Refuse to compute rows anew because the checkpoint that belongs to them is gone.

        The first checkpoint follows the first row, and summary.json the checkpoint: one row without either is
        all that a process leaves which ended in between.
        """
        rows = MetricsFile(self.path / "metrics.csv").rows()
        begun = rows > 1 or (rows == 1 and (self.path / "summary.json").exists())
        if begun and not any(self.checkpoints.glob("*.npz")):
            state = f"{self.path} has rows in metrics.csv but no checkpoint to continue from"
            raise RunError(f"{state}: start anew with --overwrite, or remove the folder")

    def _remove_run(self) -> None:
        """Checkpoints first: a process killed half way leaves a run directory, never a foreign one."""
        for file in (*self.checkpoints.glob("*.npz"), *(self.path / name for name in OUTCOMES)):
            file.unlink(missing_ok=True)

    def read(self, name: str) -> dict[str, Any] | None:
        """A JSON file of the run, or None when there is none."""
        return read_json(self.path / name)

    def write(self, name: str, values: Any) -> None:
        """Replace a JSON file of the run, atomically."""
        write_atomically(self.path / name, json.dumps(values, indent=2) + "\n")


class MetricsFile:
    """`metrics.csv`: append-only, one row per iteration."""

    def __init__(self, path: Path):
        self.path = path
        self.columns: list[str] | None = None

    def rows(self) -> int:
        """How many whole rows there are."""
        return max(len(self._lines()) - 1, 0)

    def _lines(self) -> list[str]:
        """The header and the rows, without a last line cut short."""
        lines = self.path.read_text().splitlines(keepends=True) if self.path.exists() else []
        return [line for line in lines if line.endswith("\n")]

    def rewind(self, iteration: int) -> None:
        """Drop the rows after `iteration`, which a resumed run computes anew, and a last line cut short."""
        if not self.path.exists() and iteration == 0:
            return
        whole = self._lines()
        self.columns = whole[0].strip().split(",") if whole else None
        if len(whole) <= iteration:
            raise RunError(f"{self.path} lacks rows: it has {self.rows()} of {iteration} iterations")
        write_atomically(self.path, "".join(whole[: iteration + 1]) if iteration else "")
        if not iteration:
            self.columns = None

    def append(self, row: Mapping[str, Any]) -> None:
        """Add one row; None becomes an empty cell. The first row fixes the columns. A row survives the end of
        this process at once, and that of the machine after `sync`."""
        text = io.StringIO()
        if self.columns is None:
            self.columns = list(row)
            csv.writer(text, lineterminator="\n").writerow(self.columns)
        if list(row) != self.columns:
            raise ValueError(f"every row needs the columns {self.columns}, got {list(row)}")
        csv.writer(text, lineterminator="\n").writerow(_cell(value) for value in row.values())
        with open(self.path, "a") as file:
            file.write(text.getvalue())

    def sync(self) -> None:
        """Push the rows to disk."""
        with open(self.path, "a") as file:
            os.fsync(file.fileno())


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return str(value) if isinstance(value, int) else format(value, ".9g")


def write_atomically(path: Path, text: str) -> None:
    """Replace the text of `path` in one step."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with open(partial, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    finally:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make a rename in `folder` durable, where the system lets a directory be opened."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:  # Windows
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_json(path: Path) -> dict[str, Any] | None:
    """A JSON object, or None when the file does not exist; anything else is a `RunError`."""
    try:
        values = json.loads(path.read_text())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise RunError(f"cannot read {path}: {error}") from None
    if not isinstance(values, dict):
        raise RunError(f"cannot read {path}: it is not a JSON object")
    return values


@contextlib.contextmanager
def os_errors(path: Path) -> Iterator[None]:
    """Turn a full disk, missing permission, vanished or locked directory into one sentence."""
    try:
        yield
    except OSError as error:
        raise RunError(f"cannot write {path}: {error.strerror or error}") from error
    except InUseError as error:
        raise RunError(str(error)) from None


class Listed(NamedTuple):
    """One run in a listing; numbers are None before the first checkpoint."""

    path: Path
    state: str
    config: dict[str, Any]
    summary: dict[str, Any]


def list_runs(root: Path) -> list[Listed]:
    """Run directories at or below `root`, sorted by path, each with its state.

    State: `running`, `solved`, `finished` (budget used up), `stopped` (can be resumed) or `unreadable`.
    """
    found = []
    for file in sorted(root.rglob("config.json")):
        try:
            config, summary = read_json(file) or {}, read_json(file.with_name("summary.json")) or {}
        except RunError:
            found.append(Listed(file.parent, "unreadable", {}, {}))
            continue
        if {"env", "algorithm", "seed"} <= config.keys():
            found.append(Listed(file.parent, _state(file.parent, summary), config, summary))
    return found


def _state(path: Path, summary: dict[str, Any]) -> str:
    holder = lock_holder(path / "lock")
    if holder is not None and holder.alive:
        return "running"
    if summary.get("finished"):
        return "solved" if summary.get("solved") else "finished"
    return "stopped"
