"""A level's latent states as the learner knows them: a linear decoder, and what lies far from all of them.

Symbols: n observations of dimension D, K latent states; white coordinates z = W (s - mean), in which the
noise around a latent state is about standard normal.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int
from scipy.special import gammainc, gammaincinv

from briee.linalg import factorise, log_determinant, top_subspace

NEVER = -1e6
"""Bias of a latent state that no observation has."""
CENTRAL = 0.8
"""Share of a label's rows that its covariance is estimated on: those nearest to its centre."""
TRUST = 1.0, 0.3, 0.1
"""How far a covariance of n rows in D dimensions may be trusted, times n / (n + D)."""
APART = 4.0
"""Clouds of one label are at least this many standard deviations apart."""


class Whitening(eqx.Module):
    """Something that knows how observations scatter around their latent state."""

    mean: eqx.AbstractVar[Float[Array, "*H D"]]
    whiten: eqx.AbstractVar[Float[Array, "*H D D"]]

    def white(self, observation: Float[Array, "*n D"]) -> Float[Array, "*n D"]:
        """White coordinates."""
        return (observation - self.mean) @ self.whiten.T


class StateDecoder(Whitening):
    """psi(s) = softmax(A s + b), and the region where it may be trusted: within `radius` of a centre. Its K
    parts are latent states, or pieces of one: those with the same `alias` are the same state."""

    weight: Float[Array, "*H K D"]
    bias: Float[Array, "*H K"]
    mean: Float[Array, "*H D"]
    whiten: Float[Array, "*H D D"]
    centre: Float[Array, "*H K D"]
    radius: Float[Array, "*H"]
    alias: Int[Array, "*H K"]
    fitted: Bool[Array, "*H"]

    def logits(self, observation: Float[Array, "*n D"]) -> Float[Array, "*n K"]:
        """Scores of the latent states."""
        return observation @ self.weight.T + self.bias

    def probabilities(self, observation: Float[Array, "*n D"]) -> Float[Array, "*n K"]:
        """psi(s), pieces of one state added up."""
        return jax.nn.softmax(self.logits(observation)) @ jax.nn.one_hot(self.alias, self.alias.shape[-1])

    def nearest(self, observation: Float[Array, "*n D"]) -> Int[Array, "*n"]:
        """The likeliest latent state, 0 to K - 1."""
        return self.alias[jnp.argmax(self.logits(observation), axis=-1)]

    def label(self, observation: Float[Array, "*n D"]) -> Int[Array, "*n"]:
        """The likeliest latent state, or K where the observation is far from all of them."""
        distance = squared_distances(self.white(observation), self.centre)
        far = distance.min(-1) > self.radius
        return jnp.where(far, self.bias.shape[-1], self.nearest(observation))


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


class Noise(Whitening):
    """Covariance L L^T of the observations around their latent state, estimated on `members`."""

    mean: Float[Array, " D"]
    factor: Float[Array, "D D"]
    whiten: Float[Array, "D D"]
    """L^-1."""
    members: Float[Array, " n"]
    share: Float[Array, ""]


def purest_noise(
    observation: Float[Array, "n D"],
    label: Int[Array, " n"],
    weight: Float[Array, " n"],
    num_latents: int,
) -> Noise:
    """The covariance within the purest latent state: that of the smallest determinant, of its most central
    rows, shrunk towards a multiple of the identity. States that the decoder still mixes up look noisier than
    they are, so a mean over all rows would hide just the directions that tell them apart. A label that mixes
    up clouds which are apart in plain coordinates counts as the largest of them: noise that hides a
    difference would otherwise do so for good.
    """
    K, D = num_latents, observation.shape[1]
    n = jnp.maximum(weight.sum(), 1.0)
    mean = (weight @ observation) / n
    rows = (observation - mean) * weight[:, None]
    spread = jnp.sum(rows**2) / n / D
    members = jax.nn.one_hot(label, K, axis=0) * weight
    size = members.sum(1)

    def volume(member):
        return log_determinant(usual_shrinkage(covariance(rows, member), member.sum(), spread))

    volumes = jax.lax.map(volume, members)
    best = jnp.argmin(jnp.where(size >= jnp.minimum(20.0, size.max()), volumes, jnp.inf))
    central = most_central(rows, largest_cloud(rows, members[best], K), spread)
    raw, n = covariance(rows, central), central.sum()
    kept = float(gammainc(D / 2 + 1, gammaincinv(D / 2, CENTRAL))) / CENTRAL  # what is cut off is widest
    factor, whiten, share = likeliest_shrinkage(raw / kept, n, spread)
    return Noise(mean, factor, whiten, central, share)


