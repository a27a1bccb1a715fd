"""Least squares on the features psi(z) = softmax(M [z, 1]), their ridge weights eliminated in closed form.

Symbols: z coordinates of observations [n, d], F targets [n, T], W_a ridge weights, lam their regularisation.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from briee.compute import quick_jit
from briee.numerics.linalg import minimise, ridge

RIDGE = 0.1  # lam, on the sum over rows: a tenth of a row
DECAY = 0.02  # of the squared weights of the decoder, on the same sum: keeps the features soft


def projected_loss(
    M: Float[Array, " numbers"],
    z: Float[Array, "n d"],
    action: Float[Array, "n A"],
    weight: Float[Array, " n"],
    F: Float[Array, "n T"],
) -> Float[Array, ""]:
    """min_W sum_i w_i ||F_i - W_{a_i}^T psi(z_i)||^2 + lam ||W||^2, plus the decay (Alg. 2, l. 3, as a sum).

    At the minimum the derivative by W is zero, so the gradient treats W as a constant (envelope theorem).
    """
    units = M.reshape(-1, z.shape[1] + 1)
    psi = jax.nn.softmax(z @ units[:, :-1].T + units[:, -1])
    fixed = jax.lax.stop_gradient(psi)
    K = fixed.shape[1]
    features = (action[:, :, None] * (fixed * weight[:, None])[:, None, :]).reshape(len(fixed), -1)
    gram = (features.T @ fixed).reshape(-1, K, K)
    W = ridge(gram, (features.T @ F).reshape(-1, K, F.shape[1]), RIDGE)
    predicted = jnp.einsum("nk,nkt->nt", psi, jnp.tensordot(action, W, 1))
    error = jnp.sum(weight[:, None] * (predicted - F) ** 2)
    return error + RIDGE * jnp.sum(W**2) + DECAY * jnp.sum(units[:, :-1] ** 2)


@quick_jit
def best_units(
    starts: Float[ArrayLike, "S K columns"],
    z: Float[ArrayLike, "n d"],
    action: Float[ArrayLike, "n A"],
    weight: Float[ArrayLike, " n"],
    F: Float[ArrayLike, "n T"],
    evaluations: int,
) -> Float[Array, "K columns"]:
    """The best of the local minima from these starts, by L-BFGS."""
    z, action, weight, F, starts = (jnp.asarray(array) for array in (z, action, weight, F, starts))
    loss = partial(projected_loss, z=z, action=action, weight=weight, F=F)
    flat = starts.reshape(starts.shape[0], -1)
    ends, values = jax.lax.map(lambda start: minimise(loss, start, evaluations), flat)
    return ends[jnp.argmin(jnp.where(jnp.isfinite(values), values, jnp.inf))].reshape(starts.shape[1:])
