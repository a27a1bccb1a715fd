"""Emissions whose latent states are not blobs after a linear map: several modes, rings, networks, images.

Each has a number of *roles*: a set of prototypes, a radius, an input of the network, a digit, a shape. A
table `roles[level, latent]` says which latent state has which role. `sharing` decides what levels share:

- `stationary`: everything;
- `permuted`: the map, but not the roles, which are drawn anew for each level;
- `per_level`: nothing; every level has a map of its own.
"""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from briee.envs.emission import (
    LEAST_SCALE,
    NORMAL_BOUND,
    SHARING,
    Index,
    ScoredEmission,
    at_copy,
    draw_noise,
    log_density,
    noise_bound,
    require,
    require_least,
    rotation_basis,
)
from briee.numerics.linalg import factorise


def draw_roles(
    rng: np.random.Generator, sharing: str, num_levels: int, num_latents: int, num_roles: int
) -> Int[Array, "copies num_latents"]:
    """Different roles for the latent states, once or for each level."""
    copies = 1 if sharing == "stationary" else max(num_levels, 1)
    if sharing == "permuted":
        chosen = rng.choice(num_roles, num_latents, replace=False)
        roles = [rng.permutation(chosen) for _ in range(copies)]
    else:
        roles = [rng.choice(num_roles, num_latents, replace=False) for _ in range(copies)]
    return jnp.asarray(np.stack(roles), jnp.int32)


def copies_of(sharing: str, num_levels: int) -> int:
    """How many different maps there are."""
    require(sharing in SHARING, f"rotation must be one of {', '.join(SHARING)}, got {sharing!r}")
    return max(num_levels, 1) if sharing == "per_level" else 1


class RolesEmission(ScoredEmission):
    """An emission with a role for each latent state, and noise of this standard deviation."""

    roles: Int[Array, "levels num_latents"]
    noise: float = eqx.field(static=True)

    @property
    def num_latents(self) -> int:
        """Number of latent states."""
        return self.roles.shape[1]

    def role(self, latent: Index, level: Index) -> Int[Array, ""]:
        """The role of a latent state at a level."""
        return at_copy(self.roles, level)[latent]