def likeliest_shrinkage(
    raw: Float[Array, "D D"], n: Float[Array, ""], spread: Float[Array, ""]
) -> tuple[Float[Array, "D D"], Float[Array, "D D"], Float[Array, ""]]:
    """L and L^-1 with L L^T = t raw + (1 - t) rho I, the trust t such that rows left out are likeliest, and
    the share b = t / (n - 1) that a row has in it, up to the factor of the cut tails by which `raw` is wider.

    Noise that is about the same in all directions is known from few rows, loud and quiet directions are not.
    rho is the harmonic mean of the result's own eigenvalues, by fixed-point iteration: an arithmetic mean
    would lift the quiet directions, in which states differ, to the level of the loud ones. The mean squared
    distance r of the rows, tr(L^-1 raw L^-T), stands for that of each.
    """
    D = raw.shape[0]
    trust = jnp.array(TRUST) * n / (n + D)
    shrink = lambda scale: factorise(jax.vmap(shrunk, (None, 0, 0, None))(raw, trust, scale, spread))  # noqa: E731
    harmonic = lambda _, scale: D / jnp.sum(shrink(scale)[1] ** 2, axis=(1, 2))  # noqa: E731
    scale = jax.lax.fori_loop(0, 2, harmonic, jnp.full(len(TRUST), jnp.trace(raw) / D))
    factor, whiten = shrink(scale)
    r = jnp.sum((whiten @ raw) * whiten, axis=(1, 2))
    share = trust / jnp.maximum(n - 1, 1.0)
    rest = left_out(r, share)
    volume = 2 * jnp.log(jnp.diagonal(factor, axis1=1, axis2=2)).sum(1)
    best = jnp.argmin(volume + jnp.log(rest) + r / rest)
    return factor[best], whiten[best], share[best]


def left_out(distance: Float[Array, " n"], share: Float[Array, "..."]) -> Float[Array, " n"]:
    """1 - b r for a row of squared distance r and share b in the covariance (Sherman-Morrison): without that
    row its distance is r / (1 - b r), and the determinant 1 - b r times as large."""
    return jnp.maximum(1 - share * distance, 0.05)


def largest_cloud(
    rows: Float[Array, "n D"], member: Float[Array, " n"], num_parts: int
) -> Float[Array, " n"]:
    """The members in the largest cloud, by k-means in the directions of their largest variance; parts that
    are not apart are one cloud."""
    K, n = num_parts, jnp.maximum(member.sum(), 1.0)
    rows = (rows - (member @ rows) / n) * member[:, None]
    points = rows @ top_subspace(rows.T @ rows, min(K + 1, rows.shape[1]))
    first = jnp.argmax(jnp.sum(points**2, axis=1))
    centres, _ = lloyd(points, member, farthest_first(points, member, first, K), 12)
    part = jnp.argmin(squared_distances(points, centres), axis=1)
    variance = jnp.sum(member[:, None] * (points - centres[part]) ** 2) / n / points.shape[1]
    close = close_parts(points * jax.lax.rsqrt(variance + 1e-12), part, member, K, APART)
    for _ in range((K - 1).bit_length()):  # here, parts close to the same part are close, too
        close = close @ close
    cloud = jnp.argmax(close, axis=1)[part]
    size = jax.nn.one_hot(cloud, K, axis=0) @ member
    return member * (cloud == jnp.argmax(size))


def covariance(rows: Float[Array, "n D"], member: Float[Array, " n"]) -> Float[Array, "D D"]:
    """That of the rows whose `member` is 1, the others' is 0."""
    n = member.sum()
    rows = (rows - (member @ rows) / jnp.maximum(n, 1.0)) * member[:, None]
    return rows.T @ rows / jnp.maximum(n - 1, 1.0)


def shrunk(
    raw: Float[Array, "D D"], trust: Float[Array, ""], scale: Float[Array, ""], spread: Float[Array, ""]
) -> Float[Array, "D D"]:
    """trust raw + (1 - trust) scale I, never singular."""
    return trust * raw + ((1 - trust) * scale + 1e-3 * spread + 1e-8) * jnp.eye(raw.shape[0])


def usual_shrinkage(
    raw: Float[Array, "D D"], n: Float[Array, ""], spread: Float[Array, ""]
) -> Float[Array, "D D"]:
    """A covariance of n rows, shrunk by D / (n + D) towards the mean of its eigenvalues."""
    D = raw.shape[0]
    return shrunk(raw, n / (n + D), jnp.trace(raw) / D, spread)


def most_central(
    rows: Float[Array, "n D"], member: Float[Array, " n"], spread: Float[Array, ""], steps: int = 2
) -> Float[Array, " n"]:
    """The members nearest to their centre by the covariance of those that were nearest before (steps towards
    the minimum covariance determinant): a few rows of a state not yet told apart do not count as noise."""

    def step(_, central):
        raw, n = covariance(rows, central), central.sum()
        whiten = factorise(usual_shrinkage(raw, n, spread))[1]
        centre = (central @ rows) / jnp.maximum(n, 1.0)
        distance = jnp.sum(((rows - centre) @ whiten.T) ** 2, axis=1)
        return member * (distance <= jnp.nanquantile(jnp.where(member > 0, distance, jnp.nan), CENTRAL))

    return jax.lax.fori_loop(0, steps, step, member)


