"""The bonus of Algorithm 1, line 6, as its loop computes it."""

import jax

from briee.algorithms.bonus import Bonus, exploration_bonus
from briee.algorithms.paper.buffers import Transitions
from briee.algorithms.paper.config import BonusConfig


def bonus_of(data: Transitions, decoder, config: BonusConfig, lam: float, num_actions: int) -> Bonus:
    """Line 6 of Algorithm 1 on this data."""
    psi = jax.lax.map(lambda level: jax.vmap(level[0])(level[1]), (decoder, data.observation))
    counted = data.counted(config.covariance)
    return exploration_bonus(psi, data.action, counted, num_actions, lam, config.alpha, config.cap)
