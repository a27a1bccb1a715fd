"""One set of states for all steps: a sparse table of the cells (state, action) that were tried.

`World` is what a checkpoint holds, arrays of fixed sizes. `Model` is the same as a working copy on the host,
which takes further transitions one at a time. The table counts every transition ever seen, so its size is
that of the world and not of the data.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import equinox as eqx
import numpy as np
from jaxtyping import Float, Int, UInt
from scipy.sparse import csr_matrix

from briee.algorithms.general.exact import hashes, whole
from briee.algorithms.general.pooled import COORDINATES, nearest_centre, usual_gap

OFF, EXACT, STEPS, POOLED = range(4)
"""Representations: states of each level, exact observations, exact observations at a step, pooled clouds."""
CURVE = 33  # tries that the discovery curve tells apart
UNKNOWN = -1  # label of an observation that is no known state
MOST_CENTRES = 1024  # of pooled states
SUMS = 5  # of a cell: reward, reward squared, level, level squared, reward times level


class World(eqx.Module):
    """The states and cells found so far, in S slots for states, C for cells and T for transitions."""

    mode: Int[np.ndarray, ""]
    size: Int[np.ndarray, "3"]
    """States, cells and transitions in use."""
    keys: UInt[np.ndarray, "S 2"]
    """Hash of each state's observation."""
    depth: Int[np.ndarray, " S"]
    """The earliest step at which a state was seen."""
    starts: Int[np.ndarray, " S"]
    """Episodes that began in a state."""
    cell: Int[np.ndarray, " C"]
    """State times A plus action."""
    tries: Int[np.ndarray, " C"]
    sums: UInt[np.ndarray, "C halves"]
    """The sums of a cell; float64 numbers as two halves each, because checkpoints hold 32 bits."""
    source: Int[np.ndarray, " T"]
    """Index of a transition's cell."""
    target: Int[np.ndarray, " T"]
    times: Int[np.ndarray, " T"]
    curve: Int[np.ndarray, "2 n"]
    """Tries number n + 1 of a cell: how many there were, and how many led to a new successor."""
    steps: Int[np.ndarray, "T 4"]
    """Cell, successor, step, and how often: as many transitions at a step as there is room for."""
    mean: Float[np.ndarray, " D"]
    transform: Float[np.ndarray, "D E"]
    """White coordinates z = (x - mean) @ transform of pooled states."""
    centre: Float[np.ndarray, "M E"]
    owner: Int[np.ndarray, " M"]
    """The state of each centre; -1 if there is none."""
    reach: Float[np.ndarray, " M"]
    """Squared distance up to which an observation belongs to a centre."""
    fitted: Int[np.ndarray, ""]
    """Episodes at the last fit of pooled states."""
    score: Float[np.ndarray, "2"]
    """Nats per transition by which fresh episodes are predicted: by pooled states, by those of each level."""
    greedy: Int[np.ndarray, "H S"]
    """The action of highest value."""
    explore: Float[np.ndarray, "S A"]
    """Value of each cell for discovery."""
    chance: Float[np.ndarray, ""]


def no_world(states: int, horizon: int, num_actions: int, dimension: int) -> World:
    """An empty world."""
    S, C, D, M = states, 4 * states, dimension, min(states, MOST_CENTRES)
    whole_numbers = lambda *shape: np.zeros(shape, np.int32)  # noqa: E731
    return World(
        mode=np.asarray(OFF, np.int32),
        size=whole_numbers(3),
        keys=np.zeros((S, 2), np.uint32),
        depth=whole_numbers(S),
        starts=whole_numbers(S),
        cell=whole_numbers(C),
        tries=whole_numbers(C),
        sums=np.zeros((C, 2 * SUMS), np.uint32),
        source=whole_numbers(C),
        target=whole_numbers(C),
        times=whole_numbers(C),
        curve=np.zeros((2, CURVE), np.int64),
        steps=whole_numbers(C, 4),
        mean=np.zeros(D, np.float32),
        transform=np.zeros((D, min(D, COORDINATES)), np.float32),
        centre=np.zeros((M, min(D, COORDINATES)), np.float32),
        owner=np.full(M, UNKNOWN, np.int32),
        reach=np.zeros(M, np.float32),
        fitted=np.asarray(0, np.int64),
        score=np.zeros(2, np.float32),
        greedy=np.zeros((horizon, S), np.int8 if num_actions <= 127 else np.int32),
        explore=np.ones((S, num_actions), np.float32),
        chance=np.asarray(1.0, np.float32),
    )


