"""PPE (Efroni, Misra, Krishnamurthy, Agarwal and Langford 2022), path predictive elimination.

    for h = 0, ..., H - 1:
        extend each kept path of level h by each action; play a uniformly drawn one, observe x_{h+1}
        train a classifier of the path's index from x_{h+1}
        merge two paths if their predicted probabilities differ by less than 5 / (8 * number of paths): they
        end in the same state, and whatever else differs in the observation is exogenous
    value iteration over the kept paths, with the classifier as decoder

It assumes that the controllable state starts and moves almost deterministically: an action sequence leads to
one state. On the lock this needs `--env.num_good 1`.
"""

from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from briee.algorithms.baselines.attempts import Attempts, AttemptState, counted
from briee.algorithms.baselines.fitting import Layers, descend, new_layers, zero_layers
from briee.algorithms.baselines.latent_models import TablePolicy, dynamic_programming
from briee.algorithms.baselines.psdp import Gathered, gather, inputs_of
from briee.algorithms.baselines.rival_config import PpeConfig
from briee.numerics.linalg import at_level
from briee.protocols import Capabilities, PhaseHook, Policy, Sampler


class PathDecoder(eqx.Module):
    """The state of an observation: the kept path that stands for the most likely candidate."""

    classifier: Layers
    state: Int[Array, "levels C"]
    """For each candidate the kept path that it was merged with; level 0 has one state."""

    def __call__(self, level, observation) -> Int[Array, ""]:
        logits = at_level(self.classifier, level)(observation.reshape(-1))
        return self.state[level, jnp.argmax(jnp.where(self.state[level] < 0, -jnp.inf, logits))]


class Paths(eqx.Module):
    """The kept paths of a level as a cover: action sequences, played with closed eyes."""

    actions: Int[Array, "P H"]
    size: Int[Array, ""]

    def act(self, member, level, observation, key) -> Int[Array, ""]:
        """The action of a path."""
        return self.actions[member, level]


class PpeState(AttemptState):
    """The kept paths of every level, their number, and the mean reward of each extension."""

    paths: Int[Array, "levels P H"]
    sizes: Int[Array, " levels"]
    rewards: Float[Array, "H P A"]


