"""An environment and settings that learn little, but fast."""

from dataclasses import replace
from typing import Any

import gymnasium as gym

from briee.algorithms.paper.config import BrieeConfig

H, A = 2, 3


QUIET: dict[str, Any] = {"progress": False, "until_solved": False}


def tiny(horizon: int = H) -> BrieeConfig:
    """Settings that learn little, but fast."""
    config = BrieeConfig.paper(horizon)
    few = {"feature_steps": 4, "discriminator_steps": 4, "feature_batch": 32, "discriminator_batch": 32}
    return replace(
        config,
        collect=replace(config.collect, buffer_size=200, episodes_per_level=20),
        replearn=replace(config.replearn, hidden_sizes=(8,), rounds=2, **few),
        workers=1,
    )


def make_env(num_envs: int = 4) -> gym.vector.VectorEnv:
    return gym.make_vec("briee/CombinationLock-v0", num_envs=num_envs, horizon=H, num_actions=A)
