"""The episodes that are kept, and balanced samples of their rows.

Whole episodes are kept, so that every row knows what came before it and what followed. A stratum is the set
of rows of one level with the same label and action. A full store drops the episodes whose rarest row is in
the largest stratum: common (state, action) pairs do not displace rare ones.
"""

import equinox as eqx
import numpy as np
from jaxtyping import Float, Int


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