class Ppe(Attempts[PpeState]):
    """PPE on the environment behind `sampler`."""

    name = "ppe"
    capabilities = Capabilities(decodes=True)
    config: PpeConfig

    def __init__(self, sampler: Sampler, config: PpeConfig):
        super().__init__(sampler, config)
        self.explore_updates, self.plan_updates = sampler.horizon, 0

    def blank(self, key: PRNGKeyArray) -> TablePolicy:
        """One state a level."""
        H, A, P = self.sampler.horizon, self.sampler.num_actions, self.config.num_latents
        classifier = zero_layers((inputs_of(self.sampler), P * A), H + 1)
        return TablePolicy(
            PathDecoder(classifier, jnp.zeros((H + 1, P * A), jnp.int32)), jnp.zeros((H, P, A))
        )

    def fresh(self, key: PRNGKeyArray, **common: Any) -> PpeState:
        """The empty path."""
        H, A, P = self.sampler.horizon, self.sampler.num_actions, self.config.num_latents
        paths, sizes = jnp.zeros((H + 1, P, H), jnp.int32), jnp.ones(H + 1, jnp.int32)
        return PpeState(key=key, **common, paths=paths, sizes=sizes, rewards=jnp.zeros((H, P, A)))

    def explore(self, state: PpeState, step: int, key: PRNGKeyArray, phase: PhaseHook) -> PpeState:
        """Extend the paths of level `step`, and eliminate."""
        phase("collect")
        config, P, A = self.config, self.config.num_latents, self.sampler.num_actions
        cover = Paths(state.paths[step], state.sizes[step])
        rows, steps = gather(self.sampler, cover, step, key, config.episodes_per_level)
        phase("represent")
        classifier, gaps, means = classify(rows, state.sizes[step], config, P, A, key)
        size = int(state.sizes[step])
        merged, kept = eliminate(np.asarray(gaps), size * A, config.merge / (size * A), P)
        phase("plan")
        decoder = state.learned.decode
        decoder = PathDecoder(
            jax.tree.map(lambda leaf, own: leaf.at[step + 1].set(own), decoder.classifier, classifier),
            decoder.state.at[step + 1].set(jnp.asarray(merged)),
        )
        longer = np.asarray(state.paths[step + 1]).copy()
        for place, candidate in enumerate(kept):
            longer[place] = np.asarray(state.paths[step, candidate // A])
            longer[place, step] = candidate % A
        paths, rewards = state.paths.at[step + 1].set(longer), state.rewards.at[step].set(means)
        learned = TablePolicy(decoder, _planned(decoder.state, rewards, jnp.int32(step)))
        sizes = state.sizes.at[step + 1].set(len(kept))
        return counted(state, rows, steps, paths=paths, sizes=sizes, rewards=rewards, learned=learned)

    def as_policy(self, learned: TablePolicy) -> Policy:
        """Value iteration over the paths."""
        return learned

    def decode(self, state: PpeState, level: int, observations: Array) -> Float[Array, "n K"]:
        """One-hot states of this attempt."""
        return _decoded(state.learned.decode, jnp.int32(level), observations, self.config.num_latents)

    def decode_levels(self, state: PpeState, observations: Array) -> Float[Array, "H n K"]:
        """One-hot states of this attempt."""
        levels = jnp.arange(len(observations))
        each = partial(_decoded, num_latents=self.config.num_latents)
        return jax.vmap(each, (None, 0, 0))(state.learned.decode, levels, observations)


@eqx.filter_jit
def classify(rows: Gathered, size: Int[Array, ""], config: PpeConfig, P: int, A: int, key: PRNGKeyArray):
    """The classifier of the candidates, how far the predictions of each two differ on the rows of both, and
    the mean reward [P, A] of each."""
    init_key, fit_key = jax.random.split(key)
    candidate, there = rows.member * A + rows.action, jnp.arange(P * A) < size * A

    def log_probability(net: Layers, x):
        return jax.nn.log_softmax(jnp.where(there, net(x), -jnp.inf))

    def loss(net: Layers, part, key):
        x, candidate = part
        likely = jnp.take_along_axis(log_probability(net, x), candidate[:, None], axis=1)
        return config.lam * (net.weights[0] ** 2).sum() - likely.mean()

    net = descend(
        loss, new_layers(init_key, (rows.x.shape[1], P * A)), (rows.next_x, candidate), fit_key,
        steps=config.steps, batch=config.batch, learning_rate=config.learning_rate,
    )  # fmt: skip
    p, own = jnp.exp(log_probability(net, rows.next_x)), jax.nn.one_hot(candidate, P * A)
    count = own.sum(axis=0)

    def against(c):
        apart = own.T @ jnp.abs(p - p[:, c][:, None])
        return jnp.diagonal(apart) + apart[c]

    gaps = jax.lax.map(against, jnp.arange(P * A)) / jnp.maximum(count + count[:, None], 1.0)
    means = (own.T @ rows.reward) / jnp.maximum(count, 1.0)
    return net, gaps, means.reshape(P, A)


def eliminate(gaps: np.ndarray, candidates: int, least: float, room: int) -> tuple[np.ndarray, list[int]]:
    """For each candidate the place of the kept path that stands for it (-1: there is no such candidate), and
    the kept candidates, at most `room` of them; a candidate without room joins the nearest."""
    merged, kept = np.full(len(gaps), -1, np.int32), []
    for c in range(candidates):
        nearest = min(range(len(kept)), key=lambda place: gaps[c, kept[place]], default=None)
        if nearest is not None and (gaps[c, kept[nearest]] < least or len(kept) == room):
            merged[c] = nearest
        else:
            merged[c] = len(kept)
            kept.append(c)
    return merged, kept


@eqx.filter_jit
def _planned(
    state: Int[Array, "levels C"], rewards: Float[Array, "H P A"], step: Int[Array, ""]
) -> Float[Array, "H P A"]:
    """Value iteration: the extension of a path by an action leads to the kept path it was merged with."""
    H, P, A = rewards.shape
    p = jax.nn.one_hot(state[1:].reshape(H, P, A), P)
    known = (jnp.arange(H) <= step)[:, None, None]
    return dynamic_programming(p, jnp.where(known, rewards, 0.0))


@eqx.filter_jit
def _decoded(decoder, level, observations, num_latents: int):
    return jax.nn.one_hot(jax.vmap(decoder, (None, 0))(level, observations), num_latents)
