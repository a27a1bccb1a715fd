"""Facts about an environment that follow from its name, before it is made.

Imports JAX only for environments of this package.
"""

import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from briee.envs.adapters import third_party
from briee.envs.registry import registered

if TYPE_CHECKING:
    from briee.protocols import Environment


def has_dense_rewards(env: "str | Environment", arguments: Mapping[str, Any]) -> bool:
    """Whether an environment is known to reward every good step; False for those of other projects."""
    if not isinstance(env, str):
        from briee.envs.knowledge import is_dense

        return is_dense(env)
    entry, step_reward = registered(env), arguments.get("step_reward")
    if entry is None:
        return False
    return step_reward > 0 if isinstance(step_reward, int | float) else entry.dense


def instance_argument(env: str) -> str | None:
    """The argument that seeds the environment itself, as `instance_seed` draws the combination of a lock."""
    entry = registered(env)
    if entry is None:
        return third_party.instance_argument(env)
    parameters = inspect.signature(entry.constructor).parameters
    return "instance_seed" if "instance_seed" in parameters else None
