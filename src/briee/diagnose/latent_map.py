"""A map of the latent states that a run discovered: visits, transitions, values and bonus of its data.

Counts are of decoded states, so the true ones need not be known. Symbols: H levels, K decoded states,
A actions, n rows of a level.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from briee.algorithms.bonus import exploration_bonus
from briee.protocols import Algorithm, Policy, S
from briee.rollout.trajectories import StoredRows

FEW = 0.005
"""Decoded states with a smaller share of a level's visits are left out of the map."""


class Visits(NamedTuple):
    """The stored rows of each level, decoded."""

    rows: StoredRows
    state: np.ndarray
    """int[H, n]: decoded state."""
    soft: np.ndarray
    """f32[H, n, K]: soft decoded state."""
    following: np.ndarray
    """int[H, n]: decoded state at the next level; -1 after the last."""
    planned: np.ndarray
    """int[H, n]: action of the greedy policy."""
    num_actions: int


class LatentMap(NamedTuple):
    """Discovered states by level."""

    visits: np.ndarray
    """f64[H, K]: share of a level's rows; NaN for states that are left out."""
    value: np.ndarray
    """f64[H, K]: optimal value in the model of observed means; not shrunk."""
    planned: np.ndarray
    """int[H, K]: the greedy policy's most frequent action."""
    probability: np.ndarray
    """f64[H - 1, K, A, K]: estimated transition probabilities; 0 for pairs that were never seen."""
    tried: np.ndarray
    """f64[H, K, A]: number of rows."""


def stored_visits(algorithm: Algorithm[S], state: S) -> Visits | None:
    """Decode the rows an algorithm keeps; None if it keeps none."""
    if not algorithm.capabilities.keeps_rows:
        return None
    rows = algorithm.stored_rows(state)
    soft = np.stack([np.asarray(algorithm.decode(state, h, x)) for h, x in enumerate(rows.observation)])
    following = np.full(rows.action.shape, -1)
    for h in range(len(following) - 1):
        following[h] = np.asarray(algorithm.decode(state, h + 1, rows.next_observation[h])).argmax(-1)
    planned = _planned(algorithm.policy(state, "greedy"), rows.observation)
    return Visits(rows, soft.argmax(-1), soft, following, planned, algorithm.sampler.num_actions)


def map_latents(visits: Visits) -> LatentMap:
    """Count visits and transitions, and solve the estimated model by value iteration."""
    H, _, K = visits.soft.shape
    A = visits.num_actions
    tried, reward = np.zeros((2, H, K, A))
    moved, planned = np.zeros((max(H - 1, 0), K, A, K)), np.zeros((H, K, A))
    for h in range(H):
        ok = visits.rows.valid[h]
        z, a = visits.state[h][ok], visits.rows.action[h][ok]
        np.add.at(tried[h], (z, a), 1)
        np.add.at(reward[h], (z, a), visits.rows.reward[h][ok])
        np.add.at(planned[h], (z, visits.planned[h][ok]), 1)
        if h < H - 1:
            np.add.at(moved[h], (z, a, visits.following[h][ok]), 1)
    value = np.zeros((H + 1, K))
    for h in reversed(range(H)):
        later = moved[h] @ value[h + 1] if h < H - 1 else 0.0
        q = (reward[h] + later) / np.maximum(tried[h], 1)
        best = np.where(tried[h] > 0, q, -np.inf).max(axis=1)
        value[h] = np.where(tried[h].any(axis=1), best, 0.0)
    total = tried.sum((1, 2))
    share = tried.sum(2) / np.maximum(total, 1)[:, None]
    seen = share >= FEW
    return LatentMap(
        visits=np.where(seen, share, np.nan),
        value=np.where(seen, value[:H], np.nan),
        planned=planned.argmax(2),
        probability=moved / np.maximum(tried[: H - 1, :, :, None], 1),
        tried=tried,
    )


def level_history(visits: Visits, fractions: np.ndarray, warmup: float):
    """Coverage and mean bonus f64[H, T] when these fractions of all iterations were complete.

    Old data is decoded with the newest decoders. The bonus is None if the algorithm has none.
    """
    rows, A = visits.rows, visits.num_actions
    rank = np.zeros(rows.valid.shape) if rows.rank is None else rows.rank
    total = np.max(rank, axis=1, initial=-1, where=rows.valid)[:, None] + 1
    pairs, levels = visits.state * A + rows.action, range(len(rank))
    known = [max(len(np.unique(visits.state[h][rows.valid[h]])), 1) * A for h in levels]
    coverage, bonus = np.zeros((2, len(rank), len(fractions)))
    for t, fraction in enumerate(fractions):
        early = rows.valid & (rank < warmup + (total - warmup) * fraction)
        coverage[:, t] = [len(np.unique(pairs[h][early[h]])) / known[h] for h in levels]
        if rows.bonus is not None:
            data = visits.soft, rows.action, early & rows.counted, rows.valid
            bonus[:, t] = _mean_bonus(*data, A, *rows.bonus)
    return coverage, None if rows.bonus is None else bonus


@eqx.filter_jit
def _mean_bonus(soft, action, counted, valid, num_actions: int, lam, alpha, cap) -> Float[Array, " H"]:
    """Mean bonus of line 6 of Algorithm 1 over a level's data [H, n] and the actions; NaN without data."""
    bonus = exploration_bonus(soft, action, counted, num_actions, lam, alpha, cap)
    values = jax.lax.map(lambda at: jax.vmap(bonus, (None, 0))(*at), (jnp.arange(len(soft)), soft))
    return jnp.sum(values.mean(-1) * valid, axis=1) / valid.sum(axis=1)


def _planned(policy: Policy, observation: Float[Array, "H n ..."]) -> np.ndarray:
    """Actions int[H, n] of a policy, ties broken by one key."""
    act = jax.jit(lambda level, rows: jax.vmap(lambda s: policy(level, s, jax.random.key(0)))(rows))
    return np.stack([np.asarray(act(jnp.int32(h), rows)) for h, rows in enumerate(observation)])
