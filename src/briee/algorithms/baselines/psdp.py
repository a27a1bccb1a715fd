"""PSDP (Bagnell et al. 2003), policy search by dynamic programming: a planner over any policy cover.

    for h = last - 1, ..., 0:
        roll in to level h with a uniformly drawn member of the cover of h, take one uniform action there,
        roll out with the learned pi_{h+1}, ..., pi_{last-1};
        regress the objective on (x_h, a): q_h;  pi_h = argmax_a q_h.

The objective is the reward to go, or a function of the observation after the last step, such as the
indicator of an abstract state.

Roll-ins are episodes that follow a member of a cover, take one uniform action, and go on with a policy. A
cover is a set of policies for one level. For a pure environment the episodes are one compiled loop that
stops at the last level needed; any other environment is stepped by its sampler, with the same random keys.
Symbols: E episodes, d numbers of a flattened observation, K members of a cover.
"""

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key, PRNGKeyArray

from briee.algorithms.baselines.fitting import Layers, regress, regressor_sizes, zero_layers
from briee.algorithms.baselines.rival_config import PsdpConfig, RegressionConfig
from briee.compute import available_cores
from briee.envs.block import episode_start, episode_step
from briee.numerics.keys import stream, unrolled
from briee.numerics.linalg import at_level
from briee.protocols import Policy, Sampler
from briee.rollout.policies import MixturePolicy, UniformPolicy
from briee.rollout.samplers import MEMBER, ScanSampler, chunk_size, deepest_good_level, episode_keys
from briee.rollout.trajectories import Trajectories


def greedy_action(values: Float[Array, " A"], key: PRNGKeyArray) -> Int[Array, ""]:
    """argmax, ties broken at random with one uniform number."""
    tied = jnp.cumsum(values >= values.max())
    return jnp.sum(jax.random.uniform(key) * tied[-1] >= tied).astype(jnp.int32)


class QPolicy(eqx.Module):
    """pi_h(x) = argmax_a q_h(x)[a], with one regressor per level; where q_h is zero, actions are uniform."""

    q: Layers

    def __call__(self, level, observation, key) -> Int[Array, ""]:
        return greedy_action(at_level(self.q, level)(observation.reshape(-1)), key)


class Members(eqx.Module):
    """A cover of K policies, each with one regressor per level: the leading axes of `q` are K and H."""

    q: Layers
    size: Int[Array, ""]

    def act(self, member, level, observation, key) -> Int[Array, ""]:
        """The action of a member; all members are evaluated, which is one matrix product for a batch."""
        of_level = jax.tree.map(lambda leaf: leaf[:, level], self.q)
        values = jax.vmap(lambda q: q(observation.reshape(-1)))(of_level)
        return greedy_action(values[member], key)


class Chains(eqx.Module):
    """A cover of K chains: at level t, member k plays head `chain[k, t]` of that level's network."""

    heads: Layers
    chain: Int[Array, "K H"]
    size: Int[Array, ""]

    def act(self, member, level, observation, key) -> Int[Array, ""]:
        """The action of a member."""
        values = at_level(self.heads, level)(observation.reshape(-1)).reshape(self.chain.shape[0], -1)
        return greedy_action(values[self.chain[member, level]], key)


def chain_of(parent: Int[Array, "H K"], level: int | Int[Array, ""]) -> Int[Array, "K H"]:
    """The heads that each cover policy of `level` plays: head k at the step before, then its parents'."""
    H, K = parent.shape

    def back(head, t):
        head = jnp.where(t + 1 < level, parent[jnp.minimum(t + 1, H - 1), head], head)
        return head, head

    _, chain = jax.lax.scan(back, jnp.arange(K), jnp.arange(H), reverse=True)
    return chain.T


class Detour(MixturePolicy):
    """A uniformly drawn member of the cover before `level`, one uniform action there, then `out`.

    The inherited `members` is the cover, and `size` the number of its members.
    """

    level: Int[Array, ""]
    out: Any
    num_actions: int = eqx.field(static=True)

    def draw(self, key: PRNGKeyArray) -> Policy:
        """The policy of one episode."""
        return _Detoured(self, jax.random.randint(key, (), 0, self.size))

    def uniform(self, key: PRNGKeyArray) -> Int[Array, ""]:
        """The action at `level`."""
        return jax.random.randint(key, (), 0, self.num_actions)

    def batch(self, level, seen, keys, member) -> Int[Array, " E"]:
        """The actions of E episodes at one level; only the policy whose turn it is, is evaluated."""
        keys = jax.vmap(lambda key: jax.random.split(jax.random.fold_in(key, level))[0])(keys)
        branches = [
            lambda: jax.vmap(self.members.act, (0, None, 0, 0))(member, level, seen, keys),
            lambda: jax.vmap(self.uniform)(keys),
            lambda: jax.vmap(self.out, (None, 0, 0))(level, seen, keys),
        ]
        branches = [lambda branch=branch: branch().astype(jnp.int32) for branch in branches]
        return jax.lax.switch(jnp.sign(level - self.level) + 1, branches)


class _Detoured(eqx.Module):
    detour: Detour
    member: Int[Array, ""]

    def __call__(self, level, observation, key) -> Int[Array, ""]:
        d = self.detour
        before = d.members.act(self.member, level, observation, key)
        there = jnp.where(level == d.level, d.uniform(key), d.out(level, observation, key))
        return jnp.where(level < d.level, before, there)


