"""The elliptical bonus of Algorithm 1, LSVI-UCB, the theory and the report: its formula stands here alone."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from briee.numerics.linalg import block_gram, elliptical_norm, inverse_factor


def elliptical_bonus(norm: Float[Array, "*n"], alpha, cap=None) -> Float[Array, "*n"]:
    """min(alpha norm, cap), where norm is ||phi(s, a)||_{Sigma^-1}; None is no cap."""
    return alpha * norm if cap is None else jnp.minimum(alpha * norm, cap)


def one_hot_bonus(count: np.ndarray, lam: float, alpha: float, cap: float) -> np.ndarray:
    """The same for one-hot features, whose norm is 1 / sqrt(n + lam) after n visits; in float64."""
    return np.minimum(alpha / np.sqrt(count + lam), cap)


class Bonus(eqx.Module):
    """b_h(s, a) = min(alpha ||phi_h(s, a)||_{Sigma_h^-1}, cap)."""

    factor: Float[Array, "H A K K"]
    alpha: Float[Array, ""]
    cap: Float[Array, ""]

    def __call__(self, level: Int[Array, ""], psi: Float[Array, " K"]) -> Float[Array, " A"]:
        return elliptical_bonus(elliptical_norm(self.factor[level], psi[None])[0], self.alpha, self.cap)


def upper_bound(value: float | None) -> Float[Array, ""]:
    """A cap as an array; None is no cap."""
    return jnp.float32(jnp.inf if value is None else value)


@eqx.filter_jit
def exploration_bonus(
    psi: Float[Array, "H n K"],
    action: Int[Array, "H n"],
    counted: Bool[Array, "H n"],
    num_actions: int,
    lam: float,
    alpha: float,
    cap: float | None,
) -> Bonus:
    """Alg. 1, l. 6, at every level: Sigma_h is the covariance of the features of the counted rows."""

    def factor(psi, action, counted):
        return inverse_factor(block_gram(psi, action, counted.astype(psi.dtype), num_actions), lam)

    factors = jax.lax.map(lambda level: factor(*level), (psi, action, counted))
    return Bonus(factors, jnp.float32(alpha), upper_bound(cap))
