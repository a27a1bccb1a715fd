"""LSVI, Algorithm 3: least-squares value iteration from the last level to the first.

Symbols: phi = psi ⊗ e_a features, w_h weights, Sigma_h covariance (one K x K block per action), lam
regularisation. Rows of data are [H, n, ...].
"""

from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from briee.algorithms.bonus import Bonus, upper_bound
from briee.algorithms.paper.buffers import Transitions
from briee.numerics.linalg import at_level, block_gram, block_moment, ridge
from briee.protocols import Reward


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
        reward = None if self.reward is None else self.reward(level, observation)
        bonus = None if self.bonus is None else self.bonus(level, psi)
        return action_values(self.weights[level], psi, reward, bonus, self.clip)


def action_values(w: Float[Array, "A K"], psi: Float[Array, " K"], reward, bonus, clip) -> Float[Array, " A"]:
    """min(w^T phi + r + b, clip) for all actions; r and b are [A] or None."""
    values = w @ psi
    if reward is not None:
        values = values + reward
    if bonus is not None:
        values = values + bonus
    return jnp.minimum(values, clip)


def lsvi(
    data: Transitions,
    decoder: eqx.Module,
    lam: float,
    num_actions: int,
    bonus: Bonus | None = None,
    reward: Reward | None = None,
    clip: float | None = None,
    prior: Literal["zero", "least"] = "zero",
) -> QFunction:
    """Algorithm 3. Without a known `reward`, the sampled one joins the regression target: the regression is
    linear in its targets, so this equals adding a ridge estimate of the reward to Q. `prior` is the value to
    which the ridge shrinks predictions, see `LSVIConfig`.

    A known reward enters the regression as numbers, so one compilation serves all rewards.
    """
    known = None if reward is None else arrival_rewards(reward, data.next_observation)
    weights = lsvi_weights(data, decoder, lam, num_actions, bonus, known, clip, prior)
    return QFunction(decoder, weights, upper_bound(clip), bonus, reward)


@eqx.filter_jit
def arrival_rewards(reward: Reward, next_observation: Float[Array, "H n ..."]) -> Float[Array, "H n A"]:
    """r_{h+1}(s', a) for each row of D_h and every action; r_H = 0."""
    of_level = jax.vmap(reward, (None, 0))
    earned = jax.vmap(of_level)(jnp.arange(1, len(next_observation)), next_observation[:-1])
    return jnp.concatenate([earned, jnp.zeros((1, *earned.shape[1:]))])


@eqx.filter_jit
def lsvi_weights(
    data: Transitions,
    decoder: eqx.Module,
    lam: float,
    num_actions: int,
    bonus: Bonus | None,
    reward: Float[Array, "H n A"] | None,
    clip: float | None,
    prior: Literal["zero", "least"] = "zero",
) -> Float[Array, "H A K"]:
    """The weights w_h of all levels; `reward` holds r_{h+1}(s', a), see `arrival_rewards`."""

    def backup(V: Float[Array, " n"], h: Int[Array, ""]):
        """From V_{h+1}(s') of each row of D_h to w_h, and to V_h(s') of each row of D_{h-1}."""
        rows = at_level(data, h)
        psi, weight = jax.vmap(at_level(decoder, h))(rows.observation), rows.valid.astype(V.dtype)
        target = V if reward is not None else V + rows.reward
        gram = block_gram(psi, rows.action, weight, num_actions)  # Alg. 3, l. 4
        moment = block_moment(psi, rows.action, weight, target[:, None], num_actions)
        least = least_value(V, rows.valid) if prior == "least" else 0.0
        w = ridge(gram, moment + lam * least, lam)[..., 0]  # Alg. 3, l. 5; psi sums to 1

        def value(s, r) -> Float[Array, ""]:
            psi = at_level(decoder, h)(s)
            b = None if bonus is None else bonus(h, psi)
            return action_values(w, psi, r, b, upper_bound(clip)).max()  # Alg. 3, l. 6

        arrivals = at_level((data.next_observation, reward), h - 1)  # level 0 has none: its V is not used
        return jax.vmap(value)(*arrivals), w

    H, n = data.action.shape
    V_H = jnp.zeros(n)  # Alg. 3, l. 2
    return jax.lax.scan(backup, V_H, jnp.arange(H), reverse=True)[1]


def least_value(V: Float[Array, " n"], valid: Bool[Array, " n"]) -> Float[Array, ""]:
    """The least value of the valid rows; zero if there are none."""
    return jnp.where(valid.any(), jnp.min(jnp.where(valid, V, jnp.inf)), 0.0)