def with_region(
    weight: Float[Array, "K D"],
    bias: Float[Array, " K"],
    noise: Noise,
    observation: Float[Array, "n D"],
    valid: Float[Array, " n"],
    deviations: float,
    apart: float,
) -> StateDecoder:
    """The states that (weight, bias) tells apart in these observations, as a Gaussian classifier in all D
    coordinates, with a radius that usual observations do not reach.

    log p(s | k) = -|z - c_k|^2 / 2, where the centre c_k of n rows is itself off by D / n on average, which
    is taken back. Distances of rows that shaped the noise's covariance are as if each had been left out.
    """
    K, D = weight.shape
    z = noise.white(observation)
    label = jnp.argmax(observation @ weight.T + bias, axis=1)
    one_hot = jax.nn.one_hot(label, K) * valid[:, None]
    size = one_hot.sum(0)
    centre = jnp.where(size[:, None] > 0, (one_hot.T @ z) / jnp.maximum(size, 1.0)[:, None], 1e4)
    distance = jnp.sum((z - centre[label]) ** 2, axis=1)
    distance = distance / jnp.where(noise.members > 0, left_out(distance, noise.share), 1.0)
    middle, upper = jnp.nanquantile(jnp.where(valid > 0, distance, jnp.nan), jnp.array([0.5, 0.75]))
    radius = middle + deviations * (upper - middle) / 0.674  # quartile of the standard normal
    radius = jnp.maximum(radius, 0.1 * D)  # without noise all distances are rounding errors
    known = jnp.where(size[:, None] > 0, centre, 0.0)
    weight = known @ noise.whiten
    bias = 0.5 * (D / jnp.maximum(size, 1.0) - jnp.sum(known**2, 1)) - weight @ noise.mean
    bias = jnp.where(size > 0, bias, NEVER)
    nearest = jnp.argmax(observation @ weight.T + bias, axis=1)
    alias = jnp.argmax(close_parts(z, nearest, valid, K, apart), axis=1).astype(jnp.int32)
    return StateDecoder(weight, bias, noise.mean, noise.whiten, centre, radius, alias, jnp.array(True))


def close_parts(
    z: Float[Array, "n D"], label: Int[Array, " n"], valid: Float[Array, " n"], num_latents: int, apart: float
) -> Bool[Array, "K K"]:
    """Which parts are less than `apart` standard deviations apart, along the line between their centres:
    halves of one normal distribution are 2.7 apart, two clusters that can be told apart from single
    observations more than 4."""
    K, D = num_latents, z.shape[1]
    one_hot = jax.nn.one_hot(label, K) * valid[:, None]
    present, size = one_hot.sum(0) > 0, jnp.maximum(one_hot.sum(0), 1.0)
    centre = (one_hot.T @ z) / size[:, None]
    line = centre[:, None] - centre  # [K, K, D]
    along = jnp.einsum("nd,jkd->njk", z, line) - jnp.einsum("jd,jkd->jk", centre, line)
    square = jnp.einsum("nj,njk->jk", one_hot, along**2)  # of state j, about its own centre
    length = jnp.sum(line**2, -1)
    variance = (square + square.T) / (size[:, None] + size) / jnp.maximum(length, 1e-12)
    chance = D * (1 / size[:, None] + 1 / size)  # of two means of the same distribution
    close = (length - chance < apart**2 * variance) & present[:, None] & present
    return close | jnp.eye(K, dtype=bool)


def farthest_first(
    points: Float[Array, "n d"], weight: Float[Array, " n"], first: Int[Array, ""], num_centres: int
) -> Float[Array, "K d"]:
    """Centres one after the other: a given point, then always the point furthest from all before."""
    centres = jnp.full((num_centres, points.shape[1]), 1e6).at[0].set(points[first])

    def add(k, centres):
        return centres.at[k].set(points[jnp.argmax(squared_distances(points, centres).min(1) * weight)])

    return jax.lax.fori_loop(1, num_centres, add, centres)


def lloyd(
    points: Float[Array, "n d"], weight: Float[Array, " n"], centres: Float[Array, "K d"], steps: int
) -> tuple[Float[Array, "K d"], Float[Array, " K"]]:
    """k-means from given centres; returns the centres and how many points each has."""

    def step(_, carry):
        centres, _ = carry
        nearest = jnp.argmin(squared_distances(points, centres), axis=1)
        one_hot = jax.nn.one_hot(nearest, centres.shape[0]) * weight[:, None]
        size = one_hot.sum(0)
        mean = (one_hot.T @ points) / jnp.maximum(size, 1e-6)[:, None]
        return jnp.where(size[:, None] > 0, mean, centres), size

    return jax.lax.fori_loop(0, steps, step, (centres, jnp.zeros(centres.shape[0])))


def squared_distances(points: Float[Array, "*n d"], centres: Float[Array, "K d"]) -> Float[Array, "*n K"]:
    """||x_i - c_k||^2."""
    return jnp.sum(points**2, -1, keepdims=True) - 2 * points @ centres.T + jnp.sum(centres**2, -1)