class Centres:
    """A working copy of the centres of pooled states, each with the name of its state."""

    def __init__(
        self, mean: np.ndarray, transform: np.ndarray, centre: np.ndarray, reach: np.ndarray, names: list[int]
    ):
        self.mean, self.transform = mean, transform
        self.centre, self.reach, self.names = centre.copy(), reach.copy(), list(names)

    def find(self, x: Float[np.ndarray, "n D"], single: Mapping[int, int], grow: bool) -> list[int]:
        """The name of each observation's state: its own hash if it is that of a state, else the name of the
        nearest centre. If they may `grow`, an observation far from all centres becomes another one."""
        found = whole(hashes(x)).tolist()
        z = (x - self.mean) @ self.transform
        index, distance = nearest_centre(z, self.centre[: len(self.names)])
        for i, name in enumerate(found):
            if name in single:
                continue
            j, far = int(index[i]), float(distance[i]) > float(self.reach[index[i]])
            if grow and far and len(self.names) < len(self.centre):
                j, far = self._among_new(z[i], len(z), j)
                if far:
                    j = len(self.names)
                    self.centre[j], self.reach[j] = z[i], usual_gap(z.shape[1])
                    self.names.append(name)
            found[i] = self.names[j]
        return found

    def _among_new(self, z: Float[np.ndarray, " E"], few: int, nearest: int) -> tuple[int, bool]:
        """The nearest of the last centres, if it is near, or else the one that was nearest before."""
        first = max(len(self.names) - few, 0)
        index, distance = nearest_centre(z[None], self.centre[first : len(self.names)])
        j = first + int(index[0])
        near = float(distance[0]) <= float(self.reach[j])
        return (j, False) if near else (nearest, True)


