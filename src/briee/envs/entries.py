"""The registered environments by short name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from .finite_block import FiniteBlockMDP
from .lock import CombinationLock
from .random_block import RandomBlockMDP


class Entry(NamedTuple):
    """One registered environment: Gymnasium id, constructor, defaults, one sentence for listings.

    A default may be a function of the horizon.
    """

    id: str
    constructor: Callable[..., Any]
    defaults: dict[str, Any]
    summary: str


ENVIRONMENTS: dict[str, Entry] = {
    "lock": Entry(
        "briee/CombinationLock-v0",
        CombinationLock,
        {"horizon": 6},
        "reward 1 at the end, anti-shaped on the way (Section 5)",
    ),
    "lock-dense": Entry(
        "briee/CombinationLockDense-v0",
        CombinationLock,
        {"horizon": 30, "step_reward": 0.1, "anti_reward": 0.0},
        "0.1 per good step, 1 at the end",
    ),
    "lock-simplex": Entry(
        "briee/CombinationLockSimplex-v0",
        CombinationLock,
        {"horizon": 30, "temperature": 0.2},
        "a low-rank MDP: the latent state is resampled from the observation before each step",
    ),
    "lock-homer": Entry(
        "briee/CombinationLockHomer-v0",
        CombinationLock,
        {"horizon": 6, "final_reward": 5.0, "step_reward": lambda horizon: -1.0 / max(horizon - 1, 1)},
        "HOMER's rewards: 5 at the end, -1/(H-1) per good step before",
    ),
    "random-block": Entry(
        "briee/RandomBlockMDP-v0",
        RandomBlockMDP,
        {"horizon": 5},
        "random latent tables, rewards in late levels, a random rotation per level",
    ),
    "finite-block": Entry(
        "briee/FiniteBlockMDP-v0",
        FiniteBlockMDP,
        {"horizon": 3},
        "finitely many observations, as one-hot vectors: what the preset theory needs",
    ),
    "finite-lock": Entry(
        "briee/FiniteLock-v0",
        FiniteBlockMDP,
        {"horizon": 3, "lock": True},
        "the lock with finitely many observations",
    ),
}
