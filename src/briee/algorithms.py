"""Algorithms and their presets by name, and all that a run needs, built from its `RunSpec`.

Imports no JAX before something is built.
"""

import dataclasses
import importlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from briee.baselines import BASELINES
from briee.config import BrieeConfig
from briee.efficient_config import EfficientConfig
from briee.gym_ids import registered
from briee.rundir import RunSpec
from briee.stationary_config import StationaryConfig
from briee.suggest import suggestion
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
    "stationary": Entry(
        "one representation for all levels, pooled data, a discounted plan",
        "briee.stationary:Stationary",
        {"efficient": StationaryConfig.efficient},
    ),
}
ALGORITHMS |= {name: Entry(*about) for name, about in BASELINES.items()}
DEFAULT_ALGORITHM, DEFAULT_PRESET = "briee", "efficient"
HOST_ENVIRONMENTS = 64
"""Copies of an environment that are stepped together where it cannot be compiled."""


def preset(
    algorithm: str, name: str, horizon: int, env: Any = "lock", arguments: Mapping[str, Any] | None = None
) -> Any:
    """The configuration that a preset gives an algorithm, a frozen dataclass; unknown names: `ValueError`.

    `env` is the name of an environment, with its `arguments`, or a pure environment.
    """
    presets = find(ALGORITHMS, algorithm, "algorithm").presets
    dense = has_dense_rewards(env, arguments or {})
    return find(presets, name, f"preset of {algorithm}")(horizon=horizon, dense=dense)


def has_dense_rewards(env: Any, arguments: Mapping[str, Any]) -> bool:
    """Whether an environment is known to reward every good step; of others' environments nobody knows."""
    if not isinstance(env, str):
        return bool(getattr(env, "dense", False))
    about, step_reward = registered(env), arguments.get("step_reward")
    if about is None:
        return False
    return step_reward > 0 if isinstance(step_reward, int | float) else about.dense


def default_preset(algorithm: str) -> str:
    """The preset of an algorithm where none is named."""
    presets = find(ALGORITHMS, algorithm, "algorithm").presets
    return DEFAULT_PRESET if DEFAULT_PRESET in presets else next(iter(presets))


def build(spec: RunSpec) -> Any:
    """The algorithm of a run, on its environment."""
    module, _, name = find(ALGORITHMS, spec.algorithm, "algorithm").home(spec.preset).partition(":")
    sampler = make_sampler(spec.env, spec.horizon, spec.env_arguments, spec.rich)
    return getattr(importlib.import_module(module), name)(sampler, spec.config)


def make_sampler(
    env: str, horizon: int | None, arguments: Mapping[str, Any], rich: Mapping[str, Any] | None = None
) -> Any:
    """A sampler for an environment by its name; `ValueError` says what is wrong.

    This package's environments, by short name or Gymnasium id, are compiled into the rollout, all others are
    stepped on the host. `rich`: arguments of `RichObservation`, through which the environment is then seen.
    """
    from gymnasium.vector import SyncVectorEnv

    from briee.envs import make, rich_observation
    from briee.envs.host import HostSampler
    from briee.foreign import make_one
    from briee.rollout import ScanSampler

    if env in pure_environments():
        if rich:
            raise ValueError(f"{env} has rich observations already: --rich is for Discrete ones")
        return ScanSampler(make(env, horizon=horizon, **arguments))

    def make_copy():
        one = make_one(env, arguments)
        return rich_observation(one, rich) if rich else one

    return HostSampler(SyncVectorEnv([make_copy] * HOST_ENVIRONMENTS), horizon)


def with_instance(spec: RunSpec) -> RunSpec:
    """`spec` with the seeds that draw the environment itself: the run's own where none is given."""
    name = instance_argument(spec.env)
    return dataclasses.replace(
        spec,
        env_arguments={name: spec.seed, **spec.env_arguments} if name else spec.env_arguments,
        rich={"instance_seed": spec.seed, **spec.rich} if spec.rich else spec.rich,
    )


def instance_argument(env: str) -> str | None:
    """The argument that draws the environment itself, as `instance_seed` draws the combination of a lock."""
    from briee import foreign

    entries = pure_environments()
    if env not in entries:
        return foreign.instance_argument(env)
    parameters = inspect.signature(entries[env].constructor).parameters
    return "instance_seed" if "instance_seed" in parameters else None


def pure_environments() -> dict[str, Any]:
    """Entries of the pure environments by short name and by Gymnasium id."""
    from briee.envs import ENVIRONMENTS

    return {**ENVIRONMENTS, **{entry.id: entry for entry in ENVIRONMENTS.values()}}


def find(known: Mapping[str, Any], name: str, kind: str) -> Any:
    """`known[name]`, or a `ValueError` that suggests what was meant."""
    if name in known:
        return known[name]
    raise ValueError(f"unknown {kind} {name!r}{suggestion(name, known)}")
