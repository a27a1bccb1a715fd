"""Random block MDPs: Dirichlet latent transitions, late rewards, a random rotation per level."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from briee.envs.block import Block, BlockState, LatentModel, cdf, probabilities, sample_cdf
from briee.envs.emission import EmissionChoice, require, require_least
from briee.envs.exogenous import AnyEmission


class RandomBlockMDP(Block):
    """A block MDP whose tables and emissions are all drawn from `instance_seed`.

    ## Description
    At each level h, T_h(· | z, a) is a sparse Dirichlet draw over the latent states. `unreachable` of them,
    drawn for each level, have probability 0. Rewards r_h(z, a) in [0, 1] occur only in the last third of the
    levels, so an agent has to explore before it sees any. Observations are R_h (e_z ⊕ e_h + ε) with a
    uniformly random orthogonal matrix R_h (times √dim) per level.

    ## Action Space
    `Discrete(num_actions)`.

    ## Observation Space
    A `Box` of dimension 2^⌈log₂(num_latents + H + 1)⌉, float32; another one with another `emission`.

    ## Starting State
    A Dirichlet draw over the latent states that are reachable at level 0.

    ## Rewards
    A fixed table, drawn once; the sum over an episode is at most ⌈H / 3⌉.

    ## Episode End
    After `horizon` steps, as `terminated`.

    ## Information
    `latent` and `level`.

    ## Arguments
    `horizon`, `num_latents` (3 to 6 are typical), `num_actions`, `unreachable`, `instance_seed`; `noise`,
    `emission` and what belongs to it as for the lock, except that `vector` and `image` differ per level.

    ## Version History
    v0: initial version.
    """

    start_cdf: Float[Array, " num_latents"]
    transition_cdf: Float[Array, "horizon num_latents num_actions num_latents"]
    reward_table: Float[Array, "horizon num_latents num_actions"]
    emission: AnyEmission
    horizon: int = eqx.field(static=True)
    num_actions: int = eqx.field(static=True)
    num_latents: int = eqx.field(static=True)

    def __init__(
        self,
        horizon: int = 5,
        num_latents: int = 4,
        num_actions: int = 4,
        *,
        noise: float | None = None,
        unreachable: int = 1,
        instance_seed: int = 0,
        rotation: str | None = None,
        emission: str = "vector",
        modes: int = 6,
        image_size: int = 28,
        templates: int = 4,
        exogenous: int = 0,
        exogenous_correlation: float = 0.95,
        degrees_of_freedom: float | None = None,
        held_out: bool = False,
    ):
        """Draw the tables; `unreachable` latent states per level are never entered."""
        require_least(0, instance_seed=instance_seed)
        require_least(1, horizon=horizon, num_latents=num_latents)
        require_least(2, num_actions=num_actions)
        require(
            0 <= unreachable < num_latents,
            f"unreachable must be in [0, num_latents) = [0, {num_latents}), got {unreachable}",
        )
        choice = EmissionChoice(
            emission,
            noise=noise,
            sharing=rotation,
            seed=instance_seed,
            rotation="random",
            vector_sharing="per_level",
            degrees_of_freedom=degrees_of_freedom,
            modes=modes,
            image_size=image_size,
            templates=templates,
            exogenous=exogenous,
            exogenous_correlation=exogenous_correlation,
            held_out=held_out,
        )
        self.horizon, self.num_latents, self.num_actions = int(horizon), int(num_latents), int(num_actions)
        rng = np.random.default_rng([instance_seed, 3])
        H, Z, A = self.horizon, self.num_latents, self.num_actions
        open_states = np.ones((H + 1, Z))
        for row in open_states:
            row[rng.choice(Z, size=unreachable, replace=False)] = 0.0
        # Concentration 0.3 makes rows nearly deterministic, so that actions matter.
        start = rng.dirichlet(np.full(Z, 1.0)) * open_states[0]
        transition = (rng.dirichlet(np.full(Z, 0.3), size=(H, Z, A)) + 1e-3) * open_states[1:, None, None, :]
        late = np.arange(H) >= H - int(np.ceil(H / 3))
        self.start_cdf = jnp.asarray(cdf(start / start.sum()))
        self.transition_cdf = jnp.asarray(cdf(transition / transition.sum(axis=-1, keepdims=True)))
        rewards = rng.uniform(size=(H, Z, A)) ** 3 * late[:, None, None]
        self.reward_table = jnp.asarray(rewards, jnp.float32)
        self.emission = choice.make(Z, H + 1)

    def initial(self, rng: PRNGKeyArray) -> BlockState:
        """A latent state from the start distribution, with its observation."""
        draw, noise = jax.random.split(rng)
        latent, level = sample_cdf(self.start_cdf, draw), jnp.int32(0)
        seen, exogenous = self.arrive(latent, level, None, noise)
        return BlockState(latent, level, seen, exogenous=exogenous)

    def transition(self, state: BlockState, action: Int[Array, ""], rng: PRNGKeyArray) -> BlockState:
        """One draw from T_h(· | z, a), with its observation."""
        draw, noise = jax.random.split(rng)
        latent = sample_cdf(self.transition_cdf[state.level, state.latent, action], draw)
        level = state.level + 1
        seen, exogenous = self.arrive(latent, level, state, noise)
        return BlockState(latent, level, seen, exogenous=exogenous)

    def reward(
        self, state: BlockState, action: Int[Array, ""], next_state: BlockState, rng: PRNGKeyArray
    ) -> Float[Array, ""]:
        """r_h(z, a) from the table."""
        return self.reward_table[state.level, state.latent, action]

    def good(self, latent: Int[ArrayLike, "*n"]) -> Bool[Array, "*n"]:
        """True: no latent state is lost."""
        return jnp.ones_like(latent, bool)

    def latent_model(self) -> LatentModel:
        """The tables, without observations."""
        reward = np.asarray(self.reward_table, np.float64)
        return LatentModel(probabilities(self.start_cdf), probabilities(self.transition_cdf), reward)
