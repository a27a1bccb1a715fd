"""Plans on the sparse table of a world, towards discoveries and for reward within H steps; policies on it.

    U(s, a)   = max(u_n(s,a), gamma sum_y P(y|s,a) max_a' U(y, a'))        discovery, at any step
    Q_h(s, a) = r_h(s, a) + sum_y P(y|s,a) max_a' Q_{h+1}(y, a') + width   reward, over cells that were tried

u_n is the probability that the n-th further try of a cell shows something new. The discount gamma is close to
1: of two discoveries that are equally likely, the nearer one. `width` is a confidence width of the estimate,
0 for the greedy plan.

Policies are compiled for pure environments, and in NumPy for the host. There the exploring policy learns
while it acts: it counts the transitions of all episodes of the rollout and plans again every few steps, so
episodes that run together do not all try the same.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray
from scipy.sparse import csr_matrix

from briee.algorithms.general.exact import compiled_hash
from briee.algorithms.general.world import POOLED, STEPS, UNKNOWN, Model, World
from briee.protocols import HostPolicy

NEAR = 0.999  # discount of discoveries
SOONER = 1e-7  # of two equal returns, the one that comes sooner
EXPLAINED = 0.9  # share of the variance of a cell's rewards that the step must explain to be used
FEWEST = 3  # tries of a cell before that
TIE = 1e-9


class Tables(NamedTuple):
    """A model as arrays."""

    chances: csr_matrix
    cell: Int[np.ndarray, " C"]
    tries: Float[np.ndarray, " C"]
    reward: Float[np.ndarray, " C"]
    """Mean reward."""
    slope: Float[np.ndarray, " C"]
    """Change of the reward from one step to the next."""
    middle: Float[np.ndarray, " C"]
    """Mean step of a cell's tries."""
    spread: Float[np.ndarray, " C"]
    """Variance of the reward."""


def tables(model: Model) -> Tables:
    """Transition probabilities and rewards of all cells."""
    tries = np.array(model.tries, float)
    mean = np.array(model.sums, float).reshape(-1, 5) / np.maximum(tries, 1)[:, None]
    reward, square, level, level_square, product = mean.T
    spread = np.maximum(square - reward**2, 0.0)
    width = np.maximum(level_square - level**2, 0.0)
    both = product - reward * level
    explains = both**2 > EXPLAINED * spread * width
    slope = np.where(explains & (tries >= FEWEST) & (spread > 1e-12), both / np.maximum(width, 1e-12), 0.0)
    left = np.where(slope != 0, np.maximum(spread - slope * both, 0.0), spread)
    return Tables(model.chances(), np.array(model.cell, int), tries, reward, slope, level, left)


def plan_discovery(
    model: Model, horizon: int, prior: float, near: float = NEAR
) -> tuple[Float[np.ndarray, "S A"], float]:
    """U of every cell, and the chance that an episode makes a discovery."""
    S, A = len(model.keys), model.num_actions
    cell, chances, curve = np.array(model.cell, int), model.chances(), model.discovery(prior)
    own = curve[np.minimum(np.array(model.tries, int), len(curve) - 1)]
    U = np.where(np.array(model.depth, int)[:, None] < horizon, np.ones((S, A)), 0.0)
    flat = U.reshape(-1)
    flat[cell] = own
    V = U.max(1)
    for _ in range(horizon):
        flat[cell] = np.maximum(own, near * (chances @ V))
        new = U.max(1)
        moved, V = np.abs(new - V).max(initial=0.0), new
        if moved < 1e-7:
            break
    starts = np.array(model.starts, float)
    return U, float(starts @ V / max(starts.sum(), 1.0)) if S else 1.0


class RewardPlan(NamedTuple):
    """The best action of every state at every step, and the value of an episode."""

    action: Int[np.ndarray, "H S"]
    value: float


def plan_reward(model: Model, horizon: int, optimism: float = 0.0) -> RewardPlan:
    """The finite-horizon plan; with `optimism`, estimates are raised by that many confidence widths."""
    S, A = len(model.keys), model.num_actions
    table, H = tables(model), horizon
    tried = np.zeros(S * A, bool)
    tried[table.cell] = True
    somewhere = tried.reshape(S, A).any(1)
    weight = np.zeros(S * A)
    weight[table.cell] = np.minimum(table.tries, 1000) * TIE * 1e-3
    worst = min(float(table.reward.min(initial=0.0)), 0.0)
    extent = max(float(np.abs(table.reward).max(initial=0.0)), 1e-12)
    rare = optimism * extent * random_share(model) / np.maximum(table.tries, 1)
    known = optimism / np.sqrt(np.maximum(table.tries, 1))
    steps = bool(table.slope.any())
    action = np.zeros((H, S), int)
    V, Q = np.zeros(S), np.full(S * A, -np.inf)
    for h in reversed(range(H)):
        later = table.chances @ V
        own = table.reward + table.slope * (h - table.middle) * steps + later
        if optimism:
            unsure = np.maximum(table.chances @ V**2 - later**2, 0.0) + table.spread
            own = own + known * np.sqrt(unsure) + rare
        Q[table.cell] = own
        values = Q.reshape(S, A)
        best = values.max(1)
        reach = np.where(somewhere, best - TIE * np.maximum(np.abs(best), extent), 0.0)
        good = values >= reach[:, None]
        action[h] = np.where(good, weight.reshape(S, A) + TIE, 0.0).argmax(1)
        V = np.where(somewhere, best, worst * (H - h)) * (1 - SOONER)
    starts = np.array(model.starts, float)
    return RewardPlan(action, float(starts @ V / max(starts.sum(), 1.0)) if S else 0.0)


