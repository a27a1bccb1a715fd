"""An environment and settings that learn little, but fast; line 6 of Algorithm 1 on given data."""

from dataclasses import replace
from typing import Any

import gymnasium as gym
import jax

from briee.algorithms.bonus import Bonus, exploration_bonus
from briee.algorithms.paper.buffers import Transitions
from briee.algorithms.paper.config import BonusConfig, BrieeConfig

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


PRACTICAL_READS = {
    "collect.deviating", "collect.rounds", "replearn.growth", "held_out.directions", "held_out.evaluations",
    "held_out.folds", "held_out.gain", "held_out.least_rows", "held_out.passes", "held_out.rival_evaluations",
    "held_out.rounds", "held_out.rows", "held_out.singles", "held_out.softness", "held_out.white_softness",
    "held_out.clusters", "held_out.share", "held_out.temperatures", "held_out.z",
}  # fmt: skip
"""Fields that only the preset `practical` reads: RepLearn on held-out rows."""
PAPER_READS = {
    "collect.episodes_per_level", "replearn.ascent", "replearn.discriminator_batch",
    "replearn.discriminator_learning_rate", "replearn.discriminator_steps", "replearn.ell",
    "replearn.feature_batch", "replearn.feature_learning_rate", "replearn.feature_steps",
    "replearn.first_player", "replearn.hidden_sizes", "replearn.lam", "replearn.momentum",
    "replearn.patience", "replearn.rounds", "replearn.start", "replearn.wait_for_rival",
}  # fmt: skip
"""Fields that only the presets `paper` and `released` read: RepLearn by gradient steps."""


def bonus_of(data: Transitions, decoder, config: BonusConfig, lam: float, num_actions: int) -> Bonus:
    """Line 6 of Algorithm 1 on this data."""
    psi = jax.lax.map(lambda level: jax.vmap(level[0])(level[1]), (decoder, data.observation))
    counted = data.counted(config.covariance)
    return exploration_bonus(psi, data.action, counted, num_actions, lam, config.alpha, config.cap)