@dataclass
class Model:
    """A working copy of the tables of a world."""

    num_actions: int
    capacity: int
    stepped: bool
    """Whether the step is part of a state."""
    keys: list[int] = field(default_factory=list)
    depth: list[int] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    cell: list[int] = field(default_factory=list)
    tries: list[int] = field(default_factory=list)
    sums: list[list[float]] = field(default_factory=list)
    source: list[int] = field(default_factory=list)
    target: list[int] = field(default_factory=list)
    times: list[int] = field(default_factory=list)
    curve: Int[np.ndarray, "2 n"] = field(default_factory=lambda: np.zeros((2, CURVE), np.int64))
    centres: Centres | None = None
    """Of pooled states."""

    def __post_init__(self) -> None:
        self.state_of = {key: i for i, key in enumerate(self.keys)}
        self.cell_of = {cell: i for i, cell in enumerate(self.cell)}
        S = self.capacity
        pairs = zip(self.source, self.target, strict=True)
        self.transition_of = {source * S + target: i for i, (source, target) in enumerate(pairs)}

    @classmethod
    def of(cls, world: World) -> "Model":
        """The tables of a world."""
        states, cells, transitions = world.size.tolist()
        used = {"cell": cells, "tries": cells, "depth": states, "starts": states}
        used |= {"source": transitions, "target": transitions, "times": transitions}
        lists = {name: getattr(world, name)[:n].tolist() for name, n in used.items()}
        S, A = world.explore.shape
        keys = whole(world.keys[:states]).tolist()
        lists["sums"] = np.ascontiguousarray(world.sums[:cells]).view(np.float64).tolist()
        centres = None
        if int(world.mode) == POOLED:
            named = [keys[state] for state in world.owner[world.owner != UNKNOWN].tolist()]
            centres = Centres(world.mean, world.transform, world.centre, world.reach, named)
        stepped, curve = int(world.mode) == STEPS, world.curve.copy()
        return cls(A, S, stepped, keys=keys, curve=curve, centres=centres, **lists)

    def stored(self, world: World) -> World:
        """The world with these tables."""
        size = np.array([len(self.keys), len(self.cell), len(self.source)], np.int32)
        keys = np.array(self.keys, np.uint64)
        pairs = np.stack([keys >> np.uint64(32), keys & np.uint64(2**32 - 1)], 1).astype(np.uint32)
        sums = np.array(self.sums, np.float64).reshape(-1, SUMS).view(np.uint32)
        new = {"keys": filled(world.keys, pairs), "sums": filled(world.sums, sums)}
        for name in ("depth", "starts", "cell", "tries", "source", "target", "times"):
            new[name] = filled(getattr(world, name), np.array(getattr(self, name)))
        if self.centres is not None:
            # every centre has a state: `names` makes centres only for observations that are counted
            owner = [self.state_of.get(name, UNKNOWN) for name in self.centres.names]
            new |= {"centre": self.centres.centre, "reach": self.centres.reach}
            new["owner"] = filled(world.owner, np.array(owner) + 1) - 1
        return replace(world, size=size, curve=self.curve.copy(), **new)

    def names(self, x: Float[np.ndarray, "n D"], level: int, grow: bool = True) -> list[int]:
        """The key of each observation's state: its nearest centre, or its hash."""
        if self.centres is not None:
            return self.centres.find(x, self.state_of, grow)
        return whole(hashes(x, level + 1 if self.stepped else 0)).tolist()

    def states(self, names: list[int], level: int) -> list[int]:
        """The states of these names, new ones among them, seen at a level; `UNKNOWN` if the table is full."""
        found = []
        for name in names:
            state = self.state_of.get(name)
            if state is None:
                if len(self.keys) >= self.capacity:
                    found.append(UNKNOWN)
                    continue
                state = self.state_of[name] = len(self.keys)
                self.keys.append(name)
                self.depth.append(level)
                self.starts.append(0)
            elif level < self.depth[state]:
                self.depth[state] = level
            if level == 0:
                self.starts[state] += 1
            found.append(state)
        return found

    def add(self, state: int, action: int, target: int, reward: float, level: int) -> bool:
        """Count a transition; returns whether it was new."""
        key, most = state * self.num_actions + action, 4 * self.capacity
        index = self.cell_of.get(key)
        if index is None:
            if len(self.cell) >= most:
                return False
            index = self.cell_of[key] = len(self.cell)
            self.cell.append(key)
            self.tries.append(0)
            self.sums.append([0.0] * SUMS)
        pair = index * self.capacity + target
        known = self.transition_of.get(pair)
        if known is None and len(self.source) >= most:
            return False
        n = self.tries[index]
        if n < CURVE:
            self.curve[0, n] += 1
            self.curve[1, n] += known is None
        self.tries[index] = n + 1
        own = self.sums[index]
        for i, value in enumerate((reward, reward * reward, level, level * level, reward * level)):
            own[i] += value
        if known is None:
            self.transition_of[pair] = len(self.source)
            self.source.append(index)
            self.target.append(target)
            self.times.append(1)
            return True
        self.times[known] += 1
        return False

    def discovery(self, prior: float) -> Float[np.ndarray, " n"]:
        """u_n, the probability that a cell tried n times shows a new successor; non-increasing, u_0 = 1."""
        n = np.arange(CURVE)
        estimate = (self.curve[1] + prior / (n + 1)) / (self.curve[0] + prior)
        estimate[0] = 1.0
        return np.minimum.accumulate(estimate)

    def chances(self) -> csr_matrix:
        """The probability of every successor of every cell, [cells, states]."""
        source, times = np.array(self.source, int), np.array(self.times, float)
        share = times / np.bincount(source, times, len(self.cell))[source] if len(source) else times
        return csr_matrix((share, (source, np.array(self.target, int))), (len(self.cell), len(self.keys)))

    @property
    def full(self) -> bool:
        """Whether no further states or cells can be counted."""
        most = 4 * self.capacity
        return len(self.keys) >= self.capacity or max(len(self.cell), len(self.source)) >= most


def filled(slots: np.ndarray, values: np.ndarray) -> np.ndarray:
    """The values in slots of a fixed number; the rest is zero."""
    new = np.zeros_like(slots)
    new[: len(values)] = values[: len(slots)]
    return new
