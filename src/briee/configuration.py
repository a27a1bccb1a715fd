"""Configurations: checks of fields, the evaluation rule, changed fields, JSON. Imports no JAX."""

import dataclasses
import math
import numbers
import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, SupportsIndex, TypeVar

from briee.errors import RunError

WHOLE = ("int", "int | None", "<class 'int'>")
"""Annotations of fields that are whole numbers."""


def require(config: object, condition: str, *names: str) -> None:
    """Check that the named fields are None or satisfy a condition such as ">= 1"."""
    sign, bound = condition.split()
    holds = {
        ">=": lambda x: x >= float(bound),
        ">": lambda x: x > float(bound),
        "<=": lambda x: x <= float(bound),
    }[sign]
    types = {field.name: str(field.type) for field in dataclasses.fields(config)}  # type: ignore[arg-type]
    for name in names:
        value = getattr(config, name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, numbers.Real):
            raise ValueError(f"{name} must be a number {condition}, got {value!r}")
        if types[name] in WHOLE and not isinstance(value, SupportsIndex):
            raise ValueError(f"{name} must be a whole number {condition}, got {value!r}")
        if not (math.isfinite(value) and holds(value)):
            raise ValueError(f"{name} must be {condition}, got {value}")


def require_choice(config: object, **choices: tuple[str, ...]) -> None:
    """Check that each named field is one of its choices."""
    for name, known in choices.items():
        if getattr(config, name) not in known:
            raise ValueError(f"{name} must be one of {', '.join(known)}, got {getattr(config, name)!r}")


@dataclass(frozen=True)
class EvaluationConfig:
    """Evaluation of the policy after each update (Appendix E)."""

    episodes: int = 20
    """Evaluation episodes after each policy update (Appendix E, text)."""
    streak: int = 5
    """Consecutive updates that must all reach the optimal return before a run counts as solved (Appendix E,
    text)."""
    tolerance: float | None = None
    """How far the mean return may stay below the optimum, for environments in which even an optimal policy
    sometimes fails. None: every episode must reach the optimum, as in the paper."""
    target_return: float | None = None
    """The return that counts as optimal; None: the optimal return of the environment, if that is known."""
    policy: Literal["greedy", "optimistic", "mixture"] = "greedy"
    """Evaluate the plan without the bonus, the exploring plan as the released code does, or the mixture of
    past policies of Theorem 1."""

    def __post_init__(self) -> None:
        require(self, ">= 1", "episodes", "streak")
        require(self, ">= 0", "tolerance")
        require(self, "> -inf", "target_return")
        require_choice(self, policy=("greedy", "optimistic", "mixture"))


class AlgorithmConfig:
    """Base class of the configurations of algorithms, which are frozen dataclasses."""

    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]
    evaluation: EvaluationConfig
    """Evaluation of the policy."""
    free_fields: ClassVar[tuple[str, ...]] = ()
    """Fields that change no result."""
    unused: ClassVar[tuple[str, ...]] = ()
    """Fields that the algorithm does not use and refuses to change."""
    finds_states: ClassVar[bool] = False
    """Whether `num_latents` is only a limit, because the number of latent states is found."""
    default_episodes: ClassVar[int | None] = None
    """Default training budget; None: that of the command line."""

    @property
    def warmup_episodes(self) -> int:
        """Training episodes before the first update."""
        return 0


C = TypeVar("C", bound=AlgorithmConfig)


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


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested JSON objects as one dict with dotted names."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        flat |= flatten(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {prefix + key: value}
    return flat


def check_seed(seed: Any) -> int:
    """The seed as an int; `ValueError` if it is none."""
    if isinstance(seed, bool) or not isinstance(seed, SupportsIndex) or not 0 <= int(seed) < 2**32:
        raise ValueError(f"seed must be a whole number from 0 to {2**32 - 1}, got {seed!r}")
    return int(seed)


def whole_number(name: str, value: Any, least: int = 1) -> int:
    """The value as an int, 1e4 included; `ValueError` if it is none or smaller than `least`."""
    given: Any = int(value) if isinstance(value, float) and value.is_integer() else value
    try:
        number = operator.index(None if isinstance(given, bool) else given)  # pyright: ignore
    except TypeError:
        raise ValueError(f"{name} must be a whole number, got {value!r}") from None
    if number < least:
        raise ValueError(f"{name} must be >= {least}, got {value}")
    return number


def with_value(config: C, field: str, value: Any, owner: str) -> C:
    """A copy of `config` with another value of `field`, which may belong to one of its parts."""
    if field == "num_latents":
        value = whole_number(field, value)
    for name in flatten(dataclasses.asdict(config)):
        if name.rpartition(".")[2] == field:
            return changed(config, name, value)
    if (field, value) == ("decoder", "linear"):  # the only decoder of algorithms without a choice
        return config
    raise ValueError(
        f"{owner} has no {field}, so it cannot be {value!r}: leave it out or choose another preset"
    )


def changed(config: Any, name: str, value: Any) -> Any:
    """A copy of nested frozen dataclasses with another value of one field, given by its dotted name."""
    name, _, rest = name.partition(".")
    return dataclasses.replace(
        config, **{name: changed(getattr(config, name), rest, value) if rest else value}
    )
