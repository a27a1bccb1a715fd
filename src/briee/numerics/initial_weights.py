"""Random initial weights of networks."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray


def orthonormal_rows(key: PRNGKeyArray, rows: int, columns: int) -> Float[Array, "rows columns"]:
    """A random matrix whose rows (or columns, if there are fewer) are orthonormal."""
    return jax.nn.initializers.orthogonal()(key, (rows, columns), jnp.float32)


def scaled_normal(key: PRNGKeyArray, fan_out: int, fan_in: int) -> Float[Array, "fan_out fan_in"]:
    """He initialisation: normal weights that keep the scale of activations through ReLU layers."""
    return jax.random.normal(key, (fan_out, fan_in)) * jnp.sqrt(2.0 / fan_in)
