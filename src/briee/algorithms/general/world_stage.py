"""Collect, count and plan in a world whose states are the same at every step.

Episodes go towards discoveries; a part of them, and most once little is left to discover, maximise the
reward with confidence widths on what was estimated.
"""

from dataclasses import replace
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Float, Int, PRNGKeyArray
from scipy.special import gammaln

from briee.algorithms.general.config import GeneralConfig
from briee.algorithms.general.exact import hashes, repeated_share, whole
from briee.algorithms.general.state import Episodes
from briee.algorithms.general.world import EXACT, OFF, STEPS, UNKNOWN, Model, World, filled
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
    model, A = Model.of(world), world.explore.shape[1]
    label = add_episodes(model, episodes)
    world = model.stored(world)
    if int(world.mode) != EXACT:
        return world
    fresh = at_steps(label, np.asarray(episodes.action), A)
    steps = added_up(np.concatenate([counted_steps(world), fresh]))
    return replace(world, steps=filled(world.steps, steps)) if len(steps) <= len(world.steps) else world


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


def at_steps(
    label: Int[np.ndarray, "E levels"], action: Int[np.ndarray, "E H"], num_actions: int
) -> Int[np.ndarray, "n 4"]:
    """Cell, successor and step of all transitions, and how often."""
    step = np.broadcast_to(np.arange(action.shape[1]), action.shape)
    cell, target = label[:, :-1] * num_actions + action, label[:, 1:]
    known = (label[:, :-1] != UNKNOWN) & (target != UNKNOWN)
    return added_up(np.stack([cell, target, step, np.ones_like(step)], -1)[known])


def added_up(steps: Int[np.ndarray, "m 4"]) -> Int[np.ndarray, "n 4"]:
    """One row for all that agree in cell, successor and step."""
    key = numbered(*steps[:, :3].T)
    _, first = np.unique(key, return_index=True)
    return np.column_stack([steps[:, :3], totals(steps[:, 3], key)])[first]


def counted_steps(world: World) -> Int[np.ndarray, "n 4"]:
    """Cell, successor, step, and how often: the rows in use."""
    return world.steps[world.steps[:, 3] > 0]


def step_evidence(steps: Int[np.ndarray, "n 4"]) -> float:
    """Nats by which transitions are likelier if each step has its own probabilities.

    These are drawn from a Dirichlet distribution with the frequencies of all steps as parameters: a step
    without data is like all others. Cells that were seen at one step only say nothing.
    """
    cell, target, step, times = steps.astype(np.int64).T
    here, everywhere = totals(times, cell, step), totals(times, cell)
    p = totals(times, cell, target) / everywhere
    one = gammaln(1 + here) / totals(np.ones_like(times), cell, step)  # of the successors at this step
    gain = gammaln(p + times) - gammaln(p) - times * np.log(p) - one
    return float(gain[here < everywhere].sum())


def totals(times: Int[np.ndarray, " n"], *columns: Int[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
    """For each row the sum of `times` over all rows that agree with it in these columns."""
    _, group = np.unique(numbered(*columns), return_inverse=True)
    return np.bincount(group, times).astype(np.int64)[group]


def numbered(*columns: Int[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
    """One number for each row, the same where rows agree in all columns."""
    sizes = [int(column.max(initial=0)) + 1 for column in columns]
    return np.ravel_multi_index([column.astype(np.int64) for column in columns], sizes)


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
    elif int(world.mode) == EXACT and step_evidence(counted_steps(world)) > STEP_EVIDENCE:
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
    empty = {"explore": np.ones_like(world.explore), "steps": np.zeros_like(world.steps)}
    return replace(world, chance=np.asarray(1.0, np.float32), **empty)


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
