"""Collect, count and plan in a world whose states are the same at every step.

Episodes go towards discoveries; a part of them, and most once little is left to discover, maximise the
reward with confidence widths on what was estimated.
"""

from collections import Counter, defaultdict
from dataclasses import replace
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Float, Int, PRNGKeyArray

from briee.algorithms.general.config import GeneralConfig
from briee.algorithms.general.exact import hashes, repeated_share, whole
from briee.algorithms.general.state import Episodes
from briee.algorithms.general.world import EXACT, OFF, STEPS, UNKNOWN, Model, World
from briee.algorithms.general.world_plan import WorldPolicy, plan_discovery, plan_reward
from briee.protocols import PolicyKind, Sampler
from briee.rollout.trajectories import Trajectories

REPEATED = 0.15  # share of observations that repeat exactly; with noise it is 0
OPTIMISM = 1.0  # confidence widths added to the estimated return
GREEDY_ROUND = 3  # of every four rounds, this one seeks reward while there is much to discover
SECOND_TRIES, SCATTERED = 20, 0.9  # tries, and the share with a new successor, of no exact world
STEP_EVIDENCE = 10.0  # nats by which the step must help to predict before it becomes part of a state


class Collected(NamedTuple):
    """The world after further episodes."""

    world: World
    explore_return: float
    episodes: list[Trajectories]


def observations(episodes: Trajectories) -> Float[np.ndarray, "E levels D"]:
    """Observations as vectors."""
    x = np.asarray(episodes.observation, np.float32)
    return x.reshape(*x.shape[:2], -1)


def begin(world: World, episodes: Trajectories) -> World:
    """The world after the first, random episodes: exact if their observations repeat.

    An observation that stays the same, as after the end of an episode, does not count.
    """
    x = observations(episodes)
    E, levels, D = x.shape
    name = whole(hashes(x.reshape(-1, D))).reshape(E, levels)
    moved = np.concatenate([np.ones((E, 1), bool), name[:, 1:] != name[:, :-1]], 1)
    ended = (name[:, -1] == name[:, -2])[:, None] & (name == name[:, -1:])
    fresh = np.concatenate([name[moved & ~ended], name[0, :1]])
    if repeated_share(np.zeros(0, np.uint64), np.concatenate([name[:1, :1], fresh[None]], 1)) < REPEATED:
        return world
    return counted(replace(world, mode=np.asarray(EXACT, np.int32)), episodes)


def counted(world: World, episodes: Trajectories) -> World:
    """The world with the transitions of further episodes."""
    model = Model.of(world)
    label = add_episodes(model, episodes)
    world = model.stored(world)
    if int(world.mode) != EXACT:
        return world
    evidence = float(world.evidence) + step_evidence(label, np.asarray(episodes.action))
    return replace(world, evidence=np.asarray(evidence, np.float32))


def add_episodes(model: Model, episodes: Trajectories) -> Int[np.ndarray, "E levels"]:
    """Count all transitions; returns the states."""
    x, action = observations(episodes), np.asarray(episodes.action).tolist()
    E, levels, D = x.shape
    if model.centres is None:
        step = np.tile(np.arange(levels) + 1, E) if model.stepped else 0
        names = whole(hashes(x.reshape(-1, D), step)).reshape(E, levels)
    else:
        names = np.array(model.names(x.reshape(-1, D), 0), np.uint64).reshape(E, levels)
    reward = np.asarray(episodes.reward, float).tolist()
    label = np.empty((E, levels), int)
    for h in range(levels):
        label[:, h] = model.states(names[:, h].tolist(), h)
    for own, actions, rewards in zip(label.tolist(), action, reward, strict=True):
        for h, (a, r) in enumerate(zip(actions, rewards, strict=True)):
            if UNKNOWN not in own[h : h + 2]:
                model.add(own[h], a, own[h + 1], r, h)
    return label


def step_evidence(label: Int[np.ndarray, "E levels"], action: Int[np.ndarray, "E H"]) -> float:
    """Nats by which transitions are likelier if each step has its own probabilities.

    Both predict one transition after the other, from those before it (Krichevsky and Trofimov). The
    prediction of a step begins with that of all steps.
    """
    all_steps: dict[int, Counter[int]] = defaultdict(Counter)
    own_step: dict[tuple[int, int], Counter[int]] = defaultdict(Counter)
    A, evidence = int(action.max()) + 1, 0.0
    successors: dict[int, set[int]] = defaultdict(set)
    cells = label[:, :-1] * A + action
    for cell, target in zip(cells.ravel().tolist(), label[:, 1:].ravel().tolist(), strict=True):
        successors[cell].add(target)
    for row, targets in zip(cells.tolist(), label[:, 1:].tolist(), strict=True):
        for h, (cell, target) in enumerate(zip(row, targets, strict=True)):
            several = len(successors[cell])
            if several == 1:
                continue
            common, own = all_steps[cell], own_step[cell, h]
            usual = (common[target] + 0.5) / (common.total() + 0.5 * several)
            evidence += float(np.log((own[target] + usual) / ((own.total() + 1) * usual)))
            common[target] += 1
            own[target] += 1
    return evidence


