"""Fit a level's decoder by variable projection: all regression weights are eliminated in closed form,
and L-BFGS minimises over the decoder.

Symbols: rows (s, a, r, s') of a level, F targets [n, T] (directions of s' and the reward), psi(s) soft latent
states [n, K], lam ridge, V [D, d] basis of the decoder, x = V^T z observations in white coordinates.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from briee.algorithms.efficient.config import EfficientConfig, FitConfig
from briee.algorithms.efficient.state_decoder import (
    Noise,
    StateDecoder,
    estimate_noise,
    gaussian_decoder,
    k_means,
    white,
)
from briee.algorithms.efficient.strata import Strata, balanced
from briee.numerics.linalg import minimise, orthonormal, ridge, top_subspace

TINY = 1e-6  # keeps quotients finite if all rows coincide
LEAST_DEVIATION = 1e-3  # added to the reward's standard deviation, so that a constant reward stays 0
PRIOR_ROWS = 10.0  # labels with more rows than about this many weigh alike; single rows do not
PRIOR_TRIES = 5.0  # damps the correlations of actions that were tried only a few times
LEAST_BIAS = -20.0  # an old state that no observation had must be able to come back
LARGEST_SPREAD = 4.0  # mean square of k-means centres as scores: L-BFGS should not start in saturated softmax


class Problem(NamedTuple):
    """The regression data of a level, in coordinates of the decoder's subspace. Rows of weight 0 are zero."""

    x: Float[Array, "n d"]
    action: Float[Array, "n A"]
    target: Float[Array, "n T"]
    weight: Float[Array, " n"]
    itself: Float[Array, "n d"]
    """x once more, scaled and times the root of `mass`."""
    mass: Float[Array, " n"]


def objective(
    parameters: Float[Array, " numbers"], problem: Problem, lam: float, decay: float
) -> Float[Array, ""]:
    """J(A, b) = [sum_i ||F_i - W_{a_i}^T psi(x_i)||^2 + lam ||W||^2] / n          (forward)
               + [sum_i m_i ||X_i - U^T psi(x_i)||^2 + lam ||U||^2] / n            (compact)
               + decay ||A||^2,          minimised over W and U.

    At their minimum the derivative by W and U is zero, so the gradient treats them as constants (envelope
    theorem) and never differentiates the solve.
    """
    A, b = unpack(parameters, problem.x.shape[1])
    K, n = b.shape[0], jnp.maximum(problem.weight.sum(), 1.0)
    soft = jax.nn.softmax(problem.x @ A.T + b)
    psi = soft * problem.weight[:, None]
    fixed = jax.lax.stop_gradient(psi)
    features = (problem.action[:, :, None] * fixed[:, None, :]).reshape(fixed.shape[0], -1)
    gram = (features.T @ fixed).reshape(-1, K, K)
    W = ridge(gram, (features.T @ problem.target).reshape(*gram.shape[:2], -1), lam)
    predicted = jnp.einsum("nk,nkt->nt", psi, jnp.tensordot(problem.action, W, 1))
    forward = jnp.sum((predicted - problem.target) ** 2) + lam * jnp.sum(W**2)
    q = soft * jnp.sqrt(problem.mass)[:, None]
    fixed = jax.lax.stop_gradient(q)
    U = ridge(fixed.T @ fixed, fixed.T @ problem.itself, lam)
    compact = jnp.sum((q @ U - problem.itself) ** 2) + lam * jnp.sum(U**2)
    return (forward + compact) / n + decay * jnp.sum(A**2)


def unpack(
    parameters: Float[Array, " numbers"], dimension: int
) -> tuple[Float[Array, "K d"], Float[Array, " K"]]:
    """Weights A and biases b, from K (d + 1) numbers."""
    matrix = parameters.reshape(-1, dimension + 1)
    return matrix[:, :-1], matrix[:, -1]


def discriminators(y: Float[Array, "n D"], weight: Float[Array, " n"], count: int) -> Float[Array, "n T"]:
    """The next observations y, in white coordinates, along their first T principal components.

    In n rows of white noise every direction has a variance below (1 + sqrt(D/n))^2 (Marchenko and Pastur). A
    component of variance v counts by its excess v - edge. The components are scaled to a mean square of about
    1 if any exceeds the edge. So there is nothing to predict if every action leads to the same state.
    """
    n = jnp.maximum(weight.sum(), 1.0)
    y = (y - (weight @ y) / n) * weight[:, None]
    values = y @ top_subspace(y.T @ y / n, count)
    variance = jnp.sum(values**2, 0) / n
    edge = (1 + jnp.sqrt(y.shape[1] / n)) ** 2
    keep = jnp.maximum(1 - edge / (variance + TINY), 0.0)
    return values * jnp.sqrt(keep / (jnp.mean(keep * variance) + 1.0))


def fit_level(
    rows: Strata,
    old: StateDecoder,
    after: StateDecoder,
    key: PRNGKeyArray,
    config: EfficientConfig,
    num_actions: int,
) -> tuple[StateDecoder, Float[Array, ""]]:
    """A new decoder for the level of `rows`, and its objective; `after` decodes the next observations."""
    fit = config.fit
    noise = estimate_noise(rows.observation, rows.label, rows.weight, config.num_latents, fit.apart)
    problem, offset, V = set_up(rows, old, after, noise, config, num_actions)
    scores = old.weight @ noise.factor
    bias = jnp.maximum(old.bias + old.weight @ noise.mean + scores @ offset, LEAST_BIAS)
    warm = jnp.concatenate([scores @ V, bias[:, None]], 1)
    A, b, value = solve(problem, warm, old.fitted, key, fit)
    scores = A @ V.T
    weight = scores @ noise.whiten
    bias = b - scores @ offset - weight @ noise.mean
    region = fit.radius, fit.apart
    return gaussian_decoder(weight, bias, noise, rows.observation, rows.weight, *region), value


