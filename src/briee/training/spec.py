"""A run as data: every value that determines it, from and to config.json; the runs of a folder. No JAX."""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from briee.algorithms.registry import RENAMED, find, preset
from briee.configuration import AlgorithmConfig, config_from_json, flatten
from briee.envs.registry import instance_argument
from briee.errors import RunError, UsageError
from briee.training.directory import is_locked, read_json

if TYPE_CHECKING:
    from briee.protocols import Algorithm


@dataclasses.dataclass(frozen=True)
class RunSpec:
    """Every value that determines a run."""

    env: str
    """Short name of the lock family, a Gymnasium id, or FILE.py:Class."""
    algorithm: str
    """Name of the algorithm."""
    preset: str
    """Name of the preset that the configuration started from."""
    horizon: int
    """Steps per episode, H."""
    seed: int
    """Seed of every random stream of the run."""
    episodes: int
    """Training budget: no iteration starts after this many episodes."""
    config: AlgorithmConfig
    """The algorithm's configuration, a frozen dataclass."""
    env_arguments: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Further arguments of the environment."""
    rich: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Arguments of the wrapper `RichObservation`; empty: the environment is not wrapped."""

    def __post_init__(self) -> None:
        algorithm, preset = current_names(self.algorithm, self.preset)
        object.__setattr__(self, "algorithm", algorithm)
        object.__setattr__(self, "preset", preset)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values, which `from_json` reads."""
        return json.loads(json.dumps(dataclasses.asdict(self)))

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> "RunSpec":
        """The run that config.json describes; KeyError, TypeError or ValueError if it describes none."""
        named = (stored["algorithm"], stored["preset"], stored["horizon"], stored["env"])
        config = config_from_json(preset(*named, stored.get("env_arguments")), stored["config"])
        return cls(**{"env_arguments": {}, "rich": {}, **stored, "config": config})


def run_title(algorithm: str, preset: str, env: str) -> str:
    """A run in a few words; a preset named `default` goes without saying."""
    return f"{algorithm} on {env}" if preset == "default" else f"{algorithm} ({preset}) on {env}"


def current_names(algorithm: str, preset: str) -> tuple[str, str]:
    """The names that an algorithm and its preset, perhaps of version 0.1, have now."""
    return RENAMED.get((algorithm, preset), (algorithm, preset))


def load_spec(run_dir: Path) -> RunSpec:
    """The run in a directory, from its config.json."""
    stored = read_json(run_dir / "config.json")
    if stored is None:
        raise UsageError(f"{run_dir} is not a run directory: it has no config.json")
    try:
        return RunSpec.from_json(stored)
    except (KeyError, TypeError, ValueError) as error:
        raise RunError(f"{run_dir / 'config.json'} does not describe a run: {error}") from None


def build(spec: RunSpec, env_workers: int = 0) -> "Algorithm[Any]":
    """The algorithm of a run, on its environment; with workers, its copies run in processes of their own."""
    from briee.rollout.samplers import make_sampler

    entry = find(spec.algorithm)
    sampler = make_sampler(spec.env, spec.horizon, spec.env_arguments, spec.rich, env_workers)
    return entry.load()(sampler, spec.config)


def with_instance(spec: RunSpec) -> RunSpec:
    """`spec` with the seeds that draw the environment itself: the run's seed unless another is given."""
    name = instance_argument(spec.env)
    return dataclasses.replace(
        spec,
        env_arguments={name: spec.seed, **spec.env_arguments} if name else spec.env_arguments,
        rich={"instance_seed": spec.seed, **spec.rich} if spec.rich else spec.rich,
    )


class Wanted:
    """The values of a requested run, to be compared with those of a stored one."""

    def __init__(self, spec: RunSpec):
        self.values = flatten(spec.to_json())
        named = (spec.algorithm, spec.preset, spec.horizon, spec.env, spec.env_arguments)
        try:
            default = dataclasses.replace(spec, config=preset(*named)).to_json()["config"]
        except ValueError:  # an unknown preset has no defaults
            default = {}
        self.defaults = {k: v for k, v in flatten(default, "config.").items() if k in self.values}
        self.free = {"episodes", *(f"config.{name}" for name in spec.config.free_fields)}

    def difference(self, stored: Mapping[str, Any]) -> tuple[str, Any, Any] | None:
        """The first name whose value makes the flat values `stored` another run, with both values.

        A resumed run may change its budget and its speed, but nothing that it computes. A field that the
        stored run does not know yet counts as the preset's value.
        """
        before, now = {**self.defaults, **stored}, self.values
        old = current_names(stored.get("algorithm", ""), stored.get("preset", ""))
        before["algorithm"], before["preset"] = old
        for name in {**now, **before}:
            if name not in self.free and before.get(name) != now.get(name):
                return name, before.get(name), now.get(name)
        return None


class Listed(NamedTuple):
    """One run in a listing; the summary is empty before the first checkpoint."""

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
            found.append(Listed(file.parent, _run_state(file.parent, summary), config, summary))
    return found


def _run_state(path: Path, summary: dict[str, Any]) -> str:
    if is_locked(path / "lock"):
        return "running"
    if summary.get("finished"):
        return "solved" if summary.get("solved") else "finished"
    return "stopped"