class ModesEmission(RolesEmission):
    """Vectors near one of several prototypes of a latent state, drawn from N(0, I), plus noise."""

    prototypes: Float[Array, "copies num_roles modes dim"]

    def __init__(
        self,
        num_latents: int,
        num_levels: int,
        *,
        noise: float = 0.1,
        modes: int = 6,
        dim: int = 20,
        sharing: str = "per_level",
        seed: int = 0,
        degrees_of_freedom: float | None = None,
        one_hot: bool = False,
    ):
        """With `one_hot`, the only prototype of a latent state is its unit vector."""
        require_least(0, noise=noise)
        require_least(1, modes=modes)
        rng = np.random.default_rng([seed, 6])
        copies = copies_of(sharing, num_levels)
        prototypes = rng.standard_normal((copies, num_latents, modes, dim))
        if one_hot:
            prototypes, sharing = np.eye(num_latents)[None, :, None, :], "stationary"
        self.prototypes = jnp.asarray(prototypes, jnp.float32)
        self.roles = draw_roles(rng, sharing, num_levels, num_latents, num_latents)
        if one_hot:
            self.roles = jnp.arange(num_latents, dtype=jnp.int32)[None]
        self.noise = float(noise)
        self.degrees_of_freedom = degrees_of_freedom

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one observation."""
        return (self.prototypes.shape[-1],)

    @property
    def bounds(self) -> tuple[float, float]:
        """Wide but finite, because float32 noise is."""
        high = float(jnp.max(jnp.abs(self.prototypes))) + self.noise * noise_bound(self.degrees_of_freedom)
        return -high, high

    def __call__(self, latent: Index, level: Index, rng: PRNGKeyArray) -> Float[Array, " dim"]:
        """One observation of `latent` at `level`."""
        choice, noise = jax.random.split(rng)
        modes = at_copy(self.prototypes, level)[self.role(latent, level)]
        centre = modes[jax.random.randint(choice, (), 0, modes.shape[0])]
        return centre + self.noise * draw_noise(noise, self.shape, self.degrees_of_freedom)

    def scores(self, level: Index, observation: Float[Array, " dim"]) -> Float[Array, " num_latents"]:
        """Log-likelihoods, up to a constant."""
        modes = at_copy(self.prototypes, level)[at_copy(self.roles, level)]
        error = (observation - modes) / max(self.noise, LEAST_SCALE)
        each = jnp.sum(log_density(error, self.degrees_of_freedom), axis=-1)
        return jax.nn.logsumexp(each, axis=-1)


class RingsEmission(RolesEmission):
    """The radius of a point on a sphere in 3 of `dim` dimensions, which are rotated; the rest is noise.

    Latent states have the radii 1, 2, 3, ... plus noise. Their means are all zero.
    """

    basis: Float[Array, "copies dim dim"]

    SPHERE = 3
    """Dimensions of the space around the sphere."""
    NUISANCE = 0.5
    """Standard deviation of the other coordinates."""

    def __init__(
        self,
        num_latents: int,
        num_levels: int,
        *,
        noise: float = 0.1,
        dim: int = 12,
        sharing: str = "permuted",
        seed: int = 0,
    ):
        require_least(0, noise=noise)
        rng = np.random.default_rng([seed, 7])
        basis = rotation_basis(dim, "random", copies_of(sharing, num_levels), rng) / np.sqrt(dim)
        self.basis = jnp.asarray(basis, jnp.float32)
        self.roles = draw_roles(rng, sharing, num_levels, num_latents, num_latents)
        self.noise = float(noise)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one observation."""
        return (self.basis.shape[-1],)

    @property
    def bounds(self) -> tuple[float, float]:
        """The largest norm of an observation, in both directions."""
        high = self.num_latents + NORMAL_BOUND * (self.noise + self.NUISANCE * np.sqrt(self.shape[0]))
        return -float(high), float(high)

    def __call__(self, latent: Index, level: Index, rng: PRNGKeyArray) -> Float[Array, " dim"]:
        """One observation of `latent` at `level`."""
        point, radius = jax.random.split(rng)
        normal = jax.random.normal(point, self.shape)
        direction = normal[: self.SPHERE] / jnp.linalg.norm(normal[: self.SPHERE])
        mean = 1.0 + self.role(latent, level)
        length = mean + self.noise * jax.random.normal(radius)
        return jnp.concatenate([length * direction, self.NUISANCE * normal[self.SPHERE :]]) @ at_copy(
            self.basis, level
        )

    def scores(self, level: Index, observation: Float[Array, " dim"]) -> Float[Array, " num_latents"]:
        """Minus the squared distance to each radius."""
        radius = jnp.linalg.norm(at_copy(self.basis, level)[: self.SPHERE] @ observation)
        return -((radius - 1.0 - at_copy(self.roles, level)) ** 2)


class Network(eqx.Module):
    """Fixed random networks with one hidden layer and leaky ReLU, stacked over copies."""

    first: Float[Array, "copies inputs hidden"]
    first_bias: Float[Array, "copies hidden"]
    second: Float[Array, "copies hidden dim"]
    second_bias: Float[Array, "copies dim"]

    SLOPE = 0.2
    """Of the leaky ReLU for negative numbers, so that the network can be inverted."""

    @classmethod
    def draw(cls, rng: np.random.Generator, copies: int, inputs: int, hidden: int, dim: int) -> Network:
        """Normal weights; biases of standard deviation 0.3."""

        def normal(*shape: int, scale: float) -> Array:
            return jnp.asarray(scale * rng.standard_normal((copies, *shape)), jnp.float32)

        first, first_bias = normal(inputs, hidden, scale=inputs**-0.5), normal(hidden, scale=0.3)
        return cls(first, first_bias, normal(hidden, dim, scale=hidden**-0.5), normal(dim, scale=0.3))

    def at(self, level: Index) -> Network:
        """The network of a level, without the axis of copies."""
        return jax.tree.map(lambda leaf: at_copy(leaf, level), self)

    def __call__(self, inputs: Float[Array, " inputs"]) -> Float[Array, " dim"]:
        """The output of one network."""
        hidden = jax.nn.leaky_relu(inputs @ self.first + self.first_bias, self.SLOPE)
        return jax.nn.leaky_relu(hidden @ self.second + self.second_bias, self.SLOPE)


