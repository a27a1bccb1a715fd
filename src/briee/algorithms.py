"""Algorithms and their presets by name, and all that a run needs, built from its `RunSpec`.

Imports no JAX before something is built.
"""

import difflib
import importlib
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from briee.baselines import BASELINES
from briee.config import BrieeConfig
from briee.efficient_config import EfficientConfig
from briee.rundir import RunSpec
from briee.theory.config import TheoryConfig


class Entry(NamedTuple):
    """One algorithm: what it is, where its class is, and its presets.

    A preset is a named constructor of the configuration, called with `horizon` and `dense` (are rewards).
    """

    summary: str
    path: str
    presets: Mapping[str, Callable[..., Any]]
    siblings: Mapping[str, str] = {}

    def home(self, preset: str) -> str:
        """Where the class is that runs a preset: a sibling with a loop of its own, or the algorithm's."""
        return self.siblings.get(preset, self.path)


ALGORITHMS: dict[str, Entry] = {
    "briee": Entry(
        "representation learning, bonus and planning, interleaved (Algorithm 1)",
        "briee.briee:BRIEE",
        {
            "efficient": EfficientConfig.efficient,
            "paper": BrieeConfig.paper,
            "released": BrieeConfig.released,
            "theory": TheoryConfig.theory,
        },
        {"efficient": "briee.efficient:Efficient", "theory": "briee.theory.algorithm:Theory"},
    ),
    "reward-free": Entry(
        "explore without a reward, plan for any reward later (Algorithm 4)",
        "briee.reward_free:RewardFreeBRIEE",
        {"paper": BrieeConfig.paper, "released": BrieeConfig.released},
    ),
}
ALGORITHMS |= {name: Entry(*about) for name, about in BASELINES.items()}
DEFAULT_ALGORITHM, DEFAULT_PRESET = "briee", "paper"
HOST_ENVIRONMENTS = 16
"""Copies of an environment that are stepped together where it cannot be compiled."""


def preset(algorithm: str, name: str, horizon: int, env: str = "lock") -> Any:
    """The configuration that a preset gives an algorithm, a frozen dataclass; unknown names: `ValueError`."""
    presets = find(ALGORITHMS, algorithm, "algorithm").presets
    return find(presets, name, f"preset of {algorithm}")(horizon=horizon, dense="dense" in env)


def default_preset(algorithm: str) -> str:
    """The preset of an algorithm where none is named."""
    presets = find(ALGORITHMS, algorithm, "algorithm").presets
    return DEFAULT_PRESET if DEFAULT_PRESET in presets else next(iter(presets))


def build(spec: RunSpec) -> Any:
    """The algorithm of a run, on its environment."""
    module, _, name = find(ALGORITHMS, spec.algorithm, "algorithm").home(spec.preset).partition(":")
    sampler = make_sampler(spec.env, spec.horizon, spec.env_arguments)
    return getattr(importlib.import_module(module), name)(sampler, spec.config)


def make_sampler(env: str, horizon: int, arguments: Mapping[str, Any]) -> Any:
    """A sampler for an environment by its short name or Gymnasium id; `ValueError` says what is wrong.

    This package's environments are compiled into the rollout, all others are stepped on the host.
    """
    import gymnasium as gym

    from briee.envs import ENVIRONMENTS, make
    from briee.envs.host import HostSampler
    from briee.rollout import ScanSampler

    if env in pure_environments():
        return ScanSampler(make(env, horizon=horizon, **arguments))
    try:
        vector = gym.make_vec(env, num_envs=HOST_ENVIRONMENTS, vectorization_mode="sync", **arguments)
    except (gym.error.UnregisteredEnv, ModuleNotFoundError) as error:
        known = suggestion(env, [*ENVIRONMENTS, *gym.registry])
        raise ValueError(f"unknown environment {env!r}{known or f' ({error})'}") from error
    except (gym.error.Error, TypeError, ImportError) as error:
        raise ValueError(f"cannot make {env!r}: {error}") from error
    return HostSampler(vector, horizon)


def has_instances(env: str) -> bool:
    """Whether the environment is drawn by an `instance_seed`, as the combination of a lock is."""
    entries = pure_environments()
    return env in entries and "instance_seed" in inspect.signature(entries[env].constructor).parameters


def pure_environments() -> dict[str, Any]:
    """Entries of the pure environments by short name and by Gymnasium id."""
    from briee.envs import ENVIRONMENTS

    return {**ENVIRONMENTS, **{entry.id: entry for entry in ENVIRONMENTS.values()}}


def find(known: Mapping[str, Any], name: str, kind: str) -> Any:
    """`known[name]`, or a `ValueError` that suggests what was meant."""
    if name in known:
        return known[name]
    raise ValueError(f"unknown {kind} {name!r}{suggestion(name, known)}")


def suggestion(name: str, known: Iterable[str]) -> str:
    """A clause with near matches of `name`, or with all there are when none is near and they are few."""
    known = list(known)
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.6)
    if near:
        return f": did you mean {' or '.join(near)}?"
    return f": known are {', '.join(known)}" if len(known) <= 12 else ""