def random_share(model: Model) -> float:
    """The estimated share of cells, tried more than once, that have more than one successor."""
    tries, source = np.array(model.tries, int), np.array(model.source, int)
    often = tries > 1
    several = np.bincount(source, minlength=len(tries)) > 1
    return float((several & often).sum() + 0.5) / (float(often.sum()) + 1.0)


REPLAN = 8  # steps between two plans of the exploring policy, and one more per this many cells:
CELLS_PER_STEP = 500
TIE = 1e-6


class WorldPolicy(eqx.Module):
    """Exploring: an action of the highest value for discovery. Otherwise the planned action of the state."""

    world: World
    action: Int[np.ndarray, "H S"]
    exploring: Bool[np.ndarray, ""]
    prior: Float[np.ndarray, ""]
    """Number of imaginary cells in the discovery curve."""

    def __call__(
        self, level: Int[Array, ""], observation: Float[Array, "..."], key: PRNGKeyArray
    ) -> Int[Array, ""]:
        known, state = self.state(level, observation.reshape(-1))
        value = jnp.where(known, jnp.asarray(self.world.explore)[state], 1.0)
        draw = jax.random.uniform(key, value.shape)
        best = jnp.argmax((value >= value.max() - TIE) * (1 + draw))
        planned = jnp.asarray(self.action)[level, state]
        return jnp.where(known & ~self.exploring, planned, best).astype(jnp.int32)

    def state(self, level: Int[Array, ""], x: Float[Array, " D"]) -> tuple[Bool[Array, ""], Int[Array, ""]]:
        """Whether the state of an observation is known, and which it is."""
        world = jax.tree.map(jnp.asarray, self.world)
        name = compiled_hash(x, jnp.where(world.mode == STEPS, level + 1, 0))
        same = (world.keys == name).all(1) & (jnp.arange(len(world.keys)) < world.size[0])
        distance = jnp.sum(((x - world.mean) @ world.transform - world.centre) ** 2, -1)
        distance = jnp.where(world.owner == UNKNOWN, jnp.inf, distance)
        nearest = distance.argmin()
        near = (distance[nearest] <= world.reach[nearest]) | (~self.exploring & (world.owner[0] != UNKNOWN))
        pooled = (world.mode == POOLED) & ~same.any() & near
        return same.any() | pooled, jnp.where(pooled, world.owner[nearest], same.argmax())

    def on_host(self, rng: np.random.Generator) -> HostPolicy:
        """The same policy in NumPy."""
        if self.exploring:
            return Explorer(Model.of(self.world), self.world, len(self.action), float(self.prior), rng)
        return Planned(Model.of(self.world), np.asarray(self.action), rng)


class Planned:
    """The planned actions; random ones in unknown states."""

    def __init__(self, model: Model, action: Int[np.ndarray, "H S"], rng: np.random.Generator):
        self.model, self.action, self.rng = model, action, rng

    def __call__(self, level: int, observation: Float[np.ndarray, "n ..."]) -> Int[np.ndarray, " n"]:
        names = self.model.names(observation.reshape(len(observation), -1), level, grow=False)
        state = np.array([self.model.state_of.get(name, UNKNOWN) for name in names])
        draw = self.rng.integers(0, self.model.num_actions, len(state))
        return np.where(state == UNKNOWN, draw, self.action[level, state])


class Explorer:
    """Heads for the nearest likely discovery."""

    def __init__(self, model: Model, world: World, horizon: int, prior: float, rng: np.random.Generator):
        self.model, self.horizon, self.prior, self.rng = model, horizon, prior, rng
        self.value = np.array(world.explore, float)
        self.curve = model.discovery(prior)
        self.before: tuple[list[int], list[int]] = ([], [])
        self.planned = 0

    def __call__(self, level: int, observation: Float[np.ndarray, "n ..."]) -> Int[np.ndarray, " n"]:
        model = self.model
        names = model.names(observation.reshape(len(observation), -1), level)
        states = model.states(names, level)
        if level == 0:
            self.planned = 0
        else:
            self.learn(states, level)
        if level - self.planned >= REPLAN + len(model.cell) // CELLS_PER_STEP:
            self.planned = level
            self.curve = model.discovery(self.prior)
            value, _ = plan_discovery(model, self.horizon, self.prior)
            self.value[: len(value)] = value
        actions = [self.choose(state) for state in states]
        self.before = states, actions
        return np.array(actions)

    def learn(self, states: list[int], level: int) -> None:
        """Count what the last actions led to, and correct their values."""
        for state, action, target in zip(*self.before, states, strict=True):
            if UNKNOWN in (state, target) or state == target:
                continue
            self.model.add(state, action, target, 0.0, level - 1)
            self.value[state, action] = max(self.trial(state, action), NEAR * float(self.value[target].max()))
        for state, action, target in zip(*self.before, states, strict=True):
            if state == target != UNKNOWN:  # staying leads nowhere, whatever the value of the state was
                self.model.add(state, action, target, 0.0, level - 1)
                self.value[state, action] = self.trial(state, action)

    def trial(self, state: int, action: int) -> float:
        """The probability that another try of a cell shows something new."""
        index = self.model.cell_of.get(state * self.model.num_actions + action)
        tries = 0 if index is None else self.model.tries[index]
        return float(self.curve[min(tries, len(self.curve) - 1)])

    def choose(self, state: int) -> int:
        """An action of the highest value; another episode in the same state shall try another."""
        if state == UNKNOWN:
            return int(self.rng.integers(self.model.num_actions))
        own = self.value[state]
        best = np.flatnonzero(own >= own.max() - TIE)
        action = int(best[self.rng.integers(len(best))]) if len(best) > 1 else int(best[0])
        if own[action] == 1.0:
            own[action] = self.curve[1]
        return action
