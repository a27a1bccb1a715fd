"""A level's decoder by variable projection: all regression weights are eliminated in closed form.

Symbols: D_h rows (s, a, r, s') of level h, F targets [n, T] (directions of s' and the reward), psi(s) soft
latent states [n, K], lam ridge, V [D, d] basis of the decoder, x = V^T z observations in white coordinates.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from briee.efficient_config import EfficientConfig, FitConfig
from briee.lbfgs import minimise
from briee.linalg import orthonormal, ridge, top_subspace
from briee.states import Noise, StateDecoder, farthest_first, lloyd, purest_noise, with_region
from briee.strata import Strata, balanced


class Problem(NamedTuple):
    """What the decoder of a level is fitted to, in coordinates of its subspace. Rows of weight 0 are zero."""

    x: Float[Array, "n d"]
    action: Float[Array, "n A"]
    target: Float[Array, "n T"]
    weight: Float[Array, " n"]
    itself: Float[Array, "n d"]
    """x once more, scaled and times the root of `mass`."""
    mass: Float[Array, " n"]


def objective(
    parameters: Float[Array, " K*(d+1)"], problem: Problem, num_latents: int, lam: float, decay: float
) -> Float[Array, ""]:
    """J(A, b) = [sum_i ||F_i - W_{a_i}^T psi(x_i)||^2 + lam ||W||^2] / n          (forward)
               + [sum_i m_i ||X_i - U^T psi(x_i)||^2 + lam ||U||^2] / n            (compact)
               + decay ||A||^2,          minimised over W and U.

    At their minimum the derivative by W and U is zero, so the gradient treats them as constants (envelope
    theorem) and never differentiates the solve.
    """
    A, b = unpack(parameters, num_latents)
    n = jnp.maximum(problem.weight.sum(), 1.0)
    soft = jax.nn.softmax(problem.x @ A.T + b)
    psi = soft * problem.weight[:, None]
    fixed = jax.lax.stop_gradient(psi)
    features = (problem.action[:, :, None] * fixed[:, None, :]).reshape(fixed.shape[0], -1)
    gram = (features.T @ fixed).reshape(-1, num_latents, num_latents)
    W = ridge(gram, (features.T @ problem.target).reshape(*gram.shape[:2], -1), lam)
    predicted = jnp.einsum("nk,nkt->nt", psi, jnp.tensordot(problem.action, W, 1))
    forward = jnp.sum((predicted - problem.target) ** 2) + lam * jnp.sum(W**2)
    q = soft * jnp.sqrt(problem.mass)[:, None]
    fixed = jax.lax.stop_gradient(q)
    U = ridge(fixed.T @ fixed, fixed.T @ problem.itself, lam)
    compact = jnp.sum((q @ U - problem.itself) ** 2) + lam * jnp.sum(U**2)
    return (forward + compact) / n + decay * jnp.sum(A**2)


def unpack(parameters: Float[Array, " K*(d+1)"], num_latents: int):
    """Weights [K, d] and biases [K]."""
    matrix = parameters.reshape(num_latents, -1)
    return matrix[:, :-1], matrix[:, -1]


def discriminators(y: Float[Array, "n D"], weight: Float[Array, " n"], count: int) -> Float[Array, "n T"]:
    """The next observations y, in white coordinates, along their first T principal components.

    White noise, however loud it was, has a variance below (1 + sqrt(D/n))^2 in every direction of n rows
    (Marchenko and Pastur): components are kept as far as they stand out of that, v - edge of their variance
    v, and scaled to a mean square of 1 if anything does. So nothing is to be predicted where every action
    leads to the same state.
    """
    n = jnp.maximum(weight.sum(), 1.0)
    y = (y - (weight @ y) / n) * weight[:, None]
    values = y @ top_subspace(y.T @ y / n, count)
    variance = jnp.sum(values**2, 0) / n
    edge = (1 + jnp.sqrt(y.shape[1] / n)) ** 2
    keep = jnp.maximum(1 - edge / (variance + 1e-6), 0.0)
    return values * jnp.sqrt(keep / (jnp.mean(keep * variance) + 1.0))


def fit_level(
    own: Strata,
    before: Strata,
    old: StateDecoder,
    after: StateDecoder,
    key: PRNGKeyArray,
    config: EfficientConfig,
    num_actions: int,
) -> tuple[StateDecoder, Float[Array, ""]]:
    """A new decoder for the level of `own`, and its objective. The observation after the last step has no
    rows of its own (actions -1); it is fitted to those that led to it, of the level `before`."""
    K, settings, last = config.num_latents, config.fit, ~jnp.any(own.action >= 0)
    rows = Strata(
        observation=jnp.where(last, before.next_observation, own.observation),
        next_observation=jnp.where(last, 0.0, own.next_observation),
        action=jnp.where(last, before.action, own.action),
        reward=jnp.where(last, 0.0, own.reward),
        priority=jnp.where(last, before.priority, own.priority),
        label=jnp.where(last, before.next_label, own.label),
        next_label=own.next_label,
    )
    noise = purest_noise(rows.observation, rows.label, rows.weight, K)
    problem, offset, V = set_up(rows, old, after, noise, config, num_actions)
    A, b, value = solve(problem, old, noise, offset, V, key, settings, K)
    white = A @ V.T
    weight = white @ noise.whiten
    bias = b - white @ offset - weight @ noise.mean
    region = settings.radius, settings.apart
    return with_region(weight, bias, noise, rows.observation, rows.weight, *region), value


def set_up(
    rows: Strata,
    old: StateDecoder,
    after: StateDecoder,
    noise: Noise,
    config: EfficientConfig,
    num_actions: int,
) -> tuple[Problem, Float[Array, " D"], Float[Array, "D d"]]:
    """A balanced sample of the rows, the targets, and the subspace: its offset and basis V."""
    settings, stratified = config.fit, config.strata.stratified
    group = rows.group(num_actions) if stratified else rows.one_group()
    i, w = balanced(group, rows.priority, config.strata.fit_rows)
    n = jnp.maximum(w.sum(), 1.0)
    action = jax.nn.one_hot(rows.action[i], num_actions) * w[:, None]
    reward = (rows.reward[i] - (w @ rows.reward[i]) / n) * w
    reward = reward / (jnp.sqrt(jnp.sum(reward**2) / n) + 1e-3)
    y = discriminators(after.white(rows.next_observation[i]), w, settings.directions)
    target = jnp.concatenate([y, settings.reward * reward[:, None]], 1)
    target = target * jnp.sqrt(settings.forward / (y.shape[1] + 1))
    x = noise.white(rows.observation[i])
    offset = (w @ x) / n
    x = (x - offset) * w[:, None]
    V = subspace(x, action, target, old.weight @ noise.factor)
    x = x @ V
    mass = label_mass(rows.label[i], w, config.num_latents + 1)
    itself = jnp.sqrt(mass)[:, None] * x
    itself = itself * jnp.sqrt(settings.compact * n / jnp.maximum(jnp.sum(itself**2), 1e-6))
    return Problem(x, action, target, w, itself, mass), offset, V


def label_mass(label: Int[Array, " n"], weight: Float[Array, " n"], num_labels: int) -> Float[Array, " n"]:
    """Weights proportional to 1 / (n_c + 10), n_c rows with the label of that row, with a mean of 1: labels
    of more than a few rows weigh about the same, whether they have 30 rows or 500."""
    one_hot = jax.nn.one_hot(label, num_labels) * weight[:, None]
    mass = one_hot @ (1 / (one_hot.sum(0) + 10.0))
    return mass * weight.sum() / jnp.maximum(mass.sum(), 1e-6)


def subspace(
    x: Float[Array, "n D"],
    action: Float[Array, "n A"],
    target: Float[Array, "n T"],
    old: Float[Array, "K D"],
) -> Float[Array, "D d"]:
    """An orthonormal basis of the directions that may matter to the decoder: of largest variance, best
    explaining the future, and its old rows. Far fewer than D of them, so that a few rows cannot be told apart
    by chance."""
    K, D = old.shape
    future = jnp.einsum("na,nd,nt->dat", action, x, target) / jnp.sqrt(action.sum(0) + 5.0)[None, :, None]
    future = future.reshape(D, -1)
    matrices = jnp.stack([x.T @ x, future @ future.T])
    tops = jax.vmap(lambda matrix: top_subspace(matrix, min(K + 1, D)))(matrices)
    return orthonormal(jnp.concatenate([*tops, old.T], axis=1)[:, :D])


def solve(
    problem: Problem,
    old: StateDecoder,
    noise: Noise,
    offset: Float[Array, " D"],
    V: Float[Array, "D d"],
    key: PRNGKeyArray,
    settings: FitConfig,
    num_latents: int,
) -> tuple[Float[Array, "K d"], Float[Array, " K"], Float[Array, ""]]:
    """The best of three local minima, from the old decoder, from k-means, and from a random one; and J."""
    K, d = num_latents, V.shape[1]
    random_key, fallback_key, first_key = jax.random.split(key, 3)
    draw = lambda key: jnp.concatenate([jax.random.normal(key, (K, d)) / jnp.sqrt(d), jnp.zeros((K, 1))], 1)  # noqa: E731
    white = old.weight @ noise.factor
    bias = jnp.maximum(old.bias + old.weight @ noise.mean + white @ offset, -20.0)
    warm = jnp.where(old.fitted, jnp.concatenate([white @ V, bias[:, None]], 1), draw(fallback_key))
    points, weight = problem.x, problem.weight
    first = jnp.argmax(weight * jax.random.uniform(first_key, weight.shape))
    centres, _ = lloyd(points, problem.mass, farthest_first(points, weight, first, K), 12)
    gaussian = jnp.concatenate([centres, -0.5 * jnp.sum(centres**2, 1, keepdims=True)], 1)
    spread = jnp.sum((centres - centres.mean(0)) ** 2) / K
    starts = jnp.stack([warm, gaussian * jnp.minimum(1.0, 4.0 / (spread + 1e-6)), draw(random_key)])

    def descend(start):
        loss = lambda p: objective(p, problem, K, settings.ridge, settings.decay)  # noqa: E731
        return minimise(loss, start, settings.evaluations)

    ends, values = jax.lax.map(descend, starts.reshape(3, -1))  # one by one: each ends as soon as it can
    best = jnp.argmin(jnp.where(jnp.isfinite(values), values, jnp.inf))
    return *unpack(ends[best], K), values[best]
