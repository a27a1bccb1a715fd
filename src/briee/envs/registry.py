"""All environments of this package: name, Gymnasium id, defaults and summary; and facts that
follow from a name. Imports no JAX before a class is loaded.

To add an environment, write its class in a module of this package and add one entry to `ENVIRONMENTS`.
"""

import importlib
import inspect
import math
import operator
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from gymnasium.envs import registration

from briee.compute import prepare_process

if TYPE_CHECKING:
    from briee.protocols import Environment


KINDS = {"int": "a whole number", "float": "a finite number", "bool": "True or False", "str": "a word"}
"""The types of arguments that are checked, in words."""


class EnvironmentEntry(NamedTuple):
    """One registered environment."""

    id: str
    """Gymnasium id."""
    path: str
    """Location of its class, as "module:Class"."""
    defaults: Mapping[str, Any]
    """Default arguments, `horizon` among them; a value may be a function of the horizon."""
    summary: str
    """One sentence for listings."""
    dense: bool = False
    """Whether every good step is rewarded, not only the last one."""

    @property
    def horizon(self) -> int:
        """Default number of steps per episode."""
        return self.defaults["horizon"]

    @property
    def constructor(self) -> Callable[..., Any]:
        """The class; importing it imports JAX."""
        module, _, name = self.path.partition(":")
        return getattr(importlib.import_module(module), name)


_LOCK = "briee.envs.lock:CombinationLock"
_FINITE = "briee.envs.finite_block:FiniteBlockMDP"

ENVIRONMENTS: dict[str, EnvironmentEntry] = {
    "lock": EnvironmentEntry(
        "briee/CombinationLock-v0",
        _LOCK,
        {"horizon": 6},
        "reward 1 at the end, anti-shaped on the way (Section 5)",
    ),
    "lock-dense": EnvironmentEntry(
        "briee/CombinationLockDense-v0",
        _LOCK,
        {"horizon": 30, "step_reward": 0.1, "anti_reward": 0.0},
        "0.1 per good step, 1 at the end",
        dense=True,
    ),
    "lock-simplex": EnvironmentEntry(
        "briee/CombinationLockSimplex-v0",
        _LOCK,
        {"horizon": 30, "temperature": 0.2},
        "a low-rank MDP: the latent state is resampled from the observation before each step",
    ),
    "lock-homer": EnvironmentEntry(
        "briee/CombinationLockHomer-v0",
        _LOCK,
        {"horizon": 6, "final_reward": 5.0, "step_reward": lambda horizon: -1.0 / max(horizon - 1, 1)},
        "HOMER's rewards: 5 at the end, -1/(H-1) per good step before",
    ),
    "random-block": EnvironmentEntry(
        "briee/RandomBlockMDP-v0",
        "briee.envs.random_block:RandomBlockMDP",
        {"horizon": 5},
        "random latent tables, rewards in late levels, a random rotation per level",
    ),
    "finite-block": EnvironmentEntry(
        "briee/FiniteBlockMDP-v0",
        _FINITE,
        {"horizon": 3},
        "finitely many observations, as one-hot vectors: what the algorithm theory needs",
    ),
    "finite-lock": EnvironmentEntry(
        "briee/FiniteLock-v0",
        _FINITE,
        {"horizon": 3, "lock": True},
        "the lock with finitely many observations",
    ),
}
"""By short name."""

SHORT_NAMES = {name: name for name in ENVIRONMENTS} | {entry.id: name for name, entry in ENVIRONMENTS.items()}
"""Short name by short name or Gymnasium id."""


def registered(env: str) -> EnvironmentEntry | None:
    """The entry of this short name or Gymnasium id; None for environments of other projects."""
    return ENVIRONMENTS[SHORT_NAMES[env]] if env in SHORT_NAMES else None


def make(name: str, **kwargs: Any) -> Any:
    """The pure environment with this short name or Gymnasium id, e.g. `make("lock", horizon=12)`."""
    entry = registered(name)
    if entry is None:
        raise ValueError(f"unknown environment {name!r}: pure environments are {', '.join(ENVIRONMENTS)}")
    constructor = entry.constructor
    known = list(inspect.signature(constructor).parameters)
    for argument in kwargs:
        if argument not in known:
            raise ValueError(f"{name!r} has no argument {argument!r}: it has {', '.join(known)}")
    check_values(constructor, kwargs)
    arguments = {**entry.defaults, **kwargs}
    for key, value in arguments.items():
        if callable(value):
            arguments[key] = value(arguments["horizon"])
    prepare_process()  # the environment's tables are often the first that JAX computes
    return constructor(**arguments)


def check_values(constructor: Callable[..., Any], values: Mapping[str, Any]) -> None:
    """Raise `ValueError` for a value whose type differs from the constructor's annotation."""
    parameters = inspect.signature(constructor).parameters
    for name, value in values.items():
        kind, *other = str(parameters[name].annotation).split(" | ")
        if kind in KINDS and not (_is(kind, value) or (value is None and "None" in other)):
            raise ValueError(f"{name} must be {KINDS[kind]}{' or None' if other else ''}, got {value!r}")


def _is(kind: str, value: Any) -> bool:
    if kind in ("bool", "str") or isinstance(value, bool | str):
        return type(value).__name__ == kind
    try:
        return math.isfinite(operator.index(value) if kind == "int" else float(value))
    except (TypeError, ValueError):
        return False


class Description(NamedTuple):
    """One environment with given arguments, for listings."""

    name: str
    id: str
    horizon: int
    num_actions: int
    num_latents: int
    observation_shape: tuple[int, ...]
    optimal_return: float
    summary: str


def describe(name: str, **kwargs: Any) -> Description:
    """Describe one environment, by short name or Gymnasium id."""
    pure, short = make(name, **kwargs), SHORT_NAMES[name]
    sizes = (pure.horizon, pure.num_actions, pure.num_latents, pure.observation_shape)
    return Description(
        short, ENVIRONMENTS[short].id, *sizes, pure.optimal_return, ENVIRONMENTS[short].summary
    )


def describe_all() -> list[Description]:
    """Describe every registered environment with its default arguments."""
    return [describe(name) for name in ENVIRONMENTS]


def register() -> None:
    """Register all ids with Gymnasium that are not registered yet."""
    for name, entry in ENVIRONMENTS.items():
        if entry.id not in registration.registry:
            registration.register(
                id=entry.id,
                entry_point="briee.envs.gym_shells:make_scalar",
                vector_entry_point="briee.envs.gym_shells:make_vector",
                kwargs={"name": name},
            )


def has_dense_rewards(env: "str | Environment", arguments: Mapping[str, Any]) -> bool:
    """Whether an environment is known to reward every good step; False for those of other projects."""
    if not isinstance(env, str):
        from briee.envs.block import is_dense

        return is_dense(env)
    entry, step_reward = registered(env), arguments.get("step_reward")
    if entry is None:
        return False
    return step_reward > 0 if isinstance(step_reward, int | float) else entry.dense


def instance_argument(env: str) -> str | None:
    """The argument that seeds the environment itself, as `instance_seed` draws the combination of a lock."""
    entry = registered(env)
    if entry is None:
        from briee.envs.adapters import third_party

        return third_party.instance_argument(env)
    parameters = inspect.signature(entry.constructor).parameters
    return "instance_seed" if "instance_seed" in parameters else None
