"""The latent states that a run discovered, from the data it kept: visits, transitions, values, bonus.

Everything is counted on decoded states, so it works where nobody knows the true ones. Symbols: H levels,
K decoded states, A actions, n rows of a level.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

FEW = 0.005
"""Decoded states with a smaller share of a level's visits are left out of the map."""
PRIOR = 1.0
"""Imaginary rows with reward 0 that lead nowhere: what was tried once is not believed at once."""


class Visits(NamedTuple):
    """The kept rows of every level, decoded; rows that are empty have `valid` False."""

    state: np.ndarray
    """int[H, n]: decoded state."""
    soft: np.ndarray
    """f32[H, n, K]: soft decoded state."""
    action: np.ndarray
    """int[H, n]."""
    reward: np.ndarray
    """f32[H, n]."""
    following: np.ndarray
    """int[H, n]: decoded state at the next level; -1 after the last."""
    planned: np.ndarray
    """int[H, n]: action of the greedy policy."""
    valid: np.ndarray
    """bool[H, n]."""
    counted: np.ndarray
    """bool[H, n]: rows that the bonus counts."""
    rank: np.ndarray | None
    """int[H, n]: how many rows of the level came before; None where the order is not kept."""
    num_actions: int


class LatentMap(NamedTuple):
    """Discovered states by level."""

    visits: np.ndarray
    """f64[H, K]: share of a level's rows; NaN for states that are left out."""
    value: np.ndarray
    """f64[H, K]: best expected return from there on, in the estimated model."""
    planned: np.ndarray
    """int[H, K]: the greedy policy's most frequent action."""
    probability: np.ndarray
    """f64[H - 1, K, A, K]: estimated transition probabilities; 0 for pairs that were never seen."""
    tried: np.ndarray
    """f64[H, K, A]: rows of each pair."""


def stored_visits(algorithm: Any, state: Any) -> Visits | None:
    """Decode the rows an algorithm keeps, in `state.buffers` or `state.strata`; None where it keeps none."""
    buffers, strata = getattr(state, "buffers", None), getattr(state, "strata", None)
    rows = strata if buffers is None else buffers.rows
    if rows is None:
        return None
    H, n = rows.action.shape
    shape = algorithm.sampler.observation_shape
    observation = rows.observation.reshape(H, n, *shape)
    following = rows.next_observation.reshape(H, n, *shape)
    soft = np.stack([np.asarray(algorithm.decode(state, h, observation[h])) for h in range(H)])
    after = np.full((H, n), -1)
    for h in range(H - 1):
        after[h] = np.asarray(algorithm.decode(state, h + 1, following[h])).argmax(-1)
    valid = np.asarray(rows.valid if buffers is not None else rows.action >= 0)
    rank = None if buffers is None else _ranks(np.asarray(buffers.inserted), n)
    counted = valid & np.asarray(getattr(rows, "on_policy", valid))
    return Visits(
        state=soft.argmax(-1),
        soft=soft,
        action=np.asarray(rows.action),
        reward=np.asarray(rows.reward),
        following=after,
        planned=_planned(algorithm.policy(state, "greedy"), observation),
        valid=valid,
        counted=counted,
        rank=rank,
        num_actions=algorithm.sampler.num_actions,
    )


def map_latents(visits: Visits) -> LatentMap:
    """Count visits and transitions, and solve the counted model backwards for its values."""
    H, _, K = visits.soft.shape
    A = visits.num_actions
    tried, reward = np.zeros((2, H, K, A))
    moved, planned = np.zeros((max(H - 1, 0), K, A, K)), np.zeros((H, K, A))
    for h in range(H):
        ok = visits.valid[h]
        z, a = visits.state[h][ok], visits.action[h][ok]
        np.add.at(tried[h], (z, a), 1)
        np.add.at(reward[h], (z, a), visits.reward[h][ok])
        np.add.at(planned[h], (z, visits.planned[h][ok]), 1)
        if h < H - 1:
            np.add.at(moved[h], (z, a, visits.following[h][ok]), 1)
    value = np.zeros((H + 1, K))
    for h in reversed(range(H)):
        later = moved[h] @ value[h + 1] if h < H - 1 else 0.0
        q = (reward[h] + later) / (tried[h] + PRIOR)
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


def level_history(visits: Visits, fractions: np.ndarray, warmup: float, config: Any):
    """Coverage and bonus f64[H, T] when these fractions of all iterations were complete.

    The decoders are today's: the question is what the data of then covers. Bonus None where the settings have
    none.
    """
    H, n = visits.state.shape
    coverage, bonus = np.zeros((H, len(fractions))), np.full((H, len(fractions)), np.nan)
    with_bonus = hasattr(config, "bonus") and hasattr(config, "lsvi")
    for h in range(H):
        total = visits.rank[h][visits.valid[h]].max(initial=-1) + 1 if visits.rank is not None else n
        pairs = visits.state[h] * visits.num_actions + visits.action[h]
        known = max(len(np.unique(visits.state[h][visits.valid[h]])), 1) * visits.num_actions
        rank = np.zeros(n) if visits.rank is None else visits.rank[h]
        for t, fraction in enumerate(fractions):
            early = visits.valid[h] & (rank < warmup + (total - warmup) * fraction)
            coverage[h, t] = len(np.unique(pairs[early])) / known
            if with_bonus:
                bonus[h, t] = _mean_bonus(visits, h, early & visits.counted[h], config)
    return coverage, bonus if with_bonus else None


def _mean_bonus(visits: Visits, h: int, rows: np.ndarray, config: Any) -> float:
    """The bonus of line 6 of Algorithm 1 from these rows, averaged over the level's data and the actions."""
    K, A = visits.soft.shape[2], visits.num_actions
    gram = np.tile(config.lsvi.lam * np.eye(K), (A, 1, 1))
    for a in range(A):
        psi = visits.soft[h][rows & (visits.action[h] == a)].astype(float)
        gram[a] += psi.T @ psi
    psi = visits.soft[h][visits.valid[h]].astype(float)
    squared = np.einsum("nk,akl,nl->na", psi, np.linalg.inv(gram), psi, optimize=True)
    cap = np.inf if config.bonus.cap is None else config.bonus.cap
    values = np.minimum(config.bonus.alpha * np.sqrt(np.maximum(squared, 0)), cap)
    return float(values.mean()) if values.size else float("nan")


def _ranks(inserted: np.ndarray, capacity: int) -> np.ndarray:
    """int[H, n]: a ring's slot s holds the newest rank congruent to s."""
    slot = np.arange(capacity)[None]
    newest = inserted[:, None] - 1
    return newest - (newest - slot) % capacity


def _planned(policy: Any, observation: Any) -> np.ndarray:
    """Actions int[H, n] of a policy, ties broken by one key."""
    act = jax.jit(lambda level, rows: jax.vmap(lambda s: policy(level, s, jax.random.key(0)))(rows))
    return np.stack([np.asarray(act(jnp.int32(h), rows)) for h, rows in enumerate(observation)])
