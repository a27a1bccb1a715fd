"""An experiment as data: settings of runs, a claim in words, and a plot. Imports no JAX."""

import dataclasses
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from briee.algorithms.registry import preset
from briee.configuration import changed
from briee.errors import RunError
from briee.training.directory import Table
from briee.training.spec import RunSpec

SEEDS = (1, 12, 123, 1234, 12345)
"""Seeds of the paper's experiments (Tables 1 and 5)."""
NEARLY = (("evaluation.episodes", 100), ("evaluation.tolerance", 0.03))
"""The rule for observations that even the best decoder misreads now and then."""


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
    instance: str = "instance_seed"
    """The argument of the environment that the seed is given to; empty: none."""
    rich: str = ""
    """The emission of rich observations; empty: the environment's own observations."""

    @property
    def label(self) -> str:
        """The line of the figure that the run belongs to."""
        preset = "" if self.preset == "default" else self.preset
        return " ".join(filter(None, (self.algorithm, preset, self.variant)))

    @property
    def world(self) -> str:
        """The environment, its horizon and its arguments."""
        rich = (("rich", self.rich),) if self.rich else ()
        arguments = (f"{name} = {v}" for name, v in (*self.arguments, *rich))
        return ", ".join((self.env, f"H = {self.horizon}", *arguments))

    @property
    def given(self) -> str:
        """The arguments of the environment in a word, such as distractors20; empty: none."""
        return "-".join(f"{name}{value}" for name, value in self.arguments)

    @property
    def name(self) -> str:
        """Name of the run's directory."""
        about = self.env, f"h{self.horizon}", self.given, self.rich, self.label.replace("=", "")
        return re.sub(r"[:/ _-]+", "-", "-".join((*filter(None, about), f"s{self.seed}")))

    def spec(self) -> RunSpec:
        """The run as training knows it."""
        config = preset(self.algorithm, self.preset, self.horizon, self.env, dict(self.arguments))
        for name, value in self.changes:
            config = changed(config, name, value)
        about = (self.env, self.algorithm, self.preset, self.horizon, self.seed, self.episodes)
        instance = {self.instance: self.seed} if self.instance else {}
        rich = {"instance_seed": self.seed, "emission": self.rich} if self.rich else {}
        return RunSpec(*about, config, {**instance, **dict(self.arguments)}, rich)


def for_seeds(seeds: Sequence[int], *args: Any, **kwargs: Any) -> tuple[Setting, ...]:
    """The same setting for several seeds."""
    return tuple(Setting(*args, seed=seed, **kwargs) for seed in seeds)


def sweep_file(settings: Sequence[Setting]) -> str:
    """The settings as a sweep file: one product for each, with its seeds."""
    seeds: dict[str, list[int]] = {}
    for setting in settings:
        fields = {"env": setting.env, "horizon": setting.horizon, "algo": setting.algorithm}
        fields |= {"preset": setting.preset, "episodes": setting.episodes}
        fields |= {f"env.{name}": value for name, value in setting.arguments}
        fields |= {"rich": setting.rich} if setting.rich else {}
        fields |= {name: [value] if isinstance(value, tuple) else value for name, value in setting.changes}
        fields = {name: "None" if value is None else value for name, value in fields.items()}
        lines = [f"{json.dumps(name)} = {json.dumps(value)}" for name, value in fields.items()]
        seeds.setdefault("\n".join(lines), []).append(setting.seed)
    return "\n".join(f"[[product]]\n{lines}\nseed = {own}\n" for lines, own in seeds.items())


class Experiment(NamedTuple):
    """The runs and the figure of `briee reproduce NAME`."""

    claim: str
    """The sentence that the figure supports, the paper's own if it has the figure."""
    settings: tuple[Setting, ...]
    """All runs, in the order in which they start."""
    plot: Callable[[Table, Table, Path, str], None]
    """Draws runs.csv and curves.csv.gz into a file, with a caption."""
    folder: str = ""
    """Name of its folder, if that is not the experiment's."""
    quick: tuple[Setting, ...] = ()
    """Runs of seconds, if they are not the usual ones."""

    @property
    def smoke(self) -> tuple[Setting, ...]:
        """One run of seconds for each algorithm and preset, to see that everything works."""
        if self.quick:
            return self.quick
        pairs = dict.fromkeys((setting.algorithm, setting.preset) for setting in self.settings)
        sizes = {algorithm: SMALL[algorithm] for algorithm, _ in pairs}
        worlds = {"olive": "finite-lock"}  # it enumerates functions of finitely many observations
        return tuple(
            Setting(a, p, worlds.get(a, "lock"), 2, sizes[a][0], changes=sizes[a][1]) for a, p in pairs
        )


_GAME = (("replearn.hidden_sizes", (16,)), ("replearn.rounds", 2), ("collect.buffer_size", 200))
_FEATURES = (("features.rounds", 2), ("features.steps", 4), ("estimate_episodes", 10))
SMALL: dict[str, tuple[int, tuple[tuple[str, Any], ...]]] = {
    "lsvi-ucb": (2_500, ()),
    "lsvi-ucb-rff": (500, (("dimension", 20), ("buffer_size", 2_000))),
    "ppo": (200, (("workers", 20), ("minibatch", 20))),
    "ppo-rnd": (200, (("workers", 20), ("minibatch", 20))),
    "briee": (100, _GAME),
    "efficient": (40, ()),
    "general": (40, ()),
    "boot-dqn": (40, (("heads", 3), ("workers", 10), ("rounds", 2), ("steps_per_episode", 1))),
    "flambe": (100, (("episodes_per_level", 60),)),
    "homer": (100, (("episodes_per_level", 60), ("epochs", 2), ("restarts", 1), ("psdp.episodes", 20))),
    "moffle": (100, (("episodes_per_level", 60), *_FEATURES)),
    "musik": (100, (("episodes_per_level", 60), ("psdp.episodes", 20))),
    "olive": (300, (("estimate_episodes", 100), ("eliminate_episodes", 200))),
    "pcid": (100, (("episodes_per_level", 60),)),
    "ppe": (100, (("episodes_per_level", 60), ("steps", 10))),
    "rep-ucb": (200, (("buffer_size", 200),)),
    "vox": (100, (("episodes_per_level", 60), ("psdp.episodes", 20), *_FEATURES)),
}
"""Budget and changes of a smoke run on the lock with H = 2, by algorithm. All experiments share them, and so
their jitted functions."""

SELECTED_BY = {"algo": "algorithm", "args": "given"} | {
    n: n for n in ("preset", "env", "horizon", "seed", "variant")
}


def select(settings: Sequence[Setting], only: str) -> list[Setting]:
    """The settings that match `name=value,name=value`; the names are fields, `algo` and `args` for short."""
    chosen = list(settings)
    for part in filter(None, only.split(",")):
        name, equals, value = part.partition("=")
        if not equals or name not in SELECTED_BY:
            raise RunError(f"--only takes {', '.join(f'{name}=...' for name in SELECTED_BY)}, got {part!r}")
        found: dict[str, list[Setting]] = {}
        for setting in chosen:
            found.setdefault(str(getattr(setting, SELECTED_BY[name])), []).append(setting)
        if value not in found:
            raise RunError(f"no such run: {name} is one of {', '.join(map(repr, found))}, got {value!r}")
        chosen = found[value]
    return chosen
