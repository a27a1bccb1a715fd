"""Clusters of observations: k-means, and which parts of it are too close to be different states."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from briee.numerics.linalg import top_subspace

LLOYD_STEPS = 12  # k-means from farthest-first centres hardly moves afterwards
UNUSED_CENTRE = 1e6  # coordinates of a centre not chosen yet: farther away than any observation
TINY = 1e-12  # keeps quotients finite if all points coincide
EMPTY = 1e-6  # divisor instead of the size 0 of a part without points


def close_parts(
    z: Float[Array, "n D"], label: Int[Array, " n"], valid: Float[Array, " n"], num_parts: int, apart: float
) -> Bool[Array, "K K"]:
    """Which parts are less than `apart` standard deviations apart, along the line between their centres.

    The halves of one normal distribution are 2.7 apart; two clusters that single observations can be assigned
    to are more than 4 apart.
    """
    K, D = num_parts, z.shape[1]
    one_hot = jax.nn.one_hot(label, K) * valid[:, None]
    present, size = one_hot.sum(0) > 0, jnp.maximum(one_hot.sum(0), 1.0)
    centre = (one_hot.T @ z) / size[:, None]
    line = centre[:, None] - centre  # [K, K, D]
    along = jnp.einsum("nd,jkd->njk", z, line) - jnp.einsum("jd,jkd->jk", centre, line)
    square = jnp.einsum("nj,njk->jk", one_hot, along**2)  # of part j, about its own centre
    length = jnp.sum(line**2, -1)
    variance = (square + square.T) / (size[:, None] + size) / jnp.maximum(length, TINY)
    chance = D * (1 / size[:, None] + 1 / size)  # squared distance of two means of one distribution
    close = (length - chance < apart**2 * variance) & present[:, None] & present
    return close | jnp.eye(K, dtype=bool)


def largest_cluster(
    rows: Float[Array, "n D"], member: Float[Array, " n"], num_parts: int, apart: float
) -> Float[Array, " n"]:
    """The members in the largest cluster, as 0 or 1.

    k-means in the directions of largest variance finds `num_parts` parts; close parts form one cluster.
    """
    K, n = num_parts, jnp.maximum(member.sum(), 1.0)
    rows = (rows - (member @ rows) / n) * member[:, None]
    points = rows @ top_subspace(rows.T @ rows, min(K + 1, rows.shape[1]))
    centres = k_means(points, member, member, jnp.argmax(jnp.sum(points**2, axis=1)), K)
    part = jnp.argmin(squared_distances(points, centres), axis=1)
    variance = jnp.sum(member[:, None] * (points - centres[part]) ** 2) / n / points.shape[1]
    close = close_parts(points * jax.lax.rsqrt(variance + TINY), part, member, K, apart)
    for _ in range((K - 1).bit_length()):  # transitive closure
        close = close @ close
    cluster = jnp.argmax(close, axis=1)[part]
    size = jax.nn.one_hot(cluster, K, axis=0) @ member
    return member * (cluster == jnp.argmax(size))


def k_means(
    points: Float[Array, "n d"],
    valid: Float[Array, " n"],
    weight: Float[Array, " n"],
    first: Int[Array, ""],
    num_centres: int,
) -> Float[Array, "K d"]:
    """Centres of weighted k-means. The initial ones are the valid point `first`, then always the valid point
    farthest from all before."""

    def add(k, centres):
        return centres.at[k].set(points[jnp.argmax(squared_distances(points, centres).min(1) * valid)])

    def lloyd(_, centres):
        nearest = jnp.argmin(squared_distances(points, centres), axis=1)
        one_hot = jax.nn.one_hot(nearest, num_centres) * weight[:, None]
        size = one_hot.sum(0)[:, None]
        return jnp.where(size > 0, (one_hot.T @ points) / jnp.maximum(size, EMPTY), centres)

    centres = jnp.full((num_centres, points.shape[1]), UNUSED_CENTRE).at[0].set(points[first])
    centres = jax.lax.fori_loop(1, num_centres, add, centres)
    return jax.lax.fori_loop(0, LLOYD_STEPS, lloyd, centres)


def squared_distances(points: Float[Array, "*n d"], centres: Float[Array, "K d"]) -> Float[Array, "*n K"]:
    """||x_i - c_k||^2."""
    return jnp.sum(points**2, -1, keepdims=True) - 2 * points @ centres.T + jnp.sum(centres**2, -1)
