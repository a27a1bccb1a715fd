"""The covariance of observations around their latent state, and white coordinates in which it is I."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int
from scipy.special import gammainc, gammaincinv

from briee.algorithms.efficient.clustering import largest_cluster
from briee.numerics.linalg import factorise, log_determinant

CENTRAL = 0.8  # share of a label's rows, those nearest to its centre, that its covariance is estimated from
CENTRAL_STEPS = 2  # concentration steps towards the minimum covariance determinant: few rows change after two
TRUST = 1.0, 0.3, 0.1  # candidates for the trust in a covariance of n rows, as multiples of n / (n + D)
HARMONIC_STEPS = 2  # fixed-point steps for the scale of the shrinkage target
ENOUGH_ROWS = 20.0  # smaller labels do not compete for the smallest determinant, if there is a larger one
LEAST_LEFT_OUT = 0.05  # bound on the correction for a row that nearly determines the covariance by itself
RELATIVE_FLOOR, FLOOR = 1e-3, 1e-8  # least variance in any direction, relative to the mean one and absolute


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
