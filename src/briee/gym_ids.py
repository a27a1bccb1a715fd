"""The environments' Gymnasium ids, registered without importing JAX."""

from gymnasium.envs import registration

IDS = {
    "lock": "briee/CombinationLock-v0",
    "lock-dense": "briee/CombinationLockDense-v0",
    "lock-simplex": "briee/CombinationLockSimplex-v0",
    "lock-homer": "briee/CombinationLockHomer-v0",
    "random-block": "briee/RandomBlockMDP-v0",
    "finite-block": "briee/FiniteBlockMDP-v0",
    "finite-lock": "briee/FiniteLock-v0",
}
"""Gymnasium ids by short name; `briee.envs.ENVIRONMENTS` has the rest."""


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
