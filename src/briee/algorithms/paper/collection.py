"""Data collection, Alg. 1, l. 4."""

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, PRNGKeyArray

from briee.algorithms.paper.buffers import Transitions
from briee.compute import quick_jit
from briee.numerics.keys import stream
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


def collect_episodes(
    sampler: Sampler, policy: Policy, key: PRNGKeyArray, episodes: int, deviating: float
) -> tuple[Transitions, Trajectories]:
    """Alg. 1, l. 4 with whole episodes, of which every transition is kept: the rows [H, E].

    A share `deviating` of the episodes deviates, each at a uniform level d; its transitions at the levels d
    and d + 1 belong to D_d and D'_{d+1}. All others follow the policy.
    """
    deviation = _deviations(stream(key, "deviation"), sampler.horizon, episodes, deviating)
    trajectories = sampler.rollout(policy, key, episodes, deviation, whole=True)
    return _rows_of_episodes(trajectories, deviation), trajectories


@quick_jit
def _deviations(key: PRNGKeyArray, H: int, episodes: int, deviating: float) -> Int[Array, " E"]:
    """Levels at which episodes deviate; level H, which never comes, for those that do not."""
    level_key, share_key = jax.random.split(key)
    level = jax.random.randint(level_key, (episodes,), 0, H)
    return jnp.where(jax.random.uniform(share_key, (episodes,)) < deviating, level, H)


@quick_jit
def _rows_of_episodes(trajectories: Trajectories, deviation: Int[Array, " E"]) -> Transitions:
    rows = all_rows(trajectories)
    since = jnp.arange(rows.action.shape[0])[:, None] - deviation
    return replace(rows, on_policy=since == 0, roll_in=(since != 0) & (since != 1))


def all_rows(trajectories: Trajectories) -> Transitions:
    """All transitions of full episodes, by level: [H, E, ...]."""
    levels = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), trajectories)
    seen, yes = levels.observation, jnp.ones(levels.action.shape, bool)
    return Transitions(seen[:-1], levels.action, levels.reward, seen[1:], on_policy=yes, valid=yes)


def deviation_steps(horizon: int, episodes_per_level: int) -> int:
    """Environment steps of `collect_deviations`; an episode stops after its second uniform action."""
    return episodes_per_level * sum(min(h + 2, horizon) for h in range(horizon))