class NetworkEmission(RolesEmission):
    """A one-hot latent state (times 2) and normal nuisance dimensions through a random network, and noise."""

    network: Network

    NUISANCE = 6
    """Dimensions of the input that are independent of the latent state."""
    HIDDEN = 24
    """Hidden units."""
    STEPS = 12
    """Gauss-Newton steps from each start when an observation is decoded."""
    STARTS = 6
    """Starts of the nuisance dimensions."""

    def __init__(
        self,
        num_latents: int,
        num_levels: int,
        *,
        noise: float = 0.02,
        dim: int = 20,
        sharing: str = "permuted",
        seed: int = 0,
    ):
        require_least(0, noise=noise)
        rng = np.random.default_rng([seed, 8])
        sizes = (num_latents + self.NUISANCE, self.HIDDEN, dim)
        self.network = Network.draw(rng, copies_of(sharing, num_levels), *sizes)
        self.roles = draw_roles(rng, sharing, num_levels, num_latents, num_latents)
        self.noise = float(noise)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one observation."""
        return (self.network.second.shape[-1],)

    @property
    def bounds(self) -> tuple[float, float]:
        """Largest outputs that inputs in range can give with these weights."""
        net = self.network
        hidden = jnp.sum(jnp.abs(net.first), axis=1) * NORMAL_BOUND + jnp.abs(net.first_bias)
        output = jnp.einsum("ch,chd->cd", hidden, jnp.abs(net.second)) + jnp.abs(net.second_bias)
        high = float(jnp.max(output)) + self.noise * NORMAL_BOUND
        return -high, high

    def __call__(self, latent: Index, level: Index, rng: PRNGKeyArray) -> Float[Array, " dim"]:
        """One observation of `latent` at `level`."""
        nuisance, noise = jax.random.split(rng)
        inputs = self._inputs(self.role(latent, level), jax.random.normal(nuisance, (self.NUISANCE,)))
        return self.network.at(level)(inputs) + self.noise * jax.random.normal(noise, self.shape)

    def _inputs(self, role: Index, nuisance: Float[Array, " nuisance"]) -> Float[Array, " inputs"]:
        return jnp.concatenate([2.0 * jax.nn.one_hot(role, self.num_latents), nuisance])

    def scores(self, level: Index, observation: Float[Array, " dim"]) -> Float[Array, " num_latents"]:
        """Log-likelihoods with the most likely nuisance, found by damped Gauss-Newton steps."""
        network, scale = self.network.at(level), max(self.noise, 1e-3)
        starts = jax.random.normal(jax.random.key(0), (self.STARTS, self.NUISANCE)).at[0].set(0.0)

        def residual(role: Index, nuisance: Array) -> Array:
            return (network(self._inputs(role, nuisance)) - observation) / scale

        def cost(role: Index, nuisance: Array) -> Array:
            return 0.5 * jnp.sum(residual(role, nuisance) ** 2) + 0.5 * jnp.sum(nuisance**2)

        def best(role: Index, start: Array) -> Array:
            def step(_, carry):
                nuisance, damping = carry
                error = residual(role, nuisance)
                slope = jax.jacfwd(residual, 1)(role, nuisance)
                _, inverse = factorise(slope.T @ slope + (1.0 + damping) * jnp.eye(self.NUISANCE))
                move = inverse.T @ (inverse @ (slope.T @ error + nuisance))
                better = cost(role, nuisance - move) < cost(role, nuisance)
                return jnp.where(better, nuisance - move, nuisance), jnp.where(better, 0.2, 5.0) * damping

            return cost(role, jax.lax.fori_loop(0, self.STEPS, step, (start, jnp.float32(scale**-2)))[0])

        costs = jax.vmap(jax.vmap(best, (None, 0)), (0, None))(at_copy(self.roles, level), starts)
        return -jnp.min(costs, axis=1)
