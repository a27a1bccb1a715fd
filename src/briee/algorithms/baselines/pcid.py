"""PCID (Du, Krishnamurthy, Jiang, Agarwal, Dudik and Langford 2019).

    for h = 0, ..., H - 1:
        draw a decoded state of level h, follow the policy that reaches it, uniform action a, observe x_{h+1}
        regress the one-hot label (decoded state of x_h, a) on x_{h+1} by least squares: the prediction is the
        backward probability vector of x_{h+1};  k-means of these vectors gives the states of level h + 1
        count transitions and rewards;  dynamic programming finds the policy that reaches each new state
    dynamic programming with the counted rewards is the policy

States with equal backward probabilities are merged, so the lanes of the lock must not mix evenly:
`--env.switch_probability 0.1`. Level 0 has no past; its states are clusters of the observations, which its
authors' program, with one start, does not need.
"""

from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from briee.algorithms.baselines.attempts import Attempts, AttemptState, counted
from briee.algorithms.baselines.latent_models import (
    TableCover,
    TablePolicy,
    dynamic_programming,
    frequencies,
    homing_tables,
)
from briee.algorithms.baselines.psdp import gather, inputs_of
from briee.algorithms.baselines.rival_config import PcidConfig
from briee.numerics.keys import stream
from briee.numerics.linalg import ridge
from briee.protocols import Capabilities, PhaseHook, Policy, Sampler

LLOYD_STEPS = 30
"""Steps of k-means; clusters this small settle in fewer."""


class Backward(eqx.Module):
    """The decoder: the nearest centre of the predicted backward vector, at level 0 of the observation."""

    start: Float[Array, "K d"]
    weights: Float[Array, "levels e L"]
    centres: Float[Array, "levels K L"]
    sizes: Int[Array, " levels"]

    def __call__(self, level, observation) -> Int[Array, ""]:
        x = observation.reshape(-1)
        predicted = jnp.append(x, 1.0) @ self.weights[level]
        first = ((self.start - x) ** 2).sum(axis=1)
        later = ((self.centres[level] - predicted) ** 2).sum(axis=1)
        far = jnp.arange(len(first)) >= self.sizes[level]
        return jnp.argmin(jnp.where(far, jnp.inf, jnp.where(level == 0, first, later))).astype(jnp.int32)


class PcidState(AttemptState):
    """The counted model; the decoder is part of what is learned."""

    counts: Float[Array, "H K A K"]
    rewards: Float[Array, "H K A"]


class Pcid(Attempts[PcidState]):
    """PCID on the environment behind `sampler`."""

    name = "pcid"
    capabilities = Capabilities(decodes=True)
    config: PcidConfig

    def __init__(self, sampler: Sampler, config: PcidConfig):
        super().__init__(sampler, config)
        self.explore_updates, self.plan_updates = sampler.horizon, 0

    def blank(self, key: PRNGKeyArray) -> TablePolicy:
        """One state a level."""
        H, A, d, K = (
            self.sampler.horizon,
            self.sampler.num_actions,
            inputs_of(self.sampler),
            self.config.num_latents,
        )
        decoder = Backward(
            jnp.zeros((K, d)),
            jnp.zeros((H + 1, d + 1, K * A)),
            jnp.zeros((H + 1, K, K * A)),
            jnp.ones(H + 1, jnp.int32),
        )
        return TablePolicy(decoder, jnp.zeros((H, K, A)))

    def fresh(self, key: PRNGKeyArray, **common: Any) -> PcidState:
        """Nothing counted."""
        H, A, K = self.sampler.horizon, self.sampler.num_actions, self.config.num_latents
        return PcidState(key=key, **common, counts=jnp.zeros((H, K, A, K)), rewards=jnp.zeros((H, K, A)))

    def explore(self, state: PcidState, step: int, key: PRNGKeyArray, phase: PhaseHook) -> PcidState:
        """The states of level `step` + 1, and the transitions and rewards that lead to them."""
        phase("collect")
        decoder, n = state.learned.decode, self.config.episodes_per_level
        level = np.int32(step)  # an array, so that one compilation serves all levels
        homes = _homes(state.counts, level)
        cover = TableCover(decoder, homes, decoder.sizes[step])
        rows, steps = gather(self.sampler, cover, step, key, n)
        phase("represent")
        if step == 0:
            centres, size = self.clusters(rows.x, stream(key, "start"))
            decoder = eqx.tree_at(
                lambda d: (d.start, d.sizes), decoder, (centres, decoder.sizes.at[0].set(size))
            )
        K, A = self.config.num_latents, self.sampler.num_actions
        label, weights, predicted = _predicted(decoder, level, rows, K * A, self.config.lam)
        centres, size = self.clusters(predicted, stream(key, "clusters"))
        decoder = Backward(
            decoder.start,
            decoder.weights.at[step + 1].set(weights),
            decoder.centres.at[step + 1].set(centres),
            decoder.sizes.at[step + 1].set(size),
        )
        phase("plan")
        counts, rewards = _count(decoder, level, rows, label, state.counts, state.rewards)
        learned = TablePolicy(decoder, _planned(counts, rewards))
        return counted(state, rows, steps, counts=counts, rewards=rewards, learned=learned)

    def clusters(self, points: Float[Array, "n D"], key: PRNGKeyArray) -> tuple[Array, Int[Array, ""]]:
        """Centres of as many clusters, up to K, as all have enough rows, and their number."""
        K = self.config.num_latents
        for k in reversed(range(1, K + 1)):
            centres, sizes = k_means(points, k, K, key, self.config.restarts)
            if k == 1 or sizes[:k].min() >= self.config.least_cluster:
                return centres, jnp.int32(k)
        raise AssertionError

    def as_policy(self, learned: TablePolicy) -> Policy:
        """The plan in the counted model."""
        return learned

    def decode(self, state: PcidState, level: int, observations: Array) -> Float[Array, "n K"]:
        """One-hot states of this attempt."""
        return _decoded(state.learned.decode, jnp.int32(level), observations, self.config.num_latents)

    def decode_levels(self, state: PcidState, observations: Array) -> Float[Array, "H n K"]:
        """One-hot states of this attempt."""
        levels = jnp.arange(len(observations))
        each = partial(_decoded, num_latents=self.config.num_latents)
        return jax.vmap(each, (None, 0, 0))(state.learned.decode, levels, observations)


