"""A level's decoder by variable projection: all regression weights are eliminated in closed form.

Symbols: D_h rows (s, a, r, s') of level h, F targets [n, T] (directions of s' and the reward), psi(s) soft
latent states [n, K], G indicators of the previous (label, action), lam ridge, V [D, d] basis of the decoder.
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
    x_before: Float[Array, "m d"]
    target_before: Float[Array, "m G"]
    weight_before: Float[Array, " m"]


def objective(
    parameters: Float[Array, " K*(d+1)"], problem: Problem, num_latents: int, lam: float, decay: float
) -> Float[Array, ""]:
    """J(A, b) = [sum_i ||F_i - W_{a_i}^T psi(x_i)||^2 + lam ||W||^2] / n     (forward)
               + [sum_i ||G_i - U^T psi(x_i)||^2 + lam ||U||^2] / m           (backward)
               + decay ||A||^2,          minimised over W and U.

    At their minimum the derivative by W and U is zero, so the gradient treats them as constants (envelope
    theorem) and never differentiates the solve.
    """
    A, b = unpack(parameters, num_latents)
    n, m = (jnp.maximum(w.sum(), 1.0) for w in (problem.weight, problem.weight_before))
    psi = jax.nn.softmax(problem.x @ A.T + b) * problem.weight[:, None]
    fixed = jax.lax.stop_gradient(psi)
    features = (problem.action[:, :, None] * fixed[:, None, :]).reshape(fixed.shape[0], -1)
    gram = (features.T @ fixed).reshape(-1, num_latents, num_latents)
    W = ridge(gram, (features.T @ problem.target).reshape(*gram.shape[:2], -1), lam)
    predicted = jnp.einsum("nk,nkt->nt", psi, jnp.tensordot(problem.action, W, 1))
    forward = jnp.sum((predicted - problem.target) ** 2) + lam * jnp.sum(W**2)
    q = jax.nn.softmax(problem.x_before @ A.T + b) * problem.weight_before[:, None]
    fixed = jax.lax.stop_gradient(q)
    U = ridge(fixed.T @ fixed, fixed.T @ problem.target_before, lam)
    backward = jnp.sum((q @ U - problem.target_before) ** 2) + lam * jnp.sum(U**2)
    return forward / n + backward / m + decay * jnp.sum(A**2)


def unpack(parameters: Float[Array, " K*(d+1)"], num_latents: int):
    """Weights [K, d] and biases [K]."""
    matrix = parameters.reshape(num_latents, -1)
    return matrix[:, :-1], matrix[:, -1]


def discriminators(
    y: Float[Array, "n D"],
    group: Int[Array, " n"],
    weight: Float[Array, " n"],
    num_groups: int,
    count: int,
    predictable: float = 1.0,
) -> Float[Array, "n T"]:
    """The next observations y, in white coordinates, along the T directions v that maximise
    v^T (C + predictable B) v: C their covariance and B that of the means of the groups (label, action), each
    shrunk by n_g / (n_g + 3). White noise has variance 1 in every direction, so what stands out in C tells
    latent states apart, and what stands out in B can be predicted. Scaled to a mean square of 1."""
    n = jnp.maximum(weight.sum(), 1.0)
    y = (y - (weight @ y) / n) * weight[:, None]
    one_hot = jax.nn.one_hot(group, num_groups) * weight[:, None]
    size = one_hot.sum(0)
    mean = (one_hot.T @ y) / (size + 3)[:, None]
    between = (mean * size[:, None]).T @ mean
    values = y @ top_subspace((y.T @ y + predictable * between) / n, count)
    return values / (jnp.sqrt(jnp.sum(values**2) / (n * count)) + 1e-6)


def whitened_indicators(
    group: Int[Array, " m"], weight: Float[Array, " m"], num_groups: int, few: float
) -> Float[Array, "m G"]:
    """(1{g_i = g} - n_g / m) sqrt(m / max(n_g, few)): regressed on psi, their explained sum of squares is a
    sum of squared canonical correlations between latent state and group."""
    one_hot = jax.nn.one_hot(group, num_groups) * weight[:, None]
    size, m = one_hot.sum(0), jnp.maximum(weight.sum(), 1.0)
    return (one_hot - weight[:, None] * size / m) * jnp.sqrt(m / jnp.maximum(size, few))


def fit_level(
    own: Strata,
    before: Strata,
    old: StateDecoder,
    after: StateDecoder,
    key: PRNGKeyArray,
    config: EfficientConfig,
    num_actions: int,
) -> tuple[StateDecoder, Float[Array, ""]]:
    """A new decoder for the level of `own`, and its objective. `before` is the level that leads to it; either
    may be empty (actions -1), as before the first level and at the observation after the last step."""
    K, settings = config.num_latents, config.fit
    last = ~jnp.any(own.action >= 0)
    pick = lambda one, two: jnp.where(last, two, one)  # noqa: E731
    rows, valid = pick(own.observation, before.next_observation), pick(own.weight, before.weight)
    label = jnp.where(old.fitted, pick(own.label, before.next_label), 0)
    noise = purest_noise(rows, label, valid, K)
    problem, offset, V = set_up(own, before, old, after, noise, config, num_actions)
    A, b, value = solve(problem, old, noise, offset, V, key, settings, K)
    white = A @ V.T
    weight = white @ noise.whiten
    bias = b - white @ offset - weight @ noise.mean
    return with_region(weight, bias, noise, rows, valid, settings.radius), value


def set_up(
    own: Strata,
    before: Strata,
    old: StateDecoder,
    after: StateDecoder,
    noise: Noise,
    config: EfficientConfig,
    num_actions: int,
) -> tuple[Problem, Float[Array, " D"], Float[Array, "D d"]]:
    """Balanced samples of both data sets, the targets, and the subspace: its offset and basis V."""
    settings, K = config.fit, config.num_latents
    few, groups, size = settings.few, (K + 1) * num_actions, config.strata.fit_rows
    group, parent = own.group(num_actions), before.group(num_actions)
    kind = jnp.where(parent >= 0, parent * (K + 1) + before.next_label, -1)
    stratified = config.strata.stratified
    i, w = balanced(group if stratified else own.one_group(), own.priority, size)
    j, u = balanced(kind if stratified else before.one_group(), before.priority, size)
    x, x_before = noise.white(own.observation[i]), noise.white(before.next_observation[j])
    action = jax.nn.one_hot(own.action[i], num_actions) * w[:, None]
    reward = own.reward[i]
    reward = (reward - (w @ reward) / jnp.maximum(w.sum(), 1.0)) * w
    reward = reward / (jnp.sqrt(jnp.sum(reward**2) / jnp.maximum(w.sum(), 1.0)) + 1e-3)
    predictable = float(settings.discriminators == "predictable")
    y = after.white(own.next_observation[i])
    y = discriminators(y, group[i], w, groups, settings.directions, predictable)
    target = jnp.concatenate([y, settings.reward * reward[:, None]], 1)
    target = target * jnp.sqrt(settings.forward / (y.shape[1] + 1))
    indicators = whitened_indicators(parent[j], u, groups, few)

    both, weight = jnp.concatenate([x, x_before]), jnp.concatenate([w, u])
    offset = (weight @ both) / weight.sum()
    x, x_before = (x - offset) * w[:, None], (x_before - offset) * u[:, None]
    V = subspace(x, action, target, x_before, indicators, old.weight @ noise.factor, few)
    x, x_before = x @ V, x_before @ V
    itself = x_before / jnp.sqrt(jnp.maximum(jnp.sum(x_before**2) / jnp.maximum(u.sum(), 1.0), 1e-6))
    itself = jnp.sqrt(settings.compact) * itself
    target_before = jnp.concatenate([jnp.sqrt(settings.backward) * indicators, itself], 1)
    return Problem(x, action, target, w, x_before, target_before, u), offset, V


def subspace(
    x: Float[Array, "n D"],
    action: Float[Array, "n A"],
    target: Float[Array, "n T"],
    x_before: Float[Array, "m D"],
    indicators: Float[Array, "m G"],
    old: Float[Array, "K D"],
    few: float,
) -> Float[Array, "D d"]:
    """An orthonormal basis of the directions that may matter to the decoder: of largest variance, best
    explained by the past, best explaining the future, and its old rows. Far fewer than D of them, so that a
    few rows cannot be told apart by chance."""
    K = old.shape[0]
    variance = x.T @ x + x_before.T @ x_before
    past = x_before.T @ indicators
    future = jnp.einsum("na,nd,nt->dat", action, x, target) / jnp.sqrt(action.sum(0) + few)[None, :, None]
    future = future.reshape(x.shape[1], -1)
    D = x.shape[1]
    matrices = jnp.stack([variance, past @ past.T, future @ future.T])
    tops = jax.vmap(lambda matrix: top_subspace(matrix, min(K + 1, D)))(matrices)
    directions = jnp.concatenate([*tops, old.T], axis=1)
    return orthonormal(directions[:, :D])


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
    points, weight = joined(problem)
    first = jnp.argmax(weight * jax.random.uniform(first_key, weight.shape))
    centres, _ = lloyd(points, weight, farthest_first(points, weight, first, K), 12)
    gaussian = jnp.concatenate([centres, -0.5 * jnp.sum(centres**2, 1, keepdims=True)], 1)
    spread = jnp.sum((centres - centres.mean(0)) ** 2) / K
    starts = jnp.stack([warm, gaussian * jnp.minimum(1.0, 4.0 / (spread + 1e-6)), draw(random_key)])

    def descend(start):
        loss = lambda p: objective(p, problem, K, settings.ridge, settings.decay)  # noqa: E731
        return minimise(loss, start, settings.evaluations)

    ends, values = jax.lax.map(descend, starts.reshape(3, -1))  # one by one: each ends as soon as it can
    best = jnp.argmin(jnp.where(jnp.isfinite(values), values, jnp.inf))
    return *unpack(ends[best], K), values[best]


def joined(problem: Problem) -> tuple[Float[Array, "n+m d"], Float[Array, " n+m"]]:
    """All observations of the level in the problem, with their weights."""
    points = jnp.concatenate([problem.x, problem.x_before])
    return points, jnp.concatenate([problem.weight, problem.weight_before])
