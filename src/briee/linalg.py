"""Ridge regression and elliptical norms for features phi(s, a) = psi(s) ⊗ e_a.

Such features make every covariance block diagonal, one K x K block per action, so the AK x AK matrix is never
built. Symbols: n samples, K features psi, A actions, T targets regressed at once.
"""

import jax
import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float, Int


def block_gram(
    psi: Float[Array, "n K"], action: Int[Array, " n"], weight: Float[Array, " n"], num_actions: int
) -> Float[Array, "A K K"]:
    """The blocks of sum_i weight_i phi_i phi_i^T."""
    selected = jax.nn.one_hot(action, num_actions, dtype=psi.dtype) * weight[:, None]
    return jnp.einsum("na,nk,nl->akl", selected, psi, psi)


def block_moment(
    psi: Float[Array, "n K"],
    action: Int[Array, " n"],
    weight: Float[Array, " n"],
    target: Float[Array, "n T"],
    num_actions: int,
) -> Float[Array, "A K T"]:
    """The blocks of sum_i weight_i phi_i target_i."""
    selected = jax.nn.one_hot(action, num_actions, dtype=psi.dtype) * weight[:, None]
    return jnp.einsum("na,nk,nt->akt", selected, psi, target)


def ridge(
    gram: Float[Array, "A K K"], moment: Float[Array, "A K T"], lam: float | Float[Array, ""]
) -> Float[Array, "A K T"]:
    """w = (gram + lam I)^-1 moment, block by block."""
    return jnp.linalg.solve(gram + lam * jnp.eye(gram.shape[-1], dtype=gram.dtype), moment)


def predict(
    weights: Float[Array, "A K T"], psi: Float[Array, "n K"], action: Int[Array, " n"]
) -> Float[Array, "n T"]:
    """phi(s_i, a_i)^T w for every sample and target."""
    return jnp.einsum("nk,nkt->nt", psi, weights[action])


def inverse_factor(gram: Float[Array, "A K K"], lam: float | Float[Array, ""]) -> Float[Array, "A K K"]:
    """M = L^-1 with (gram + lam I) = L L^T, so that ||phi||_{Sigma^-1} = ||M phi||."""
    identity = jnp.eye(gram.shape[-1], dtype=gram.dtype)
    lower = jnp.linalg.cholesky(gram + lam * identity)
    return solve_triangular(lower, jnp.broadcast_to(identity, lower.shape), lower=True)


def elliptical_norm(factor: Float[Array, "A K K"], psi: Float[Array, "n K"]) -> Float[Array, "n A"]:
    """||phi(s_i, a)||_{Sigma^-1} for every sample and every action; factor from `inverse_factor`."""
    return jnp.linalg.norm(jnp.einsum("akl,nl->nak", factor, psi), axis=-1)