def collect(
    world: World, sampler: Sampler, config: GeneralConfig, key: PRNGKeyArray, first: int
) -> Collected:
    """Rounds of episodes from round `first` on, each planned with the counts of those before."""
    explore, returns, all_episodes = config.explore, [], []
    E = explore.episodes // explore.rounds
    for i in range(first, explore.rounds):
        settled = float(world.chance) < explore.settled
        seeks = (i % 4 != 0) if settled else (i % 4 == GREEDY_ROUND)
        policy = optimistic(world, config) if seeks else exploring(world, config)
        episodes = sampler.rollout(policy, jax.random.fold_in(key, i), E)
        returns.append(float(np.asarray(episodes.reward).sum(1).mean()))
        all_episodes.append(episodes)
        world = with_discovery(counted(world, episodes), config)
    if int(world.mode) == EXACT and scattered(world):
        world = restarted(world, OFF)
    elif int(world.mode) == EXACT and float(world.evidence) > STEP_EVIDENCE:
        world = restarted(world, STEPS)
    return Collected(world, returns[0] if returns else float("nan"), all_episodes)


def scattered(world: World) -> bool:
    """Whether second tries of a cell hardly ever lead to the same observation as the first.

    Then observations repeat because a state has finitely many of them, and are no states themselves.
    """
    tries, new = world.curve[:, 1]
    return bool(tries >= SECOND_TRIES and new > SCATTERED * tries)


def keep(data: Episodes, all_episodes: list[Trajectories]) -> None:
    """Keep episodes while there is room, in place: pooled states are found again from them."""
    for episodes in all_episodes:
        n = int(data.size)
        room = slice(0, min(len(data.action) - n, len(episodes.action)))
        slots = slice(n, n + room.stop)
        data.observation[slots] = observations(episodes)[room]
        data.action[slots], data.reward[slots] = episodes.action[room], episodes.reward[room]
        data.size[...] = slots.stop


def restarted(world: World, mode: int) -> World:
    """The world without what was counted, in another representation."""
    model = Model(world.explore.shape[1], len(world.depth), mode == STEPS)
    world = model.stored(replace(world, mode=np.asarray(mode, np.int32)))
    return replace(world, explore=np.ones_like(world.explore), chance=np.asarray(1.0, np.float32))


def with_discovery(world: World, config: GeneralConfig) -> World:
    """The world with values for discovery."""
    value, chance = plan_discovery(Model.of(world), len(world.greedy), config.explore.prior_cells)
    explore = np.ones_like(world.explore)
    explore[: len(value)] = value
    return replace(world, explore=explore, chance=np.asarray(chance, np.float32))


def with_reward(world: World) -> World:
    """The world with the greedy plan."""
    return replace(world, greedy=planned(world, 0.0))


def planned(world: World, optimism: float) -> Int[np.ndarray, "H S"]:
    """The best action of every state at every step."""
    plan = plan_reward(Model.of(world), len(world.greedy), optimism)
    action = np.zeros_like(world.greedy)
    action[:, : plan.action.shape[1]] = plan.action
    return action


def optimistic(world: World, config: GeneralConfig) -> WorldPolicy:
    """The policy that maximises the reward, with confidence widths."""
    prior = np.asarray(config.explore.prior_cells, np.float32)
    return WorldPolicy(world, planned(world, OPTIMISM), np.asarray(False), prior)


def exploring(world: World, config: GeneralConfig) -> WorldPolicy:
    """The policy that heads for discoveries."""
    prior = np.asarray(config.explore.prior_cells, np.float32)
    return WorldPolicy(world, world.greedy, np.asarray(True), prior)


def policy(world: World, kind: PolicyKind, config: GeneralConfig) -> WorldPolicy:
    """`greedy` maximises the reward, `optimistic` heads for discoveries."""
    prior = np.asarray(config.explore.prior_cells, np.float32)
    return WorldPolicy(world, world.greedy, np.asarray(kind == "optimistic"), prior)


def decoded(world: World, level: int, x: Float[np.ndarray, "n D"]) -> Float[np.ndarray, "n K"]:
    """The state of each observation, one-hot; the last column for unknown ones."""
    model = Model.of(world)
    names = model.names(x, level, grow=False)
    states = np.array([model.state_of.get(name, len(model.keys)) for name in names])
    return np.eye(len(model.keys) + 1, dtype=np.float32)[states]


def is_on(world: World) -> bool:
    """Whether the states of a world are used instead of those of each level."""
    return int(world.mode) != OFF