class Gathered(eqx.Module):
    """E episodes around the level of their detour, one row each."""

    x: Float[Array, "E d"]
    action: Int[Array, " E"]
    reward: Float[Array, " E"]
    """Reward of the step at that level."""
    next_x: Float[Array, "E d"]
    to_go: Float[Array, " E"]
    """Sum of the rewards from that level to the last one."""
    end: Float[Array, "E d"]
    """The observation after the last step."""
    total: Float[Array, " E"]
    """Sum of all rewards."""
    member: Int[Array, " E"]
    reached: Float[Array, " E"]
    """The deepest level at which an episode was still on the way to the goal; NaN if that is unknown."""


def gather(
    sampler: Sampler, cover: Any, level: int, key: PRNGKeyArray, episodes: int, out: Any = None, last=None
) -> tuple[Gathered, int]:
    """Episodes with a detour at `level` that stop after `last` steps (None: after the detour), and the
    number of steps taken in each."""
    H, A = sampler.horizon, sampler.num_actions
    last = level + 1 if last is None else last
    policy = Detour(cover, cover.size, jnp.int32(level), UniformPolicy(A) if out is None else out, A)
    if isinstance(sampler, ScanSampler):
        return _in_chunks(sampler.pure, policy, key, episodes, last), last
    # the sampler cuts an episode two steps after its deviation, which is beyond the rows used
    deviation = None if last == H else jnp.full(episodes, last)
    trajectories = sampler.rollout(policy, key, episodes, deviation)
    member = _members(key, episodes, policy)
    reached = jnp.full(episodes, deepest_good_level(sampler, trajectories))
    return _rows(trajectories, level, last, member, reached), min(last + 2, H) if last < H else H


def _in_chunks(pure, policy: Detour, key, episodes: int, last: int) -> Gathered:
    """Chunks of episodes, one per core at a time; the result does not depend on the number of cores."""
    size = chunk_size(episodes)
    chunks = -(-episodes // size)

    def run(chunk: int) -> Gathered:
        first = np.int32(min(chunk * size, episodes - size))
        return jax.block_until_ready(_play(pure, policy, key, first, size, np.int32(last)))

    if chunks == 1:
        return run(0)
    with ThreadPoolExecutor(available_cores()) as pool:
        parts = list(pool.map(run, range(chunks)))
    twice = chunks * size - episodes  # episodes that the last two chunks share
    join = lambda *leaves: jnp.asarray(np.concatenate([*leaves[:-1], leaves[-1][twice:]]))  # noqa: E731
    return jax.tree.map(join, *(jax.tree.map(np.asarray, part) for part in parts))


@eqx.filter_jit
def _play(pure, policy: Detour, key, first, size: int, last) -> Gathered:
    """Episodes `first`, `first` + 1, ... of the rollout of `key`, up to level `last`."""
    env_keys, policy_keys = episode_keys(unrolled(key), first + jnp.arange(size))
    member = _drawn(policy_keys, policy)
    state, seen = jax.vmap(episode_start, (None, 0))(pure, env_keys)
    zero, flat = jnp.zeros(size), lambda x: x.reshape(size, -1)
    rows = Gathered(
        flat(seen), jnp.zeros(size, jnp.int32), zero, flat(seen), zero, flat(seen), zero, member, zero
    )

    def step(t, carry):
        state, seen, rows = carry
        action = policy.batch(t, seen, policy_keys, member)
        state, after, reward, _ = jax.vmap(episode_step, (None, 0, 0, 0))(pure, state, action, env_keys)
        here = t == policy.level
        good = jax.vmap(lambda state: pure.good(pure.latent(state)))(state)
        rows = Gathered(
            x=jnp.where(here, flat(seen), rows.x),
            action=jnp.where(here, action, rows.action),
            reward=jnp.where(here, reward, rows.reward),
            next_x=jnp.where(here, flat(after), rows.next_x),
            to_go=rows.to_go + jnp.where(t >= policy.level, reward, 0.0),
            end=flat(after),
            total=rows.total + reward,
            member=member,
            reached=jnp.where(good, t + 1.0, rows.reached),
        )
        return state, after, rows

    return jax.lax.fori_loop(0, last, step, (state, seen, rows))[2]


def _drawn(policy_keys: Key[Array, " E"], policy: Detour) -> Int[Array, " E"]:
    """The member of each episode, as `choose_action` draws it."""
    draw = lambda key: jax.random.randint(jax.random.fold_in(key, MEMBER), (), 0, policy.size)  # noqa: E731
    return jax.vmap(draw)(policy_keys)


@eqx.filter_jit
def _members(key, episodes: int, policy: Detour) -> Int[Array, " E"]:
    return _drawn(episode_keys(key, jnp.arange(episodes))[1], policy)


def _rows(data: Trajectories, level: int, last: int, member, reached) -> Gathered:
    """The rows of complete trajectories."""
    data = jax.tree.map(jnp.asarray, data)
    flat = lambda t: data.observation[:, t].reshape(len(member), -1)  # noqa: E731
    return Gathered(
        x=flat(level),
        action=data.action[:, level],
        reward=data.reward[:, level],
        next_x=flat(level + 1),
        to_go=data.reward[:, level:last].sum(axis=1),
        end=flat(last),
        total=data.reward[:, :last].sum(axis=1),
        member=member,
        reached=reached.astype(jnp.float32),
    )


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
