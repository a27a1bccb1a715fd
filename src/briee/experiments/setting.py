"""An experiment as data: settings of runs, a claim in words, and a plot. Imports no JAX."""

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from briee.algorithms import preset
from briee.rundir import RunError, RunSpec

SEEDS = (1, 12, 123, 1234, 12345)
"""Seeds of the paper's experiments (Tables 1 and 5)."""

Table = Sequence[Mapping[str, str]]
"""Rows of a CSV file."""


@dataclasses.dataclass(frozen=True)
class Setting:
    """One run."""

    algorithm: str
    preset: str
    env: str
    horizon: int
    episodes: int
    """Budget of training episodes."""
    seed: int = 1
    """Seed of the run; it also draws the lock."""
    changes: tuple[tuple[str, Any], ...] = ()
    """Values that replace those of the preset, by dotted name."""
    variant: str = ""
    """A name for the changes."""
    arguments: tuple[tuple[str, Any], ...] = ()
    """Arguments of the environment."""

    @property
    def label(self) -> str:
        """The line of the figure that the run belongs to."""
        return " ".join(filter(None, (self.algorithm, self.preset, self.variant)))

    @property
    def world(self) -> str:
        """The environment, its horizon and its arguments."""
        return ", ".join((self.env, f"H = {self.horizon}", *(f"{name} = {v}" for name, v in self.arguments)))

    @property
    def name(self) -> str:
        """Name of the run's directory."""
        arguments = (f"{name}{value}" for name, value in self.arguments)
        about = (self.algorithm, self.preset, self.variant.replace("=", ""), f"s{self.seed}")
        parts = (self.env, f"h{self.horizon}", *arguments, *about)
        return re.sub(r"[:/ _-]+", "-", "-".join(filter(None, parts)))

    def spec(self) -> RunSpec:
        """The run as the runner knows it."""
        config = preset(self.algorithm, self.preset, self.horizon, self.env, dict(self.arguments))
        for name, value in self.changes:
            config = changed(config, name.split("."), value)
        arguments = {"instance_seed": self.seed, **dict(self.arguments)}
        return RunSpec(
            self.env, self.algorithm, self.preset, self.horizon, self.seed, self.episodes, config, arguments
        )


class Figure(NamedTuple):
    """What `briee reproduce NAME` runs and draws."""

    claim: str
    """What the figure is to show; by the paper, where it has the figure."""
    settings: tuple[Setting, ...]
    """All runs, in the order in which they start."""
    smoke: tuple[Setting, ...]
    """Runs of seconds, whose figure looks like the real one: they show that everything works."""
    plot: Callable[[Table, Table, Path, str], None]
    """Draw runs.csv and curves.csv into a file, with a caption."""


_GAME = (("replearn.rounds", 2), ("collect.buffer_size", 200))
SMALL: dict[tuple[str, str], tuple[int, tuple[tuple[str, Any], ...]]] = {
    ("lsvi-ucb", "paper"): (2_500, ()),
    ("lsvi-ucb-rff", "paper"): (500, (("dimension", 20), ("buffer_size", 2_000))),
    ("ppo", "paper"): (200, (("workers", 20), ("minibatch", 20))),
    ("ppo-rnd", "paper"): (200, (("workers", 20), ("minibatch", 20))),
    ("briee", "paper"): (100, (("replearn.hidden_sizes", (16,)), *_GAME)),
    ("briee", "released"): (100, (("replearn.hidden_sizes", (16, 16)), *_GAME)),
    ("briee", "efficient"): (40, ()),
}
"""By algorithm and preset: budget and changes of a run of seconds on the lock with H = 2. All figures share
these, and so their compiled programs."""


def small(settings: Sequence[Setting]) -> tuple[Setting, ...]:
    """For each algorithm and preset among the settings one run of seconds."""
    pairs = dict.fromkeys((setting.algorithm, setting.preset) for setting in settings)
    return tuple(Setting(*pair, "lock", 2, SMALL[pair][0], changes=SMALL[pair][1]) for pair in pairs)


def changed(config: Any, path: list[str], value: Any) -> Any:
    """A copy of nested frozen dataclasses with one value replaced."""
    name, *rest = path
    if rest:
        value = changed(getattr(config, name), rest, value)
    return dataclasses.replace(config, **{name: value})


def for_seeds(seeds: Sequence[int], *args: Any, **kwargs: Any) -> tuple[Setting, ...]:
    """The same setting for several seeds."""
    return tuple(Setting(*args, seed=seed, **kwargs) for seed in seeds)


SELECTED_BY = ("algo", "preset", "env", "horizon", "seed", "variant")


def select(settings: Sequence[Setting], only: str) -> list[Setting]:
    """Those that match `name=value,name=value`; the names are fields of a setting, `algo` for short."""
    chosen = list(settings)
    for part in filter(None, only.split(",")):
        name, equals, value = part.partition("=")
        if not equals or name not in SELECTED_BY:
            raise RunError(f"--only takes {', '.join(f'{name}=...' for name in SELECTED_BY)}, got {part!r}")
        field = {"algo": "algorithm"}.get(name, name)
        known = dict.fromkeys(str(getattr(setting, field)) for setting in chosen)
        chosen = [setting for setting in chosen if str(getattr(setting, field)) == value]
        if not chosen:
            raise RunError(f"no such run: {name} is one of {', '.join(map(repr, known))}, got {value!r}")
    return chosen
