"""Which levels are learned anew, and from which rows: the bookkeeping around the held-out game.

Symbols: psi(s) soft latent states of the old features, Sigma their covariance, one block per action.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from briee.algorithms.bonus import Bonus

NEWEST = 0.5  # share of a sample that is newest: what the old features cannot tell apart has no leverage
LEVERAGE_RIDGE = 0.1  # regularisation of the leverages, in rows


def log_determinants(bonus: Bonus) -> Float[Array, " H"]:
    """log det Sigma_h of each level, from the factors L^-1 of Sigma = L L^T."""
    diagonal = jnp.diagonal(bonus.factor, axis1=-2, axis2=-1)
    return -2 * jnp.log(diagonal).sum((-1, -2))


def growth(before: Bonus, after: Bonus) -> Float[Array, " H"]:
    """How much log det Sigma_h and log det Sigma_{h-1} grew together: the level's own data, and what leads
    there. Data that leave the buffer do not count."""
    own = jnp.maximum(log_determinants(after) - log_determinants(before), 0)
    return own + jnp.pad(own[:-1], (1, 0))


def balanced_rows(
    psi: Float[np.ndarray, "n K"],
    action: Int[np.ndarray, " n"],
    rank: Int[np.ndarray, " n"],
    limit: int,
    rng: np.random.Generator,
) -> Int[np.ndarray, " m"]:
    """At most `limit` rows: the newest half, the others drawn by leverage ||phi||^2_{Sigma^-1}, so that rare
    cells (state, action) are as well represented as frequent ones."""
    n = len(action)
    if n <= limit:
        return np.arange(n)
    newest_first = np.argsort(-rank, kind="stable")
    newest, rest = np.split(newest_first, [int(NEWEST * limit)])
    leverage = np.zeros(len(rest))
    for a in np.unique(action[rest]):
        rows = action[rest] == a
        features = psi[rest[rows]]
        Sigma = features.T @ features + LEVERAGE_RIDGE * np.eye(psi.shape[1])
        leverage[rows] = np.einsum("nk,nk->n", features, np.linalg.solve(Sigma, features.T).T)
    late = rng.exponential(size=len(rest)) / np.maximum(leverage, 1e-12)  # sampling without replacement
    return np.concatenate([newest, rest[np.argsort(late)[: limit - len(newest)]]])


def host_generator(key: PRNGKeyArray) -> np.random.Generator:
    """A NumPy generator that depends on the key alone."""
    return np.random.default_rng(np.asarray(jax.random.key_data(key)))
