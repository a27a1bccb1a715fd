"""Policies on the states of a world: compiled for pure environments, and in NumPy for the host.

On the host the exploring policy learns while it acts: it counts the transitions of all episodes of the
rollout and plans again every few steps, so episodes that run together do not all try the same.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from briee.algorithms.general.exact import compiled_hash
from briee.algorithms.general.world import POOLED, STEPS, UNKNOWN, Model, World
from briee.algorithms.general.world_plan import NEAR, plan_discovery
from briee.protocols import HostPolicy

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
