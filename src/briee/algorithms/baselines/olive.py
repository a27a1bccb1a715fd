"""OLIVE (Jiang, Krishnamurthy, Agarwal, Langford and Schapire 2017) on an enumerated class of Q-functions.

    f = the surviving function with the largest predicted value of the start           (optimism)
    estimate the average Bellman error of f at every level under its own policy
    if their sum is at most 5/8 epsilon: f's policy is the answer
    else take the level with the largest error, roll in with f's policy, act uniformly there, and eliminate
    every g with |mean A 1{a = pi_g(x)} (g(x, a) - r - max_b g(x', b))| > threshold    (elimination)

A function is one Q_h per level, and Q_h = (decoder, table of latent values); both come from a finite list
that contains the truth. The Bellman error at level h involves Q_h and Q_{h+1} alone, so what survives is kept
as pairs, and all combinations need not be listed.
"""

from dataclasses import replace
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from briee.algorithms.baselines.latent_models import TableCover, TablePolicy
from briee.algorithms.baselines.psdp import gather
from briee.algorithms.baselines.rival_config import OliveConfig
from briee.envs.finite_block import BlockMDP
from briee.numerics.keys import stream
from briee.protocols import Algorithm, PhaseHook, Policy, PolicyKind, Sampler, no_phases
from briee.rollout.samplers import deepest_good_level

LONGEST = 4
"""Levels up to which a class is enumerated."""


class OneHot(eqx.Module):
    """The index of a one-hot observation."""

    def __call__(self, level, observation) -> Int[Array, ""]:
        return jnp.argmax(observation.reshape(-1)).astype(jnp.int32)


class OliveState(eqx.Module):
    """State between two updates; `chosen` is the function f of the last one."""

    key: PRNGKeyArray
    iteration: Int[np.ndarray, ""]
    episodes: Int[np.ndarray, ""]
    env_steps: Int[np.ndarray, ""]
    alive: Bool[np.ndarray, "H N N"]
    chosen: Int[np.ndarray, " H"]
    start_counts: Float[np.ndarray, " S"]
    bellman_error: Float[np.ndarray, ""]
    explore_return: Float[np.ndarray, ""]
    reached_level: Float[np.ndarray, ""]


class Olive(Algorithm[OliveState]):
    """OLIVE on the finite block MDP behind `sampler`."""

    name = "olive"
    config: OliveConfig

    def __init__(self, sampler: Sampler, config: OliveConfig):
        block = sampler.knowledge.exact
        if block is None:
            known = "finite-block and finite-lock have them"
            raise ValueError(f"olive enumerates functions of finitely many observations: {known}")
        if sampler.horizon > LONGEST:
            raise ValueError(f"olive enumerates up to {LONGEST} levels, got horizon {sampler.horizon}")
        self.sampler, self.config = sampler, config
        rng = np.random.default_rng(config.class_seed)
        self.functions = enumerated_class(rng, block, config.class_size, config.tables)
        rank = block.num_latents
        self.threshold = config.threshold or config.epsilon / (12 * sampler.horizon * rank**0.5)

    def init(self, key: PRNGKeyArray) -> OliveState:
        """Every function survives."""
        H, N, S, _ = self.functions.shape
        zero, missing = np.asarray(0, np.int64), np.asarray(np.nan, np.float32)
        alive = np.ones((H, N, N), bool)
        return OliveState(
            key=key, iteration=zero, episodes=zero, env_steps=zero, alive=alive,
            chosen=np.zeros(H, np.int64), start_counts=np.zeros(S, np.float32),
            bellman_error=np.asarray(0.0, np.float32), explore_return=missing, reached_level=missing,
        )  # fmt: skip

    def update(self, state: OliveState, phase: PhaseHook = no_phases) -> OliveState:
        """One iteration of the loop; once f is accepted, further iterations estimate its errors again."""
        config, H = self.config, self.sampler.horizon
        phase("plan")
        key = stream(state.key, "iteration", int(state.iteration))
        chosen = optimistic(self.functions, state.alive, state.start_counts)
        state = replace(state, chosen=chosen, iteration=state.iteration + 1)
        phase("collect")
        played = self.sampler.rollout(self.policy(state), stream(key, "estimate"), config.estimate_episodes)
        errors = on_policy_errors(self.functions, chosen, played)
        first = np.asarray(played.observation)[:, 0].sum(axis=0)
        state = replace(
            state,
            episodes=state.episodes + config.estimate_episodes,
            env_steps=state.env_steps + H * config.estimate_episodes,
            start_counts=state.start_counts + first,
            bellman_error=np.asarray(errors.sum(), np.float32),
            explore_return=np.asarray(played.reward.sum(axis=1).mean(), np.float32),
            reached_level=np.asarray(deepest_good_level(self.sampler, played), np.float32),
        )
        if errors.sum() <= 5 / 8 * config.epsilon:
            return state
        level = int(errors.argmax())
        policy: Any = self.policy(state)
        cover = TableCover(OneHot(), policy.q[None], jnp.int32(1))
        rows, steps = gather(self.sampler, cover, level, stream(key, "eliminate"), config.eliminate_episodes)
        kept = np.abs(bellman_errors(self.functions, level, rows)) <= self.threshold
        alive = state.alive.copy()
        alive[level] &= kept
        return replace(
            state,
            alive=alive,
            episodes=state.episodes + config.eliminate_episodes,
            env_steps=state.env_steps + steps * config.eliminate_episodes,
        )

    def policy(self, state: OliveState, kind: PolicyKind = "greedy") -> Policy:
        """The greedy policy of the chosen function."""
        own = self.functions[np.arange(len(self.functions)), state.chosen]
        return TablePolicy(OneHot(), jnp.asarray(own, jnp.float32))

    def metrics(self, state: OliveState) -> dict[str, float]:
        """Measurements of the last update, for metrics.csv."""
        return {
            "explore_return": float(state.explore_return),
            "reached_level": float(state.reached_level),
            "bellman_error": float(state.bellman_error),
            "survivors": float(survivors(state.alive)),
        }


