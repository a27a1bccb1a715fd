"""PSDP (Bagnell et al. 2003), policy search by dynamic programming: a planner over any policy cover.

    for h = last - 1, ..., 0:
        roll in to level h with a uniformly drawn member of the cover of h, take one uniform action there,
        roll out with the learned pi_{h+1}, ..., pi_{last-1};
        regress the objective on (x_h, a): q_h;  pi_h = argmax_a q_h.

The objective is the reward to go, or a function of the observation after the last step, such as the
indicator of an abstract state.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
from jaxtyping import Array, Float, PRNGKeyArray

from briee.algorithms.baselines.fitting import Layers, regress, regressor_sizes, zero_layers
from briee.algorithms.baselines.rival_config import PsdpConfig, RegressionConfig
from briee.algorithms.baselines.roll_in import Gathered, QPolicy, gather
from briee.numerics.keys import stream
from briee.protocols import Sampler

Objective = Callable[[Gathered], Float[Array, " E"]]
"""The value of each row."""


def reward_to_go(rows: Gathered) -> Float[Array, " E"]:
    """The objective of the task itself."""
    return rows.to_go


def inputs_of(sampler: Sampler) -> int:
    """d, the numbers of a flattened observation."""
    return math.prod(sampler.observation_shape)


def no_policy(sampler: Sampler, config: RegressionConfig, *leading: int) -> Layers:
    """Regressors of all levels that are zero: every action is as good as any other."""
    sizes = regressor_sizes(config, inputs_of(sampler), sampler.num_actions)
    return zero_layers(sizes, *leading, sampler.horizon)


def psdp_level(
    sampler: Sampler,
    cover: Any,
    q: Layers,
    level: int,
    last: int,
    key: PRNGKeyArray,
    config: PsdpConfig,
    objective: Objective = reward_to_go,
) -> tuple[Layers, Gathered, int]:
    """`q` with the regressor of one level learned, the episodes it took, and the steps of each."""
    rows, steps = gather(sampler, cover, level, key, config.episodes, QPolicy(q), last)
    fitted = regress(
        config.regression, rows.x, rows.action, objective(rows), sampler.num_actions, stream(key, "regress")
    )
    return jax.tree.map(lambda all_levels, own: all_levels.at[level].set(own), q, fitted), rows, steps


def psdp(
    sampler: Sampler,
    cover_of: Callable[[int], Any],
    last: int,
    key: PRNGKeyArray,
    config: PsdpConfig,
    objective: Objective = reward_to_go,
) -> tuple[Layers, list[tuple[Gathered, int]]]:
    """All levels before `last`, from the last to the first, and the episodes of each."""
    q, played = no_policy(sampler, config.regression), []
    for level in reversed(range(last)):
        own = stream(key, "psdp", level)
        q, *episodes = psdp_level(sampler, cover_of(level), q, level, last, own, config, objective)
        played.append(tuple(episodes))
    return q, played
