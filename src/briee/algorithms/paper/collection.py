"""Data collection, Alg. 1, l. 4."""

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import PRNGKeyArray

from briee.algorithms.paper.buffers import Transitions
from briee.protocols import Policy, Sampler
from briee.rollout.trajectories import Trajectories


def collect_deviations(sampler: Sampler, policy: Policy, key: PRNGKeyArray, episodes_per_level: int):
    """Alg. 1, l. 4 for all levels at once.

    An episode that deviates at level h adds (s ~ d_h, uniform a, s') to D_h and its next transition, after
    two uniform actions, to D'_{h+1}. Returns the new rows [H, 2 m] and the trajectories [H m].
    """
    H, m = sampler.horizon, episodes_per_level
    deviation = jnp.repeat(jnp.arange(H, dtype=jnp.int32), m)
    trajectories = sampler.rollout(policy, key, H * m, deviation)
    seen = jnp.arange(H + 1) <= deviation[:, None] + 2
    trajectories = replace(trajectories, latent=jnp.where(seen, trajectories.latent, -1))
    return _rows_of_deviations(trajectories, H, m), trajectories


@eqx.filter_jit
def _rows_of_deviations(trajectories: Trajectories, H: int, m: int) -> Transitions:
    grouped = jax.tree.map(lambda x: x.reshape(H, m, *x.shape[1:]), trajectories)
    level = jnp.arange(H)

    def take(group, valid, on_policy):
        """The transition at each level h, from the episodes that first deviated at level group[h]."""
        return Transitions(
            observation=grouped.observation[group, :, level],
            action=grouped.action[group, :, level],
            reward=grouped.reward[group, :, level],
            next_observation=grouped.observation[group, :, level + 1],
            on_policy=jnp.full((H, m), on_policy),
            valid=jnp.broadcast_to(valid[:, None], (H, m)),
        )

    one = take(level, jnp.ones(H, bool), True)  # D_h
    two = take(level - 1, level > 0, False)  # D'_h, which level 0 does not have
    return jax.tree.map(lambda a, b: jnp.concatenate([a, b], axis=1), one, two)


def all_rows(trajectories: Trajectories) -> Transitions:
    """All transitions of full episodes, by level: [H, E, ...]."""
    levels = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), trajectories)
    seen, yes = levels.observation, jnp.ones(levels.action.shape, bool)
    return Transitions(seen[:-1], levels.action, levels.reward, seen[1:], on_policy=yes, valid=yes)


def deviation_steps(horizon: int, episodes_per_level: int) -> int:
    """Environment steps of `collect_deviations`; an episode stops after its second uniform action."""
    return episodes_per_level * sum(min(h + 2, horizon) for h in range(horizon))
