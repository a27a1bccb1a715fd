"""Bootstrapped DQN with randomised priors (Osband, Aslanides and Cassirer 2018), as bsuite runs it.

    an ensemble of Q-networks, each with a fixed random prior: Q_k = net_k + scale * prior_k
    each episode follows the greedy policy of one network, drawn at random
    each transition is shown to a random half of the networks, which learn it by DQN

No guarantee, but what a practitioner of deep RL would try first. The level is part of the input, because Q
depends on it; Q_H = 0.
"""

from dataclasses import replace
from typing import Any, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from briee.algorithms.baselines.fitting import Layers, new_layers
from briee.algorithms.baselines.psdp import greedy_action, inputs_of
from briee.algorithms.baselines.rival_config import BootDqnConfig
from briee.numerics.keys import stream
from briee.protocols import Algorithm, PhaseHook, Policy, PolicyKind, Sampler, no_phases
from briee.rollout.policies import MixturePolicy
from briee.rollout.samplers import deepest_good_level
from briee.rollout.trajectories import Trajectories


class Ensemble(eqx.Module):
    """N networks and their priors, stacked."""

    nets: Layers
    priors: Layers
    scale: float = eqx.field(static=True)
    horizon: int = eqx.field(static=True)

    def __call__(self, level, observation) -> Float[Array, "N A"]:
        """Q of every network."""
        return self.learned(self.nets, level, observation) + self.prior(level, observation)

    def learned(self, nets: Layers, level, observation) -> Float[Array, "N A"]:
        """The part of Q that is trained, with these networks."""
        x = self._inputs(level, observation)
        return jax.vmap(lambda net: net(x))(nets)

    def prior(self, level, observation) -> Float[Array, "N A"]:
        """The part of Q that stays as it was drawn."""
        return self.scale * self.learned(self.priors, level, observation)

    def _inputs(self, level, observation) -> Float[Array, " i"]:
        """The observation and the level, one-hot."""
        return jnp.concatenate([observation.reshape(-1), jax.nn.one_hot(level, self.horizon)])


class MeanPolicy(eqx.Module):
    """Greedy in the mean of the ensemble."""

    ensemble: Ensemble

    def __call__(self, level, observation, key) -> Int[Array, ""]:
        return greedy_action(self.ensemble(level, observation).mean(axis=0), key)


class HeadPolicy(MixturePolicy):
    """Greedy in one network, drawn for each episode; the inherited `members` is the ensemble."""

    def draw(self, key: PRNGKeyArray) -> Policy:
        """The policy of one episode."""
        return _Head(self.members, jax.random.randint(key, (), 0, self.size))


class _Head(eqx.Module):
    ensemble: Ensemble
    index: Int[Array, ""]

    def __call__(self, level, observation, key) -> Int[Array, ""]:
        return greedy_action(self.ensemble(level, observation)[self.index], key)


class Replay(eqx.Module):
    """A ring buffer of transitions, each with the networks that may see it.

    The priors never change, so their values are computed once, when a transition is stored.
    """

    x: Float[Array, "R d"]
    level: Int[Array, " R"]
    action: Int[Array, " R"]
    reward: Float[Array, " R"]
    next_x: Float[Array, "R d"]
    seen_by: Bool[Array, "R N"]
    prior: Float[Array, "R N"]
    """Of the action taken."""
    next_prior: Float[Array, "R N A"]


class BootDqnState(eqx.Module):
    """State between two updates."""

    key: PRNGKeyArray
    iteration: Int[np.ndarray, ""]
    episodes: Int[np.ndarray, ""]
    env_steps: Int[np.ndarray, ""]
    ensemble: Ensemble
    target: Layers
    optimizer: Any
    replay: Replay
    inserted: Int[Array, ""]
    explore_return: Float[Array, ""]
    reached_level: Float[Array, ""]


