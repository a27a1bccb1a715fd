"""New features of one level: a sample of its rows, white coordinates, first features, and the game.

The state holds decoders as JAX modules; here they are `Units`, matrices on the host. Which levels are
learned anew, and from which rows, is decided below (`growth`, `balanced_rows`). Symbols: psi(s) soft latent
states of the old features, Sigma their covariance, one block per action.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from briee.algorithms.bonus import Bonus
from briee.algorithms.paper.buffers import Transitions
from briee.algorithms.paper.config import HeldOutConfig
from briee.algorithms.paper.decoders import Decoder, Linear
from briee.algorithms.paper.discriminator_class import candidates
from briee.algorithms.paper.held_out_game import (
    Level,
    Played,
    agreement,
    clearly_positive,
    held_out_loss,
    play,
    row_errors,
)
from briee.algorithms.paper.starts import (
    Units,
    White,
    clustered,
    from_white,
    in_white,
    labels,
    mixture,
    psi,
    purest_scatter,
    scaled,
    scores,
    separation,
)


class Sample(NamedTuple):
    """Rows (s, a, s') of one level."""

    s: Float[np.ndarray, "n D"]
    action: Int[np.ndarray, " n"]
    after: Float[np.ndarray, "n D"]


def learn_level(
    data: Transitions,
    rank: Int[np.ndarray, " n"],
    decoders: Decoder,
    level: int,
    key: PRNGKeyArray,
    config: HeldOutConfig,
    num_actions: int,
) -> Played:
    """Features of a level from a balanced sample of its rows; `decoders` are the old ones of all levels."""
    rng, valid = host_generator(key), np.asarray(data.valid)
    rows = (np.asarray(leaf)[valid] for leaf in (data.observation, data.action, data.next_observation))
    s, action, after = (leaf.reshape(len(leaf), -1) for leaf in rows)
    old, last = units_of(decoders, level), level + 1 == len(decoders.temperature)
    chosen = balanced_rows(psi(old, s), action[:, 0], rank[valid], config.rows, rng)
    sample = Sample(s[chosen].astype(float), action[chosen, 0], after[chosen].astype(float))
    old_after = None if last else units_of(decoders, level + 1)
    played = learn(sample, old, old_after, rng, config, num_actions)
    return played._replace(units=bounded(played.units, sample.s))


def learn(
    sample: Sample,
    old: Units,
    old_after: Units | None,
    rng: np.random.Generator,
    config: HeldOutConfig,
    num_actions: int,
    first: Units | None = None,
) -> Played:
    """Algorithm 2 on a sample of rows, from the features `first` or from the best of several starts.

    If clusters and old features agree, only a share of the games is played. If a game changed the features,
    it is played again in other white coordinates: what is told apart now shows the noise more clearly.
    """
    s, total = sample.s, 0
    white = purest_scatter(s, labels(old, s))
    clusters = clustered_starts(s, white, len(old), config) if config.clusters else []
    played = Played(clusters[0] if clusters else old, 0.0, 1, True)
    if config.rounds == 0 or len(s) < config.least_rows:
        return played
    confirmed = clusters and agreement(labels(clusters[0], s), labels(old, s)) > 1 - 2 / len(s)
    if first is None and confirmed and rng.uniform() > config.share:
        return played
    psi_after = None if old_after is None else psi(old_after, sample.after)
    y = purest_scatter(sample.after, None if psi_after is None else psi_after.argmax(1))(sample.after)
    units = first
    for _ in range(config.passes):
        white = white if units is None or units is first else purest_scatter(s, labels(units, s))
        x, fold = white(s), stratified_folds(y, sample.action, config.folds, rng)
        F = candidates(x, sample.action, y, psi_after, fold, num_actions)
        level = Level(x, sample.action, F, fold, num_actions, config.folds)
        pool = [in_white(start, white) for start in (*clusters, old)]
        units = best_start(level, pool, config) if units is None else in_white(units, white)
        played = play(level, units, pool[:-1], config)
        units = from_white(polished(played.units, level, config), white)
        total += played.rounds
        if played.rounds == 1:
            break
    return played._replace(units=units, rounds=total)


def stratified_folds(
    y: Float[np.ndarray, "n D"], action: Int[np.ndarray, " n"], folds: int, rng: np.random.Generator
) -> Int[np.ndarray, " n"]:
    """Random folds over which the rows of an action that end in an unusual place are spread evenly, because
    there may be only three of them."""
    order = np.lexsort((-(y**2).sum(1), action))
    fold = np.zeros(len(y), int)
    for first in range(0, len(y), folds):
        rows = order[first : first + folds]
        fold[rows] = rng.permutation(folds)[: len(rows)]
    return fold


def clustered_starts(s: Float[np.ndarray, "n D"], white: White, K: int, config: HeldOutConfig) -> list[Units]:
    """Clusters in the given coordinates and in white ones; first those that are more, or farther apart."""
    plain, x = scaled(s), white(s)
    starts = [
        from_white(clustered(plain(s), K, config.softness), plain),
        from_white(clustered(x, K, config.white_softness), white),
    ]
    return sorted(starts, key=lambda units: separation(x, labels(units, s)), reverse=True)


def best_start(level: Level, starts: Sequence[Units], config: HeldOutConfig) -> Units:
    """The first start, unless another one is clearly better by the game's own objective."""
    best, *others = starts
    errors = row_errors(best, level)
    for units in others:
        other = row_errors(units, level)
        if clearly_positive(errors - other, config):
            best, errors = units, other
    return best


def polished(units: Units, level: Level, config: HeldOutConfig) -> Units:
    """The mixture of Gaussians that these features are near to, if it finds as many clusters and predicts as
    well. Few rows show which states there are, all rows show where they are."""
    mixed = mixture(level.x, labels(units, level.x), len(units), config.softness)
    before, after = (separation(level.x, labels(found, level.x)).clusters for found in (units, mixed))
    as_good = after >= max(before, 2) and held_out_loss(mixed, level) <= held_out_loss(units, level)
    return mixed if as_good else units


def units_of(decoders: Decoder, level: int) -> Units:
    """The decoder of a level as units."""
    network, bias = decoders.network, decoders.bias
    assert isinstance(network, Linear)
    assert bias is not None
    logits = np.column_stack([np.asarray(network.A)[level], np.asarray(bias)[level]]).astype(float)
    return logits / float(np.asarray(decoders.temperature)[level])


LARGEST_GAP = 1e5  # of the logits of a row: the decoders compute in 32 bits, at a tenth of the temperature


def bounded(units: Units, s: Float[np.ndarray, "n D"]) -> Units:
    """The units, softer if need be: clusters without noise, of rows that repeat or are few, have no scale."""
    gap = np.ptp(scores(units, s), axis=1).max()
    return units if gap <= LARGEST_GAP else units * (LARGEST_GAP / gap)


def with_levels(
    decoders: Decoder, gaps: Float[Array, " H"], levels: Sequence[int], results: Sequence[Played]
) -> tuple[Decoder, Float[Array, " H"], Int[Array, " H"]]:
    """Decoders and gaps with the results at these levels, and the rounds played at each level."""
    network, bias = decoders.network, decoders.bias
    assert isinstance(network, Linear)
    assert bias is not None
    A, b, gap, tau = np.array(network.A), np.array(bias), np.array(gaps), np.asarray(decoders.temperature)
    rounds = np.zeros(len(gap), np.int32)
    for h, played in zip(levels, results, strict=True):
        units = played.units * float(tau[h])
        A[h], b[h], gap[h], rounds[h] = units[:, :-1], units[:, -1], played.gap, played.rounds
    network = eqx.tree_at(lambda network: network.A, network, jnp.asarray(A))
    return replace(decoders, network=network, bias=jnp.asarray(b)), jnp.asarray(gap), jnp.asarray(rounds)


NEWEST = 0.5  # share of a sample that is newest: what the old features cannot tell apart has no leverage
LEVERAGE_RIDGE = 0.1  # regularisation of the leverages, in rows


def log_determinants(bonus: Bonus) -> Float[Array, " H"]:
    """log det Sigma_h of each level, from the factors L^-1 of Sigma = L L^T."""
    diagonal = jnp.diagonal(bonus.factor, axis1=-2, axis2=-1)
    return -2 * jnp.log(diagonal).sum((-1, -2))


def growth(before: Bonus, after: Bonus) -> Float[Array, " H"]:
    """How much log det Sigma_h and log det Sigma_{h-1} grew together: the level's own data, and what leads
    there. Data that leave the buffer do not count."""
    own = jnp.maximum(log_determinants(after) - log_determinants(before), 0)
    return own + jnp.pad(own[:-1], (1, 0))


def balanced_rows(
    psi: Float[np.ndarray, "n K"],
    action: Int[np.ndarray, " n"],
    rank: Int[np.ndarray, " n"],
    limit: int,
    rng: np.random.Generator,
) -> Int[np.ndarray, " m"]:
    """At most `limit` rows: the newest half, the others drawn by leverage ||phi||^2_{Sigma^-1}, so that rare
    cells (state, action) are as well represented as frequent ones."""
    n = len(action)
    if n <= limit:
        return np.arange(n)
    newest_first = np.argsort(-rank, kind="stable")
    newest, rest = np.split(newest_first, [int(NEWEST * limit)])
    leverage = np.zeros(len(rest))
    for a in np.unique(action[rest]):
        rows = action[rest] == a
        features = psi[rest[rows]]
        Sigma = features.T @ features + LEVERAGE_RIDGE * np.eye(psi.shape[1])
        leverage[rows] = np.einsum("nk,nk->n", features, np.linalg.solve(Sigma, features.T).T)
    late = rng.exponential(size=len(rest)) / np.maximum(leverage, 1e-12)  # sampling without replacement
    return np.concatenate([newest, rest[np.argsort(late)[: limit - len(newest)]]])


def host_generator(key: PRNGKeyArray) -> np.random.Generator:
    """A NumPy generator that depends on the key alone."""
    return np.random.default_rng(np.asarray(jax.random.key_data(key)))