@eqx.filter_jit
def k_means(
    points: Float[Array, "n D"], k: int, slots: int, key: PRNGKeyArray, restarts: int
) -> tuple[Float[Array, "slots D"], Int[Array, " slots"]]:
    """The first k centres of the tightest of several trials, each begun at far points, and cluster sizes."""
    distances = lambda centres: ((points[:, None] - centres) ** 2).sum(-1)  # noqa: E731

    def begin(key):
        keys = jax.random.split(key, k)
        centres = [points[jax.random.randint(keys[0], (), 0, len(points))]]
        for one in keys[1:]:  # k-means++
            nearest = distances(jnp.stack(centres)).min(axis=1)
            centres.append(points[jax.random.categorical(one, jnp.log(nearest + 1e-12))])
        return jnp.stack(centres)

    def trial(key):
        def lloyd(_, centres):
            own = jax.nn.one_hot(distances(centres).argmin(axis=1), k)
            return (own.T @ points) / jnp.maximum(own.sum(axis=0), 1.0)[:, None]

        centres = jax.lax.fori_loop(0, LLOYD_STEPS, lloyd, begin(key))
        return centres, distances(centres).min(axis=1).sum()

    centres, spread = jax.lax.map(trial, jax.random.split(key, restarts))
    best = centres[jnp.argmin(spread)]
    sizes = jnp.bincount(distances(best).argmin(axis=1), length=slots)
    return jnp.zeros((slots, points.shape[1])).at[:k].set(best), sizes


@eqx.filter_jit
def _predicted(decoder: Backward, level, rows, labels: int, lam: float):
    """Decoded states, the least squares of the labels (state, action) on x', and its predictions."""
    state = jax.vmap(decoder, (None, 0))(level, rows.x)
    A = labels // decoder.centres.shape[1]
    target = jax.nn.one_hot(state * A + rows.action, labels)
    x = jnp.concatenate([rows.next_x, jnp.ones((len(target), 1))], axis=1)
    weights = ridge(x.T @ x, x.T @ target, lam * len(x))
    return state, weights, x @ weights


@eqx.filter_jit
def _count(decoder: Backward, level, rows, state, counts, rewards):
    """The model with these transitions; rewards are means."""
    K, A = counts.shape[1:3]
    after = jax.nn.one_hot(jax.vmap(decoder, (None, 0))(level + 1, rows.next_x), K)
    before, action = jax.nn.one_hot(state, K), jax.nn.one_hot(rows.action, A)
    own = jnp.einsum("nk,na,nl->kal", before, action, after)
    reward = jnp.einsum("nk,na,n->ka", before, action, rows.reward) / jnp.maximum(own.sum(-1), 1.0)
    return counts.at[level].set(own), rewards.at[level].set(reward)


@eqx.filter_jit
def _planned(counts, rewards):
    return dynamic_programming(frequencies(counts), rewards)


@eqx.filter_jit
def _homes(counts, level):
    return homing_tables(frequencies(counts), level)


@eqx.filter_jit
def _decoded(decoder, level, observations, num_latents: int):
    return jax.nn.one_hot(jax.vmap(decoder, (None, 0))(level, observations), num_latents)
