"""What there is: one row per registered environment, for listings and the documentation."""

from __future__ import annotations

from typing import NamedTuple

from .registration import ENVIRONMENTS, make


class Description(NamedTuple):
    """One environment, as it is with the arguments given."""

    name: str
    id: str
    horizon: int
    num_actions: int
    num_latents: int
    observation_shape: tuple[int, ...]
    optimal_return: float
    summary: str


def describe(name: str, **kwargs) -> Description:
    """The numbers of one environment, by short name or Gymnasium id."""
    pure = make(name, **kwargs)
    short = next(key for key, entry in ENVIRONMENTS.items() if name in (key, entry.id))
    return Description(
        name=short,
        id=ENVIRONMENTS[short].id,
        horizon=pure.horizon,
        num_actions=pure.num_actions,
        num_latents=pure.num_latents,
        observation_shape=pure.observation_shape,
        optimal_return=pure.optimal_return,
        summary=ENVIRONMENTS[short].summary,
    )


def describe_all() -> list[Description]:
    """Every registered environment with its default arguments."""
    return [describe(name) for name in ENVIRONMENTS]
