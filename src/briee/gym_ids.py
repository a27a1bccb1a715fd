"""The environments' Gymnasium ids, registered without importing JAX."""

from typing import NamedTuple

from gymnasium.envs import registration


class Registered(NamedTuple):
    """What is to be known of an environment before it is made."""

    id: str
    horizon: int
    """Steps per episode where none are given."""
    dense: bool = False
    """Whether every good step is rewarded, not the last alone."""


REGISTERED = {
    "lock": Registered("briee/CombinationLock-v0", 6),
    "lock-dense": Registered("briee/CombinationLockDense-v0", 30, dense=True),
    "lock-simplex": Registered("briee/CombinationLockSimplex-v0", 30),
    "lock-homer": Registered("briee/CombinationLockHomer-v0", 6),
    "random-block": Registered("briee/RandomBlockMDP-v0", 5),
    "finite-block": Registered("briee/FiniteBlockMDP-v0", 3),
    "finite-lock": Registered("briee/FiniteLock-v0", 3),
}
"""By short name; `briee.envs.ENVIRONMENTS` has the rest."""
IDS = {name: about.id for name, about in REGISTERED.items()}
"""Gymnasium ids by short name."""


def registered(env: str) -> Registered | None:
    """What is known of the environment with this short name or Gymnasium id, if it is one of this package."""
    return REGISTERED.get({about.id: name for name, about in REGISTERED.items()}.get(env, env))


def register() -> None:
    """Register every id that is not registered yet."""
    for name, identifier in IDS.items():
        if identifier not in registration.registry:
            registration.register(
                id=identifier,
                entry_point="briee.envs.registration:make_scalar",
                vector_entry_point="briee.envs.registration:make_vector",
                kwargs={"name": name},
            )