def enumerated_class(rng: np.random.Generator, block: BlockMDP, decoders: int, tables: int) -> np.ndarray:
    """F [H, N, S, A]: each of N = decoders * tables functions is a table of the state that a decoder sees.

    The first decoder and the first table of each level are the true ones; the other tables have random values
    between 0 and the largest value that is possible from there on.
    """
    H, Z, A, S = block.horizon, block.num_latents, block.num_actions, block.truth.shape[1]
    truth, q = block.truth[:H], block.latent.q_values()
    wrong = rng.integers(Z, size=(H, decoders - 1, S))
    seen = np.concatenate([truth[:, None], wrong], axis=1)
    most = np.cumsum(block.latent.reward.max(axis=(1, 2))[::-1])[::-1]
    other = rng.uniform(size=(H, tables - 1, Z, A)) * most[:, None, None, None]
    values = np.concatenate([q[:, None], other], axis=1)
    return np.stack([[table[labels] for labels in seen[h] for table in values[h]] for h in range(H)])


def survivors(alive: np.ndarray) -> int:
    """The number of functions all of whose pairs survive."""
    count = alive[-1].any(axis=1).astype(np.int64)  # behind the last level there is nothing to pair with
    for pairs in alive[-2::-1]:
        count = pairs @ count
    return int(count.sum())


def optimistic(functions: np.ndarray, alive: np.ndarray, start_counts: np.ndarray) -> np.ndarray:
    """The surviving function [H] with the largest predicted value of the starts seen so far.

    The start depends on Q_0 alone; further levels take the survivor with the largest mean value. Without any
    start all observations count alike. If none survives, which a wrong class or bad luck can bring about,
    the pairs of a level are disregarded.
    """
    H, _, S, _ = functions.shape
    able = [alive[-1].any(axis=1)]
    for pairs in alive[-2::-1]:
        able.insert(0, (pairs & able[0]).any(axis=1))
    weight = start_counts if start_counts.sum() else np.ones(S)
    chosen: list[int] = []
    for h in range(H):
        value = functions[h].max(axis=2) @ (weight if h == 0 else np.ones(S))
        allowed = able[h] if h == 0 else able[h] & alive[h - 1, chosen[-1]]
        chosen.append(int(np.where(allowed if allowed.any() else True, value, -np.inf).argmax()))
    return np.asarray(chosen, np.int64)


def on_policy_errors(functions: np.ndarray, chosen: np.ndarray, played: Any) -> np.ndarray:
    """Average Bellman errors [H] of the chosen function under its own policy."""
    index = np.asarray(played.observation).argmax(axis=-1)
    action, reward = np.asarray(played.action), np.asarray(played.reward, np.float64)
    errors = []
    for h, one in enumerate(chosen):
        value = functions[h, one][index[:, h], action[:, h]]
        later = functions[h + 1, chosen[h + 1]].max(axis=1)[index[:, h + 1]] if h + 1 < len(chosen) else 0.0
        errors.append(np.mean(value - reward[:, h] - later))
    return np.asarray(errors)


def bellman_errors(functions: np.ndarray, level: int, rows: Any) -> np.ndarray:
    """Importance-weighted average Bellman errors [N, N] of all pairs (Q_h, Q_{h+1}) on rows whose action at
    `level` is uniform; at the last level all Q_{h+1} are zero."""
    H, N, _, A = functions.shape
    x, after = np.asarray(rows.x).argmax(axis=1), np.asarray(rows.next_x).argmax(axis=1)
    action, reward = np.asarray(rows.action), np.asarray(rows.reward, np.float64)
    own = functions[level][:, x, action]
    plays = functions[level].argmax(axis=2)[:, x] == action  # ties go to the first action, as measure zero
    later = functions[level + 1].max(axis=2)[:, after] if level + 1 < H else np.zeros((N, len(x)))
    n = len(x) / A
    return ((plays * (own - reward)).sum(axis=1)[:, None] - plays.astype(float) @ later.T) / n