class BootDqn(Algorithm[BootDqnState]):
    """Bootstrapped DQN on the environment behind `sampler`."""

    name = "boot-dqn"
    config: BootDqnConfig

    def __init__(self, sampler: Sampler, config: BootDqnConfig):
        self.sampler, self.config = sampler, config
        if config.replay_size < config.workers * sampler.horizon:
            needed = f"{config.workers} episodes of {sampler.horizon} steps"
            raise ValueError(f"replay_size must hold {needed}, got {config.replay_size}: enlarge it")

    def init(self, key: PRNGKeyArray) -> BootDqnState:
        """Random networks and no data."""
        H, A, d, c = self.sampler.horizon, self.sampler.num_actions, inputs_of(self.sampler), self.config
        sizes = d + H, c.hidden_size, c.hidden_size, A
        make = jax.vmap(lambda key: new_layers(key, sizes, "relu"))
        nets, priors = (make(jax.random.split(stream(key, name), c.heads)) for name in ("nets", "priors"))
        zero, missing, R, N = np.asarray(0, np.int64), jnp.float32(jnp.nan), c.replay_size, c.heads
        whole, x = jnp.zeros(R, jnp.int32), jnp.zeros((R, d))
        values = jnp.zeros((R, N), bool), jnp.zeros((R, N)), jnp.zeros((R, N, A))
        return BootDqnState(
            key=key, iteration=zero, episodes=zero, env_steps=zero,
            ensemble=Ensemble(nets, priors, c.prior_scale, H), target=nets,
            optimizer=optax.adam(c.learning_rate).init(cast(Any, nets)),
            replay=Replay(x, whole, whole, jnp.zeros(R), x, *values), inserted=jnp.int32(0),
            explore_return=missing, reached_level=missing,
        )  # fmt: skip

    def update(self, state: BootDqnState, phase: PhaseHook = no_phases) -> BootDqnState:
        """Several rounds of playing and learning."""
        now = state
        for index in range(self.config.rounds):
            phase("collect")
            key = stream(state.key, "round", int(state.iteration), index)
            played = self.sampler.rollout(self.policy(now, "optimistic"), key, self.config.workers)
            phase("plan")
            now = replace(
                _learned(now, played, stream(key, "learn"), self.config),
                explore_return=played.reward.sum(axis=1).mean(),
                reached_level=jnp.float32(deepest_good_level(self.sampler, played)),
            )
        n = self.config.rounds * self.config.workers
        return replace(  # the counters of `state`, since a jitted function returns them with 32 bits
            now,
            iteration=state.iteration + 1,
            episodes=state.episodes + n,
            env_steps=state.env_steps + n * self.sampler.horizon,
        )

    def policy(self, state: BootDqnState, kind: PolicyKind = "greedy") -> Policy:
        """The ensemble's mean, or one network per episode, as used for exploring."""
        if kind == "greedy":
            return MeanPolicy(state.ensemble)
        return HeadPolicy(state.ensemble, jnp.int32(self.config.heads))

    def metrics(self, state: BootDqnState) -> dict[str, float]:
        """Measurements of the last update, for metrics.csv."""
        return {"explore_return": float(state.explore_return), "reached_level": float(state.reached_level)}


@eqx.filter_jit
def _learned(state: BootDqnState, played: Trajectories, key: PRNGKeyArray, config: BootDqnConfig):
    """The state after these episodes were stored and learned from."""
    mask_key, step_key = jax.random.split(key)
    replay = _stored(state, played, mask_key, config.mask)
    inserted = state.inserted + played.action.size
    rule, filled = optax.adam(config.learning_rate), jnp.minimum(inserted, config.replay_size)

    def step(i, carry):
        nets, target, memory = carry
        rows = jax.random.randint(jax.random.fold_in(step_key, i), (config.batch,), 0, filled)
        part = jax.tree.map(lambda leaf: leaf[rows], replay)
        gradient = jax.grad(dqn_loss)(nets, target, state.ensemble, part, config.discount)
        change, memory = rule.update(gradient, memory)
        nets = optax.apply_updates(nets, change)
        copy = (i + 1) % config.target_period == 0
        return nets, jax.tree.map(lambda new, old: jnp.where(copy, new, old), nets, target), memory

    start = state.ensemble.nets, state.target, state.optimizer
    steps = config.steps_per_episode * config.workers
    nets, target, memory = jax.lax.fori_loop(0, steps, step, start)
    ensemble = eqx.tree_at(lambda e: e.nets, state.ensemble, nets)
    return replace(
        state, ensemble=ensemble, target=target, optimizer=memory, replay=replay, inserted=inserted
    )


def dqn_loss(nets: Layers, target: Layers, ensemble: Ensemble, rows: Replay, discount: float) -> Array:
    """The squared error of every network on the rows it may see, averaged."""
    learned, later = jax.vmap(ensemble.learned, (None, 0, 0)), rows.level + 1
    next_q = learned(target, later, rows.next_x) + rows.next_prior  # [n, N, A]
    value = jnp.where((later < ensemble.horizon)[:, None], next_q.max(axis=2), 0.0)
    goal = rows.reward[:, None] + discount * value
    taken = _of_action(learned(nets, rows.level, rows.x), rows.action) + rows.prior
    return (rows.seen_by * (taken - goal) ** 2).sum(axis=1).mean()


def _of_action(values: Float[Array, "n N A"], action: Int[Array, " n"]) -> Float[Array, "n N"]:
    return jnp.take_along_axis(values, action[:, None, None], axis=2)[..., 0]


def _stored(state: BootDqnState, played: Trajectories, key: PRNGKeyArray, mask: float) -> Replay:
    """The buffer with these episodes in place of the oldest."""
    replay, prior = state.replay, jax.vmap(state.ensemble.prior)
    E, H = played.action.shape
    flat = played.observation.reshape(E, H + 1, -1)
    x, next_x = (part.reshape(E * H, -1) for part in (flat[:, :-1], flat[:, 1:]))
    level, action = jnp.tile(jnp.arange(H), E), played.action.reshape(-1)
    seen_by = jax.random.bernoulli(key, mask, (E * H, replay.seen_by.shape[1]))
    values = _of_action(prior(level, x), action), prior(level + 1, next_x)
    new = Replay(x, level, action, played.reward.reshape(-1), next_x, seen_by, *values)
    places = (state.inserted + jnp.arange(E * H)) % len(replay.action)
    return jax.tree.map(lambda old, rows: old.at[places].set(rows), replay, new)