def set_up(
    rows: Strata,
    old: StateDecoder,
    after: StateDecoder,
    noise: Noise,
    config: EfficientConfig,
    num_actions: int,
) -> tuple[Problem, Float[Array, " D"], Float[Array, "D d"]]:
    """A balanced sample of the rows, their targets, and the subspace: its offset and basis V."""
    fit = config.fit
    group = rows.group(num_actions, config.strata.stratified)
    i, w = balanced(group, rows.priority, config.strata.fit_rows)
    n = jnp.maximum(w.sum(), 1.0)
    action = jax.nn.one_hot(rows.action[i], num_actions) * w[:, None]
    reward = (rows.reward[i] - (w @ rows.reward[i]) / n) * w
    reward = reward / (jnp.sqrt(jnp.sum(reward**2) / n) + LEAST_DEVIATION)
    y = discriminators(white(rows.next_observation[i], after.mean, after.whiten), w, fit.directions)
    target = jnp.concatenate([y, fit.reward * reward[:, None]], 1)
    target = target * jnp.sqrt(fit.forward / (y.shape[1] + 1))
    x = white(rows.observation[i], noise.mean, noise.whiten)
    offset = (w @ x) / n
    x = (x - offset) * w[:, None]
    V = subspace(x, action, target, old.weight @ noise.factor)
    x = x @ V
    mass = label_mass(rows.label[i], w, config.num_latents + 1)
    itself = jnp.sqrt(mass)[:, None] * x
    itself = itself * jnp.sqrt(fit.compact * n / jnp.maximum(jnp.sum(itself**2), TINY))
    return Problem(x, action, target, w, itself, mass), offset, V


def label_mass(label: Int[Array, " n"], weight: Float[Array, " n"], num_labels: int) -> Float[Array, " n"]:
    """Weights proportional to 1 / (n_c + 10) for a label of n_c rows, with mean 1.

    Labels of more than a few rows weigh about the same, whether they have 30 rows or 500.
    """
    one_hot = jax.nn.one_hot(label, num_labels) * weight[:, None]
    mass = one_hot @ (1 / (one_hot.sum(0) + PRIOR_ROWS))
    return mass * weight.sum() / jnp.maximum(mass.sum(), TINY)


def subspace(
    x: Float[Array, "n D"], action: Float[Array, "n A"], target: Float[Array, "n T"], old: Float[Array, "K D"]
) -> Float[Array, "D d"]:
    """An orthonormal basis of the directions that may matter to the decoder: those of largest variance, those
    that best explain the targets, and its old weights. They are far fewer than D, so that a decoder cannot
    tell a few rows apart by chance."""
    K, D = old.shape
    future = jnp.einsum("na,nd,nt->dat", action, x, target)
    future = (future / jnp.sqrt(action.sum(0) + PRIOR_TRIES)[None, :, None]).reshape(D, -1)
    matrices = jnp.stack([x.T @ x, future @ future.T])
    tops = jax.vmap(lambda matrix: top_subspace(matrix, min(K + 1, D)))(matrices)
    return orthonormal(jnp.concatenate([*tops, old.T], axis=1)[:, :D])


def solve(
    problem: Problem,
    old: Float[Array, "K numbers"],
    fitted: Bool[Array, ""],
    key: PRNGKeyArray,
    fit: FitConfig,
) -> tuple[Float[Array, "K d"], Float[Array, " K"], Float[Array, ""]]:
    """The best of three local minima and its objective: from the old decoder, if it was fitted, from k-means,
    and from a random decoder."""
    K, d = old.shape[0], problem.x.shape[1]
    random_key, fallback_key, first_key = jax.random.split(key, 3)
    draw = lambda key: jnp.concatenate([jax.random.normal(key, (K, d)) / jnp.sqrt(d), jnp.zeros((K, 1))], 1)  # noqa: E731
    first = jnp.argmax(problem.weight * jax.random.uniform(first_key, problem.weight.shape))
    centres = k_means(problem.x, problem.weight, problem.mass, first, K)
    gaussian = jnp.concatenate([centres, -0.5 * jnp.sum(centres**2, 1, keepdims=True)], 1)
    spread = jnp.sum((centres - centres.mean(0)) ** 2) / K
    gaussian = gaussian * jnp.minimum(1.0, LARGEST_SPREAD / (spread + TINY))
    starts = jnp.stack([jnp.where(fitted, old, draw(fallback_key)), gaussian, draw(random_key)])

    def descend(start):
        return minimise(lambda p: objective(p, problem, fit.ridge, fit.decay), start, fit.evaluations)

    ends, values = jax.lax.map(descend, starts.reshape(3, -1))  # one by one: each stops as early as it can
    best = jnp.argmin(jnp.where(jnp.isfinite(values), values, jnp.inf))
    return *unpack(ends[best], d), values[best]
