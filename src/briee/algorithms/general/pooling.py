"""Whether the states of all steps are pooled: decided by what predicts fresh episodes better.

Pooled states are a candidate only if they recur: if most observations belong to a state that was seen at
several steps. Transitions and rewards of the last fifth of the episodes are then predicted from the others,
once with pooled states and once with those of each level.
"""

from dataclasses import replace
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from briee.algorithms.general.exact import hashes, whole
from briee.algorithms.general.pooled import Clusters, find_clusters, principal, usual_radius
from briee.algorithms.general.state import Episodes
from briee.algorithms.general.world import MOST_CENTRES, OFF, POOLED, UNKNOWN, Model, World, filled
from briee.algorithms.general.world_stage import at_steps, step_evidence

TRIALS = 0, 1, 2, 4, 8, 16  # updates after which pooled states are tried, if there are none
GROWTH = 1.5  # pooled states are found again when there are this many times more episodes
RECURS, STEPS_APART = 0.5, 3  # share of observations in states seen at so many steps
FRESH = 0.2  # share of the episodes that is predicted
LEAST_SCORE = 0.1  # nats per transition by which pooled states must help
STEP_EVIDENCE = 10.0
MOST_OPEN = 0.15  # share of the variance within states that earlier observations may predict
PROBED = 400  # rows whose nearest neighbour is looked at before anything is fitted


class Labelled(NamedTuple):
    """Labels of all observations, and the prediction of transitions from them."""

    label: Int[np.ndarray, "N levels"]
    score: float


def due(world: World, iteration: int, episodes: int) -> bool:
    """Whether pooled states are to be found now."""
    if int(world.mode) == POOLED:
        return episodes >= GROWTH * int(world.fitted)
    return int(world.mode) == OFF and iteration in TRIALS


