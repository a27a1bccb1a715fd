"""LSVI, Algorithm 3, and the exploration bonus of Algorithm 1.

Symbols: phi = psi ⊗ e_a features, w_h weights, Sigma_h covariance (one K x K block per action), lam
regularisation, alpha bonus coefficient. Rows of data are [H, n, ...].
"""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from briee.config import BonusConfig
from briee.data import Transitions
from briee.features import at_level
from briee.linalg import block_gram, block_moment, elliptical_norm, inverse_factor, ridge

Reward = Callable[[Int[Array, ""], Float[Array, "..."]], Float[Array, " A"]]
"""A known reward: (level, observation) -> one number per action."""


class Bonus(eqx.Module):
    """b_h(s, a) = min(alpha ||phi_h(s, a)||_{Sigma_h^-1}, cap)."""

    factor: Float[Array, "H A K K"]
    alpha: Float[Array, ""]
    cap: Float[Array, ""]

    def __call__(self, level: Int[Array, ""], psi: Float[Array, " K"]) -> Float[Array, " A"]:
        return jnp.minimum(self.alpha * elliptical_norm(self.factor[level], psi[None])[0], self.cap)


class QFunction(eqx.Module):
    """Q_h(s, a) = w_h^T phi_h(s, a) + r_h(s, a) + b_h(s, a); r and b may be absent."""

    decoder: eqx.Module
    weights: Float[Array, "H A K"]
    clip: Float[Array, ""]
    bonus: Bonus | None = None
    reward: Reward | None = None

    def __call__(self, level: Int[Array, ""], observation: Float[Array, "..."]) -> Float[Array, " A"]:
        """The values of all actions."""
        psi = at_level(self.decoder, level)(observation)
        values = self.weights[level] @ psi
        if self.reward is not None:
            values = values + self.reward(level, observation)
        if self.bonus is not None:
            values = values + self.bonus(level, psi)
        return jnp.minimum(values, self.clip)


class GreedyPolicy(eqx.Module):
    """pi_h(s) = argmax_a Q_h(s, a) (Alg. 3, l. 7), ties broken at random."""

    q: QFunction

    def __call__(self, level, observation, key) -> Int[Array, ""]:
        values = self.q(level, observation)
        return jax.random.categorical(key, jnp.where(values >= values.max(), 0.0, -jnp.inf))


def upper_bound(value: float | None) -> Float[Array, ""]:
    """A cap as an array; None is no cap."""
    return jnp.float32(jnp.inf if value is None else value)


def exploration_bonus(
    data: Transitions, decoder: eqx.Module, config: BonusConfig, lam: float, num_actions: int
) -> Bonus:
    """Alg. 1, l. 6, at every level; Sigma_h from D_h alone or from all data."""

    def factor(rows: Transitions, decoder):
        counted = rows.valid & (rows.on_policy if config.covariance == "on_policy" else True)
        psi = jax.vmap(decoder)(rows.observation)
        return inverse_factor(block_gram(psi, rows.action, counted.astype(psi.dtype), num_actions), lam)

    factors = jax.lax.map(lambda args: factor(*args), (data, decoder))
    return Bonus(factors, jnp.float32(config.alpha), upper_bound(config.cap))


def lsvi(
    data: Transitions,
    decoder: eqx.Module,
    lam: float,
    num_actions: int,
    bonus: Bonus | None = None,
    reward: Reward | None = None,
    clip: float | None = None,
) -> QFunction:
    """Algorithm 3. Without a known `reward` the sampled one joins the target: the regression is linear in its
    targets, so that is the same as estimating the reward by ridge regression and adding it."""
    H = data.action.shape[0]
    blank = QFunction(decoder, jnp.zeros(()), upper_bound(clip), bonus, reward)

    def backup(later_weights: Float[Array, "H A K"], h):
        rows = at_level(data, h)
        q = eqx.tree_at(lambda q: q.weights, blank, later_weights)
        later = jnp.minimum(h + 1, H - 1)
        value = jax.vmap(lambda s: q(later, s).max())(rows.next_observation)
        target = jnp.where(h + 1 < H, value, 0.0)  # Alg. 3, l. 2: V_H = 0
        if reward is None:
            target = target + rows.reward
        weight = rows.valid.astype(target.dtype)
        psi = jax.vmap(at_level(decoder, h))(rows.observation)
        gram = block_gram(psi, rows.action, weight, num_actions)  # Alg. 3, l. 4
        moment = block_moment(psi, rows.action, weight, target[:, None], num_actions)
        w = ridge(gram, moment, lam)[..., 0]  # Alg. 3, l. 5
        return later_weights.at[h].set(w), None

    K = jax.eval_shape(at_level(decoder, 0), data.observation[0, 0]).shape[0]
    weights, _ = jax.lax.scan(backup, jnp.zeros((H, num_actions, K)), jnp.arange(H), reverse=True)
    return eqx.tree_at(lambda q: q.weights, blank, weights)  # Alg. 3, l. 6
