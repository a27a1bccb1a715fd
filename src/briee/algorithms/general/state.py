"""The state of the general algorithm between two updates, and the episodes that it keeps.

Whole episodes are kept, so that every row knows what came before it and what followed. A stratum is the set
of rows of one level with the same label and action. A full store drops the episodes whose rarest row is in
the largest stratum: common (state, action) pairs do not displace rare ones.
"""

from dataclasses import replace

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Float, Int, PRNGKeyArray

from briee.algorithms.general.decoders import CLOUDS, NEVER, Decoders
from briee.algorithms.general.planning import Plan
from briee.algorithms.general.world import World


class Episodes(eqx.Module):
    """N slots for episodes of H steps, the first `size` of them filled; observations are vectors."""

    observation: Float[np.ndarray, "N levels D"]
    action: Int[np.ndarray, "N H"]
    reward: Float[np.ndarray, "N H"]
    label: Int[np.ndarray, "N levels"]
    size: Int[np.ndarray, ""]

    def rows(self, level: int) -> Float[np.ndarray, "n D"]:
        """The observations of a level."""
        return self.observation[: int(self.size), level]

    def filled(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Labels, actions and rewards of the episodes."""
        n = int(self.size)
        return self.label[:n], self.action[:n], self.reward[:n]

    def copy(self) -> "Episodes":
        """A working copy, which `insert` may change."""
        return Episodes(*(getattr(self, name).copy() for name in self.__dataclass_fields__))


def no_episodes(slots: int, horizon: int, dimension: int) -> Episodes:
    """An empty store."""
    whole = np.zeros((slots, horizon), np.int32)
    return Episodes(
        np.zeros((slots, horizon + 1, dimension), np.float32),
        whole,
        np.zeros((slots, horizon), np.float32),
        np.zeros((slots, horizon + 1), np.int32),
        np.asarray(0, np.int64),
    )


def insert(
    kept: Episodes,
    observation: Float[np.ndarray, "E levels D"],
    action: Int[np.ndarray, "E H"],
    reward: Float[np.ndarray, "E H"],
    label: Int[np.ndarray, "E levels"],
    num_actions: int,
    rng: np.random.Generator,
) -> None:
    """Offer E further episodes to the store, in place: a working copy of it is made once an update."""
    n, slots, E = int(kept.size), len(kept.action), len(action)

    def put(slot, index) -> None:
        kept.observation[slot], kept.action[slot] = observation[index], action[index]
        kept.reward[slot], kept.label[slot] = reward[index], label[index]

    room = min(slots - n, E)
    put(slice(n, n + room), slice(0, room))
    kept.size[...] = n + room
    if room < E:
        both = np.concatenate([kept.label, label[room:]]), np.concatenate([kept.action, action[room:]])
        crowd = rarest_stratum(*both, num_actions) + rng.random(slots + E - room)
        dropped = np.argsort(-crowd, kind="stable")[: E - room]
        stays = np.setdiff1d(np.arange(slots, len(crowd)), dropped)
        put(dropped[dropped < slots], stays - slots + room)


def rarest_stratum(
    label: Int[np.ndarray, "E levels"], action: Int[np.ndarray, "E H"], num_actions: int
) -> Int[np.ndarray, " E"]:
    """The size of the smallest stratum that each episode visits."""
    H = action.shape[1]
    stratum = (label[:, :H] * num_actions + action) * H + np.arange(H)
    return np.bincount(stratum.ravel())[stratum].min(1)


def balanced(keys: list[Int[np.ndarray, " n"]], size: int, rng: np.random.Generator) -> Int[np.ndarray, " m"]:
    """At most `size` rows, as evenly as possible over the values of each key."""
    n = len(keys[0])
    if n <= size:
        return np.arange(n)
    draw, best = rng.random(n), np.full(n, n)
    for key in keys:
        order = np.lexsort((draw, key))
        ordered = key[order]
        first = np.concatenate([[True], ordered[1:] != ordered[:-1]])
        start = np.maximum.accumulate(np.where(first, np.arange(n), 0))
        rank = np.empty(n, int)
        rank[order] = np.arange(n) - start
        best = np.minimum(best, rank)
    return np.sort(np.argsort(best + 0.999 * draw)[:size])


CAPS = 8, 16, 32, 64  # slots for clouds; the policy is compiled again when they do not suffice
LEAST_SHARE = 0.01  # of a level's rows; a shared label that is read less often there is a mistake
MOST_BINS = 6  # values of a reward that are told apart


class GeneralState(eqx.Module):
    """The state between two updates; `plan_*` have one label more than there may be states."""

    key: PRNGKeyArray
    iteration: Int[np.ndarray, ""]
    episodes: Int[np.ndarray, ""]
    env_steps: Int[np.ndarray, ""]
    data: Episodes
    decoders: Decoders
    discovery: Float[np.ndarray, "H L A"]
    reward: Float[np.ndarray, "H L A"]
    chance: Float[np.ndarray, ""]
    growth: Float[np.ndarray, " H"]
    value: Float[np.ndarray, " H"]
    """Score of each level's states, in nats."""
    charge: Float[np.ndarray, " H"]
    """Nats that a further state of a level must be worth."""
    race: Int[np.ndarray, " H"]
    """The kind of decoder that won the last race of a level, if its states proved their worth."""
    choice: Int[np.ndarray, " H"]
    """The name of the regression that won it."""
    taught: Float[np.ndarray, " H"]
    """The worth of each level's teacher when it was made."""
    fresh_rows: Int[np.ndarray, " H"]
    """Rows of further episodes since the last test, and the nats by which labels predicted them."""
    fresh_score: Float[np.ndarray, " H"]
    raced_at: Int[np.ndarray, " H"]
    """The number of episodes at the last race."""
    transfer: Float[np.ndarray, ""]
    """How well labels transfer between levels, if all levels share a regression; 0 if they do not."""
    share_from: Int[np.ndarray, ""]
    """The number of episodes from which a shared regression is tried again."""
    levels_refit: Int[np.ndarray, ""]
    explore_return: Float[np.ndarray, ""]
    reached_level: Float[np.ndarray, ""]
    world: World
    """One set of states for all levels, where the step does not matter."""


def planned(state: GeneralState, plan: Plan) -> GeneralState:
    """The state with a new plan."""
    discovery, reward = np.ones_like(state.discovery), np.zeros_like(state.reward)
    L = plan.discovery.shape[1]
    discovery[:, :L], reward[:, :L] = plan.discovery, plan.reward
    return replace(state, discovery=discovery, reward=reward, chance=np.asarray(plan.chance, np.float32))


def grow(state: GeneralState, label: Int[np.ndarray, "E levels"], action: Int[np.ndarray, "E H"]) -> None:
    """Note the growth of every level, in place.

    A new row in a stratum of n rows adds 1 / (n + 1), times the probability of a discovery from there
    relative to that of an episode, at most 1, to its own level and to the next.
    """
    known, tried, _ = state.data.filled()
    hope = state.discovery.max(-1)
    for h in range(action.shape[1]):
        same = (known[:, h] == label[:, [h]]) & (tried[:, h] == action[:, [h]])
        weight = np.minimum(hope[h, label[:, h]] / max(float(state.chance), 1e-9), 1.0)
        grown = np.sum(weight / (same.sum(1) + 1.0))
        state.growth[h] += grown
        if h + 1 < action.shape[1]:
            state.growth[h + 1] += grown


def reward_bins(reward: Float[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
    """Rewards as small numbers: their distinct values, or zero and five quantiles if there are many."""
    values = np.unique(reward)
    if len(values) > MOST_BINS:
        other = reward[reward != 0]
        values = np.unique(np.concatenate([[0.0], np.quantile(other, np.linspace(0, 0.8, MOST_BINS - 1))]))
    return np.maximum(np.searchsorted(values, reward, "right") - 1, 0).astype(np.int32)


def slots(decoders: Decoders) -> int:
    """Slots for clouds that a policy needs now."""
    most = decoders.clouds.bias.shape[1]
    clouds = (decoders.clouds.bias > NEVER).sum(1) * (decoders.kind == CLOUDS)
    used = int(max(clouds.max(initial=1), decoders.states.max(initial=1)))
    return min(next((cap for cap in CAPS if cap >= used), most), most)


def used_states(state: GeneralState) -> Int[np.ndarray, " H"]:
    """The number of states of each level: of labels that all levels share, those that are no mistakes."""
    if float(state.transfer) == 0:
        return state.decoders.states
    label, action, _ = state.data.filled()
    common = [np.bincount(label[:, h]) > LEAST_SHARE * len(label) for h in range(action.shape[1])]
    return np.array([level.sum() for level in common])


def numpy_generator(key: PRNGKeyArray) -> np.random.Generator:
    """A NumPy generator that depends only on the key."""
    return np.random.default_rng([int(word) for word in np.asarray(jax.random.key_data(key)).ravel()])
