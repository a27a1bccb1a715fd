"""Latent models of the rivals: plans in tables of decoded states, and a model with Gaussian emissions.

Symbols: K states of a level, A actions, n rows, levels 0 to H; p[h, s, a, s'] transition probabilities,
r[h, s, a] rewards. A row of p that was never seen is zero: nothing is known to lie behind it.

For Rep-UCB and FLAMBE, P(x' | x, a) = sum_z psi_z(x) sum_z' T[z, a, z'] N(x'; mu_z', sigma^2 I), where
psi(x) is the posterior of the latent state under the emissions of its own level, which is softmax(A x + b).
It is fitted by expectation maximisation; each trial begins at points that are far apart.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from briee.algorithms.baselines.config import LikelihoodConfig
from briee.algorithms.baselines.psdp import greedy_action

LEAST_VARIANCE = 1e-4
"""Keeps emissions from collapsing onto one row, or onto observations without noise."""
UNSEEN = 1e-3
"""Pseudo-count of each transition."""


class Emissions(eqx.Module):
    """Means and variance of the observations of one level, or of all levels with a leading axis."""

    means: Float[Array, "*levels K d"]
    variance: Float[Array, "*levels"]

    def log_density(self, x: Float[Array, "n d"]) -> Float[Array, "n K"]:
        """log N(x; mu_z, sigma^2 I) up to a constant, for one level."""
        distance = ((x[:, None] - self.means) ** 2).sum(axis=-1)
        return -distance / (2 * self.variance) - x.shape[1] / 2 * jnp.log(self.variance)

    def psi(self, x: Float[Array, "n d"]) -> Float[Array, "n K"]:
        """The posterior of the latent state, all states equally likely before."""
        return jax.nn.softmax(self.log_density(x))


class Decoder(eqx.Module):
    """The latent state of an observation: the most likely emission of its level."""

    emissions: Emissions

    def __call__(self, level, observation) -> Int[Array, ""]:
        distance = ((self.emissions.means[level] - observation.reshape(-1)) ** 2).sum(axis=-1)
        return jnp.argmin(distance).astype(jnp.int32)


def no_emissions(levels: int, num_latents: int, inputs: int) -> Emissions:
    """All means zero."""
    return Emissions(jnp.zeros((levels, num_latents, inputs)), jnp.ones(levels))


def fit(
    key: PRNGKeyArray,
    psi: Float[Array, "n K"],
    action: Int[Array, " n"],
    next_x: Float[Array, "n d"],
    weight: Float[Array, " n"],
    num_actions: int,
    config: LikelihoodConfig,
) -> tuple[Emissions, Float[Array, "K A K"], Float[Array, ""]]:
    """Emissions of x' and the transition table with the largest mean log-likelihood of several trials.

    `weight` is 1 for rows that count and 0 for others.
    """
    K, d, total = config.num_latents, next_x.shape[1], jnp.maximum(weight.sum(), 1.0)
    chosen = jax.nn.one_hot(action, num_actions)

    def maximise(joint: Float[Array, "n K K"]) -> tuple[Emissions, Array]:
        share = joint.sum(axis=1)
        means = (share.T @ next_x) / jnp.maximum(share.sum(axis=0), 1e-6)[:, None]
        spread = (share * ((next_x[:, None] - means) ** 2).sum(axis=-1)).sum()
        counts = jnp.einsum("na,nkl->kal", chosen, joint) + UNSEEN
        variance = jnp.maximum(spread / (d * total), LEAST_VARIANCE)
        return Emissions(means, variance), counts / counts.sum(axis=-1, keepdims=True)

    def expect(emissions: Emissions, T: Array) -> tuple[Array, Array]:
        prior = psi[:, :, None] * jnp.einsum("na,kal->nkl", chosen, T)
        density = emissions.log_density(next_x)
        top = density.max(axis=1, keepdims=True)
        joint = prior * jnp.exp(density - top)[:, None]
        evidence = joint.sum(axis=(1, 2))
        loglik = (weight * (jnp.log(evidence + 1e-30) + top[:, 0])).sum() / total
        return joint / (evidence + 1e-30)[:, None, None] * weight[:, None, None], loglik

    def trial(key):
        nearest = _far_points(key, next_x, weight, K)
        start = psi[:, :, None] * nearest[:, None] * weight[:, None, None]

        def step(_, joint):
            return expect(*maximise(joint))[0]

        emissions, T = maximise(jax.lax.fori_loop(0, config.steps, step, start))
        return emissions, T, expect(emissions, T)[1]

    fits = jax.lax.map(trial, jax.random.split(key, config.restarts))
    best = jnp.argmax(fits[2])
    return jax.tree.map(lambda leaf: leaf[best], fits)


def _far_points(key: PRNGKeyArray, x: Float[Array, "n d"], weight: Float[Array, " n"], K: int) -> Array:
    """Assignment [n, K] of each row to the nearest of K points, each as far as possible from those before."""
    first = x[jax.random.categorical(key, jnp.log(weight))]
    centres = [first]
    for _ in range(K - 1):
        distance = jnp.stack([((x - centre) ** 2).sum(axis=1) for centre in centres]).min(axis=0)
        centres.append(x[jnp.argmax(distance * weight)])
    distance = jnp.stack([((x - centre) ** 2).sum(axis=1) for centre in centres], axis=1)
    return jax.nn.one_hot(distance.argmin(axis=1), K)


def mean_rewards(
    psi: Float[Array, "n K"],
    action: Int[Array, " n"],
    reward: Float[Array, " n"],
    weight: Float[Array, " n"],
    num_actions: int,
) -> Float[Array, "K A"]:
    """The mean reward of each latent state and action, zero where there are no rows."""
    both = jnp.einsum("nk,na,n->nka", psi, jax.nn.one_hot(action, num_actions), weight)
    return jnp.einsum("nka,n->ka", both, reward) / jnp.maximum(both.sum(axis=0), 1.0)


Decode = Callable[[Int[Array, ""], Float[Array, "..."]], Int[Array, ""]]
"""(level, observation) -> decoded state; an `equinox.Module`."""


class TablePolicy(eqx.Module):
    """Greedy in a table of the decoded state."""

    decode: Any
    q: Float[Array, "H K A"]

    def __call__(self, level, observation, key) -> Int[Array, ""]:
        return greedy_action(self.q[level, self.decode(level, observation)], key)


class TableCover(eqx.Module):
    """A cover of such policies, which share their decoder."""

    decode: Any
    q: Float[Array, "M H K A"]
    size: Int[Array, ""]

    def act(self, member, level, observation, key) -> Int[Array, ""]:
        """The action of a member."""
        return greedy_action(self.q[member, level, self.decode(level, observation)], key)


def frequencies(counts: Float[Array, "H K A K"]) -> Float[Array, "H K A K"]:
    """p from counts; zero where nothing was counted."""
    return counts / jnp.maximum(counts.sum(axis=-1, keepdims=True), 1.0)


def dynamic_programming(p: Float[Array, "H K A K"], r: Float[Array, "H K A"]) -> Float[Array, "H K A"]:
    """Q of the best policy."""

    def back(value, tables):
        transition, reward = tables
        q = reward + transition @ value
        return q.max(axis=1), q

    return jax.lax.scan(back, jnp.zeros(p.shape[1]), (p, r), reverse=True)[1]


def homing_tables(p: Float[Array, "H K A K"], level: int | Int[Array, ""]) -> Float[Array, "K H K A"]:
    """For each state of `level` the Q of the policy that reaches it most often."""
    before = (jnp.arange(len(p)) == level - 1)[:, None, None]
    return jax.vmap(lambda target: dynamic_programming(p, jnp.where(before, p[..., target], 0.0)))(
        jnp.arange(p.shape[1])
    )


def occupancy(
    start: Float[Array, " K"], p: Float[Array, "H K A K"], q: Float[Array, "H K A"]
) -> Float[Array, "H K A"]:
    """The probability of (s, a) at each level under the greedy policy of q; ties are shared."""
    best = (q >= q.max(axis=-1, keepdims=True)).astype(jnp.float32)
    choice = best / best.sum(axis=-1, keepdims=True)

    def forward(state, tables):
        transition, chosen = tables
        both = state[:, None] * chosen
        return jnp.einsum("ka,kal->l", both, transition), both

    return jax.lax.scan(forward, start, (p, choice))[1]
