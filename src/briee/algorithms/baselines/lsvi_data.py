"""The data of LSVI-UCB: weighted transitions between codes of observations.

For one-hot codes, counts of (z, a, z') and sums of rewards are all that least squares needs.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int


class Rows(eqx.Module):
    """Weighted transitions of one level: codes of s and s', action, weight, and weight times reward."""

    code: Float[Array, "n C"]
    action: Int[Array, " n"]
    weight: Float[Array, " n"]
    reward: Float[Array, " n"]
    next_code: Float[Array, "n C"]


class Counts(eqx.Module):
    """Counts of transitions between one-hot codes, and sums of their rewards."""

    count: Float[Array, "H A K K"]
    reward: Float[Array, "H A K"]

    def insert(self, code: Float[Array, "levels m K"], action, reward) -> "Counts":
        """Count the steps of m episodes."""
        chosen = jax.nn.one_hot(action, self.count.shape[1])
        count = jnp.einsum("hma,hmk,hml->hakl", chosen, code[:-1], code[1:])
        total = jnp.einsum("hma,hmk,hm->hak", chosen, code[:-1], reward)
        return Counts(self.count + count, self.reward + total)

    @property
    def chunks(self) -> Int[Array, ""]:
        """One chunk holds all rows."""
        return jnp.int32(1)

    def rows(self, level: Int[Array, ""], chunk: Int[Array, ""]) -> Rows:
        """One row per (z, a, z'); the first row of (z, a) carries its rewards."""
        count, reward = self.count[level], self.reward[level]
        action, z, z_next = (index.reshape(-1) for index in jnp.indices(count.shape))
        reward = jnp.zeros_like(count).at[..., 0].set(reward)
        one_hot = jnp.eye(count.shape[-1])
        return Rows(one_hot[z], action, count.reshape(-1), reward.reshape(-1), one_hot[z_next])


class Episodes(eqx.Module):
    """A ring buffer of the newest episodes, by level; the code of s' is that of the next level."""

    code: Float[Array, "H n C"]
    action: Int[Array, "H n"]
    reward: Float[Array, "H n"]
    inserted: Int[Array, ""]
    batch: int = eqx.field(static=True)

    def insert(self, code: Float[Array, "levels m C"], action, reward) -> "Episodes":
        """Append m = `batch` episodes; they replace the oldest."""
        start = self.inserted % self.action.shape[1]
        put = lambda old, new: jax.lax.dynamic_update_slice_in_dim(old, new, start, axis=1)  # noqa: E731
        rows = put(self.code, code[:-1]), put(self.action, action), put(self.reward, reward)
        return Episodes(*rows, self.inserted + self.batch, self.batch)

    @property
    def chunks(self) -> Int[Array, ""]:
        """Number of filled batches."""
        return jnp.minimum(self.inserted, self.action.shape[1]) // self.batch

    def rows(self, level: Int[Array, ""], chunk: Int[Array, ""]) -> Rows:
        """Batch number `chunk` of one level; at the last level, s' is not used."""
        later = jnp.minimum(level + 1, len(self.action) - 1)
        at = lambda array, h: jax.lax.dynamic_slice_in_dim(array[h], chunk * self.batch, self.batch)  # noqa: E731
        code, next_code = at(self.code, level), at(self.code, later)
        return Rows(code, at(self.action, level), jnp.ones(self.batch), at(self.reward, level), next_code)