def pooled_world(
    world: World,
    data: Episodes,
    reward: Int[np.ndarray, "N H"],
    episodes: int,
    rng: np.random.Generator,
) -> World:
    """The world with pooled states and the transitions of all kept episodes, if they predict better than the
    states of each level; `reward` holds bins of the rewards."""
    n = int(data.size)
    x = data.observation[:n]
    N, levels, D = x.shape
    first = int(world.mode) == OFF
    if first and not mixes_steps(x, rng):
        return world
    clusters = find_clusters(x.reshape(-1, D), min(MOST_CENTRES, len(world.depth)) // 2, rng)
    if not clusters.fits:
        return world
    label = labels(clusters, x.reshape(-1, D)).reshape(N, levels)
    if left_open(clusters, x, label, rng) > MOST_OPEN:
        return world
    if first:
        own, action = data.label[:n], data.action[:n]
        pooled = prediction(label, action, reward, stepped=False)
        per_level = prediction(own, action, reward, stepped=True)
        world = replace(world, score=np.array([pooled, per_level], np.float32))
        if pooled < max(per_level, LEAST_SCORE) or recurrence(label) < RECURS:
            return world
        if step_evidence(at_steps(label, action, int(action.max()) + 1)) > STEP_EVIDENCE:
            return world
    return recounted(world, clusters, data, episodes)


def mixes_steps(x: Float[np.ndarray, "N levels D"], rng: np.random.Generator) -> bool:
    """Whether the nearest observation is often one of another step; cheap, and false for most locks."""
    N, levels, D = x.shape
    rows = rng.permutation(N * levels)[: 2 * PROBED]
    own = x.reshape(-1, D)[rows].astype(np.float64)
    own = own - own.mean(0)
    t = own @ principal(own, min(D, 32))
    square = (t**2).sum(1)
    distance = square[:, None] - 2 * t @ t.T + square
    np.fill_diagonal(distance, np.inf)
    other = (rows % levels)[distance.argmin(1)] != rows % levels
    alone = distance.min(1) > 1e-9 * max(float(square.mean()), 1e-12)  # repeated ones say nothing
    return bool(alone.sum() >= 20 and other[alone].mean() > RECURS * (1 - 1 / levels))


def left_open(
    clusters: Clusters,
    x: Float[np.ndarray, "N levels D"],
    label: Int[np.ndarray, "N levels"],
    rng: np.random.Generator,
) -> float:
    """The share of the variance of observations around their centres that those before them predict.

    In a block MDP it is 0: given the state, an observation says no more. In a continuous world, such as
    CartPole, clusters are arbitrary and it is near 1.
    """
    clouds = label < len(clusters.centre)
    rows = np.flatnonzero((clouds[:, :-1] & clouds[:, 1:]).ravel())
    rows = rng.permutation(rows)[:2000]
    if len(rows) < 40:
        return 0.0
    episode, step = np.divmod(rows, label.shape[1] - 1)

    def residual(step: np.ndarray) -> Float[np.ndarray, "n E"]:
        z = (x[episode, step] - clusters.mean) @ clusters.transform
        return z - clusters.centre[label[episode, step]]

    before, after = residual(step), residual(step + 1)
    half = len(rows) // 2
    gram = before[:half].T @ before[:half] + 0.05 * half * np.eye(before.shape[1])
    weight = np.linalg.solve(gram, before[:half].T @ after[:half])
    left = ((after[half:] - before[half:] @ weight) ** 2).sum()
    return float(1 - left / max(float((after[half:] ** 2).sum()), 1e-12))


def labels(clusters: Clusters, x: Float[np.ndarray, "n D"]) -> Int[np.ndarray, " n"]:
    """The state of each observation: a repeated one, or the nearest centre."""
    name = whole(hashes(x))
    index, _ = clusters.nearest(x)
    slot = np.searchsorted(clusters.single, name)
    slot = np.minimum(slot, max(len(clusters.single) - 1, 0))
    repeated = clusters.single[slot] == name if len(clusters.single) else np.zeros(len(x), bool)
    return np.where(repeated, len(clusters.centre) + slot, index)


def recurrence(label: Int[np.ndarray, "N levels"]) -> float:
    """The share of observations whose state was seen at several steps; ended episodes do not count."""
    N, levels = label.shape
    moves = np.concatenate([np.ones((N, 1), bool), label[:, 1:] != label[:, :-1]], 1)
    step = np.broadcast_to(np.arange(levels), label.shape)
    pairs = np.unique(np.stack([label[moves], step[moves]], 1), axis=0)
    steps = np.bincount(pairs[:, 0], minlength=int(label.max()) + 1)
    return float((steps[label[moves]] >= min(STEPS_APART, levels - 1)).mean())


def prediction(
    label: Int[np.ndarray, "N levels"],
    action: Int[np.ndarray, "N H"],
    reward: Int[np.ndarray, "N H"],
    stepped: bool,
) -> float:
    """Nats per transition by which state and action predict next state and reward, in the last episodes."""
    N, H = action.shape
    known = N - max(int(FRESH * N), 1)
    L, A = int(label.max()) + 1, int(action.max()) + 1
    step = np.broadcast_to(np.arange(H) if stepped else np.zeros(H, int), action.shape)
    outcome = label[:, 1:] * (int(reward.max()) + 1) + reward
    R = int(outcome.max()) + 1
    cell = (step * L + label[:, :-1]) * A + action
    train, test = slice(0, known), slice(known, N)
    base_tries, base = _counts(step, outcome, R, train, test)
    tries, hits = _counts(cell, outcome, R, train, test)
    usual = (base + 0.5) / (base_tries + 0.5 * len(np.unique(outcome)))
    return float(np.log((hits + usual) / ((tries + 1) * usual)).mean())


def _counts(
    group: np.ndarray, outcome: np.ndarray, size: int, train: slice, test: slice
) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"]]:
    """How often the group of each test row, and that group with its outcome, occur in the training rows."""

    def times(key: np.ndarray) -> Float[np.ndarray, " n"]:
        values, count = np.unique(key[train], return_counts=True)
        wanted = key[test].ravel()
        slot = np.minimum(np.searchsorted(values, wanted), len(values) - 1)
        return np.where(values[slot] == wanted, count[slot], 0).astype(float)

    return times(group), times(group * size + outcome)


def recounted(world: World, clusters: Clusters, data: Episodes, episodes: int) -> World:
    """The world with these pooled states and all transitions of the kept episodes."""
    n, E = int(data.size), world.centre.shape[1]
    S, A = world.explore.shape
    x, (action, reward) = data.observation[:n], (data.action[:n].tolist(), data.reward[:n].tolist())
    label = labels(clusters, x.reshape(-1, x.shape[2])).reshape(n, -1)
    model = Model(A, S, stepped=False, curve=np.zeros_like(world.curve))
    names = np.concatenate([clusters.name, clusters.single])
    for h in range(label.shape[1]):
        label[:, h] = model.states(names[label[:, h]].tolist(), h)
    for own, actions, rewards in zip(label.tolist(), action, reward, strict=True):
        for h, (a, r) in enumerate(zip(actions, rewards, strict=True)):
            model.add(own[h], a, own[h + 1], r, h)
    owner = np.array([model.state_of.get(name, UNKNOWN) for name in clusters.name.tolist()])
    kept = np.flatnonzero(owner != UNKNOWN)
    transform = np.zeros_like(world.transform)
    transform[:, : clusters.transform.shape[1]] = clusters.transform
    centre = np.zeros_like(world.centre)
    centre[: len(kept), : clusters.centre.shape[1]] = clusters.centre[kept]
    reach = np.full(len(kept), usual_radius(E))
    world = replace(
        world,
        mode=np.asarray(POOLED, np.int32),
        mean=clusters.mean.astype(np.float32),
        transform=transform,
        centre=centre,
        owner=filled(world.owner, owner[kept] + 1) - 1,
        reach=filled(world.reach, reach),
        fitted=np.asarray(episodes, np.int64),
    )
    return model.stored(world)
