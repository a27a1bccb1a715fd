"""The latent states of a level as the learner knows them: a linear decoder and the region it is trusted in,
the noise around each state, and clusters of observations.

Symbols: n observations of dimension D, K latent states; white coordinates z = W (s - mean), in which the
noise around a latent state is about standard normal.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int
from scipy.special import gammainc, gammaincinv

from briee.numerics.linalg import factorise, log_determinant, top_subspace

NEVER = -1e6  # bias of a latent state that no observation has
NOWHERE = 1e4  # coordinates of its centre: no observation is that far away
UPPER_QUARTILE = 0.674  # of the standard normal, in standard deviations above the median
LEAST_RADIUS = 0.1  # per dimension: without noise all distances are rounding errors

# the noise
CENTRAL = 0.8  # share of a label's rows, those nearest to its centre, that its covariance is estimated from
CENTRAL_STEPS = 2  # concentration steps towards the minimum covariance determinant: few rows change after two
TRUST = 1.0, 0.3, 0.1  # candidates for the trust in a covariance of n rows, as multiples of n / (n + D)
HARMONIC_STEPS = 2  # fixed-point steps for the scale of the shrinkage target
ENOUGH_ROWS = 20.0  # smaller labels do not compete for the smallest determinant, if there is a larger one
LEAST_LEFT_OUT = 0.05  # bound on the correction for a row that nearly determines the covariance by itself
RELATIVE_FLOOR, FLOOR = 1e-3, 1e-8  # least variance in any direction, relative to the mean one and absolute

# clusters
LLOYD_STEPS = 12  # k-means from farthest-first centres hardly moves afterwards
UNUSED_CENTRE = 1e6  # coordinates of a centre not chosen yet: farther away than any observation
TINY = 1e-12  # keeps quotients finite if all points coincide
EMPTY = 1e-6  # divisor instead of the size 0 of a part without points


class Noise(NamedTuple):
    """Covariance L L^T of the observations around their latent state, estimated from `members`."""

    mean: Float[Array, " D"]
    factor: Float[Array, "D D"]
    """L."""
    whiten: Float[Array, "D D"]
    """L^-1."""
    members: Float[Array, " n"]
    share: Float[Array, ""]
    """Weight of a single row in the covariance."""


class StateDecoder(eqx.Module):
    """psi(s) = softmax(A s + b), trusted within `radius` (a squared distance) of a centre.

    Its K parts are latent states or pieces of one; parts with the same `alias` are the same state.
    """

    weight: Float[Array, "*H K D"]
    bias: Float[Array, "*H K"]
    mean: Float[Array, "*H D"]
    whiten: Float[Array, "*H D D"]
    centre: Float[Array, "*H K D"]
    radius: Float[Array, "*H"]
    alias: Int[Array, "*H K"]
    fitted: Bool[Array, "*H"]

    def logits(self, observation: Float[Array, "*n D"]) -> Float[Array, "*n K"]:
        """Scores of the parts."""
        return observation @ self.weight.T + self.bias

    def probabilities(self, observation: Float[Array, "*n D"]) -> Float[Array, "*n K"]:
        """psi(s), summed over the parts of each state."""
        return jax.nn.softmax(self.logits(observation)) @ jax.nn.one_hot(self.alias, self.alias.shape[-1])

    def nearest(self, observation: Float[Array, "*n D"]) -> Int[Array, "*n"]:
        """The likeliest latent state, 0 to K - 1."""
        return self.alias[jnp.argmax(self.logits(observation), axis=-1)]

    def label(self, observation: Float[Array, "*n D"]) -> Int[Array, "*n"]:
        """The likeliest latent state, or K if the observation is far from all of them."""
        distance = squared_distances(white(observation, self.mean, self.whiten), self.centre)
        return jnp.where(distance.min(-1) > self.radius, self.bias.shape[-1], self.nearest(observation))


def unfitted(levels: int, num_latents: int, dimension: int) -> StateDecoder:
    """Decoders that give every observation the label 0."""
    return StateDecoder(
        weight=jnp.zeros((levels, num_latents, dimension)),
        bias=jnp.zeros((levels, num_latents)),
        mean=jnp.zeros((levels, dimension)),
        whiten=jnp.broadcast_to(jnp.eye(dimension), (levels, dimension, dimension)),
        centre=jnp.zeros((levels, num_latents, dimension)),
        radius=jnp.full(levels, jnp.inf),
        alias=jnp.broadcast_to(jnp.arange(num_latents, dtype=jnp.int32), (levels, num_latents)),
        fitted=jnp.zeros(levels, bool),
    )


def gaussian_decoder(
    weight: Float[Array, "K D"],
    bias: Float[Array, " K"],
    noise: Noise,
    observation: Float[Array, "n D"],
    valid: Float[Array, " n"],
    deviations: float,
    apart: float,
) -> StateDecoder:
    """A Gaussian classifier, in all D coordinates, of the states that (weight, bias) tells apart.

    log p(s | k) = -|z - c_k|^2 / 2, corrected for the error D / n of a centre c_k of n rows. Rows that shaped
    the noise covariance have the distance of a left-out row. The radius is the median distance plus
    `deviations` (robust) standard deviations.
    """
    K, D = weight.shape
    z = white(observation, noise.mean, noise.whiten)
    part = jnp.argmax(observation @ weight.T + bias, axis=1)
    one_hot = jax.nn.one_hot(part, K) * valid[:, None]
    size = one_hot.sum(0)
    centre = jnp.where(size[:, None] > 0, (one_hot.T @ z) / jnp.maximum(size, 1.0)[:, None], NOWHERE)
    distance = jnp.sum((z - centre[part]) ** 2, axis=1)
    distance = distance / jnp.where(noise.members > 0, left_out(distance, noise.share), 1.0)
    middle, upper = jnp.nanquantile(jnp.where(valid > 0, distance, jnp.nan), jnp.array([0.5, 0.75]))
    radius = jnp.maximum(middle + deviations * (upper - middle) / UPPER_QUARTILE, LEAST_RADIUS * D)
    known = jnp.where(size[:, None] > 0, centre, 0.0)
    weight = known @ noise.whiten
    bias = 0.5 * (D / jnp.maximum(size, 1.0) - jnp.sum(known**2, 1)) - weight @ noise.mean
    bias = jnp.where(size > 0, bias, NEVER)
    nearest = jnp.argmax(observation @ weight.T + bias, axis=1)
    alias = jnp.argmax(close_parts(z, nearest, valid, K, apart), axis=1).astype(jnp.int32)
    return StateDecoder(weight, bias, noise.mean, noise.whiten, centre, radius, alias, jnp.array(True))


def white(
    observation: Float[Array, "*n D"], mean: Float[Array, " D"], whiten: Float[Array, "D D"]
) -> Float[Array, "*n D"]:
    """White coordinates z = L^-1 (s - mean)."""
    return (observation - mean) @ whiten.T


def estimate_noise(
    observation: Float[Array, "n D"],
    label: Int[Array, " n"],
    weight: Float[Array, " n"],
    num_latents: int,
    apart: float,
) -> Noise:
    """The shrunk covariance of the most central rows of the purest label, which has the smallest determinant.

    Labels that still mix several states look noisier than they are. Pooling all labels would therefore hide
    the very directions that tell these states apart. If a label contains several separated clusters, use only
    the largest; otherwise their difference is absorbed into the noise covariance and never detected.
    """
    K, D = num_latents, observation.shape[1]
    n = jnp.maximum(weight.sum(), 1.0)
    mean = (weight @ observation) / n
    rows = (observation - mean) * weight[:, None]
    spread = jnp.sum(rows**2) / n / D
    members = jax.nn.one_hot(label, K, axis=0) * weight
    size = members.sum(1)
    volumes = jax.lax.map(lambda member: log_determinant(shrunk_covariance(rows, member, spread)), members)
    purest = jnp.argmin(jnp.where(size >= jnp.minimum(ENOUGH_ROWS, size.max()), volumes, jnp.inf))
    central = central_rows(rows, largest_cluster(rows, members[purest], K, apart), spread)
    raw, n = covariance(rows, central), central.sum()
    kept = float(gammainc(D / 2 + 1, gammaincinv(D / 2, CENTRAL))) / CENTRAL  # variance left by the cut
    factor, whiten, share = likeliest_shrinkage(raw / kept, n, spread)
    return Noise(mean, factor, whiten, central, share)


def likeliest_shrinkage(
    raw: Float[Array, "D D"], n: Float[Array, ""], spread: Float[Array, ""]
) -> tuple[Float[Array, "D D"], Float[Array, "D D"], Float[Array, ""]]:
    """L and L^-1 with L L^T = t raw + (1 - t) rho I, and the share b = t / (n - 1) of a row in it.

    The trust t maximises the likelihood of left-out rows: few rows suffice for noise that is alike in all
    directions, but not for loud and quiet directions. rho is the harmonic mean of the result's own
    eigenvalues; an arithmetic mean would lift the quiet directions, in which states differ, to the level of
    the loud ones. The mean squared distance r = tr(L^-1 raw L^-T) of the rows stands for that of each. The
    share ignores that `raw` was widened for the cut tails.
    """
    D = raw.shape[0]
    trust = jnp.array(TRUST) * n / (n + D)
    shrink = lambda scale: factorise(jax.vmap(shrunk, (None, 0, 0, None))(raw, trust, scale, spread))  # noqa: E731
    harmonic = lambda _, scale: D / jnp.sum(shrink(scale)[1] ** 2, axis=(1, 2))  # noqa: E731
    scale = jax.lax.fori_loop(0, HARMONIC_STEPS, harmonic, jnp.full(len(TRUST), jnp.trace(raw) / D))
    factor, whiten = shrink(scale)
    r = jnp.sum((whiten @ raw) * whiten, axis=(1, 2))
    share = trust / jnp.maximum(n - 1, 1.0)
    rest = left_out(r, share)
    volume = 2 * jnp.log(jnp.diagonal(factor, axis1=1, axis2=2)).sum(1)
    best = jnp.argmin(volume + jnp.log(rest) + r / rest)
    return factor[best], whiten[best], share[best]


def left_out(distance: Float[Array, " n"], share: Float[Array, "..."]) -> Float[Array, " n"]:
    """1 - b r for a row of squared distance r and share b in the covariance (Sherman-Morrison).

    Without that row, its distance is r / (1 - b r) and the determinant 1 - b r times as large.
    """
    return jnp.maximum(1 - share * distance, LEAST_LEFT_OUT)


def covariance(rows: Float[Array, "n D"], member: Float[Array, " n"]) -> Float[Array, "D D"]:
    """The covariance of the rows whose `member` is 1; that of the others is 0."""
    n = member.sum()
    rows = (rows - (member @ rows) / jnp.maximum(n, 1.0)) * member[:, None]
    return rows.T @ rows / jnp.maximum(n - 1, 1.0)


def shrunk(
    raw: Float[Array, "D D"], trust: Float[Array, ""], scale: Float[Array, ""], spread: Float[Array, ""]
) -> Float[Array, "D D"]:
    """trust raw + (1 - trust) scale I, never singular."""
    return trust * raw + ((1 - trust) * scale + RELATIVE_FLOOR * spread + FLOOR) * jnp.eye(raw.shape[0])


def shrunk_covariance(
    rows: Float[Array, "n D"], member: Float[Array, " n"], spread: Float[Array, ""]
) -> Float[Array, "D D"]:
    """The covariance of n members, shrunk by D / (n + D) towards the mean of its eigenvalues."""
    raw, n, D = covariance(rows, member), member.sum(), rows.shape[1]
    return shrunk(raw, n / (n + D), jnp.trace(raw) / D, spread)


def central_rows(
    rows: Float[Array, "n D"], member: Float[Array, " n"], spread: Float[Array, ""]
) -> Float[Array, " n"]:
    """The share `CENTRAL` of the members nearest to their centre, as 0 or 1.

    Distances use the covariance of the previous central rows (steps towards the minimum covariance
    determinant), so that a few rows of a state not yet told apart do not count as noise.
    """

    def step(_, central):
        whiten = factorise(shrunk_covariance(rows, central, spread))[1]
        centre = (central @ rows) / jnp.maximum(central.sum(), 1.0)
        distance = jnp.sum(((rows - centre) @ whiten.T) ** 2, axis=1)
        return member * (distance <= jnp.nanquantile(jnp.where(member > 0, distance, jnp.nan), CENTRAL))

    return jax.lax.fori_loop(0, CENTRAL_STEPS, step, member)


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
