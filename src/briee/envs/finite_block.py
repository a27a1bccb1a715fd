"""Block MDPs with finitely many observations: the setting of the paper's theorems, as environments."""

from __future__ import annotations

from typing import TYPE_CHECKING

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from briee.envs.block import cdf, sample_cdf
from briee.envs.emission import Index, ScoredEmission, require_least
from briee.envs.random_block import RandomBlockMDP

if TYPE_CHECKING:
    from briee.envs.exact_tables import BlockMDP


class FiniteEmission(ScoredEmission):
    """One-hot observations, each of which belongs to one latent state of its level."""

    cumulative: Float[Array, "levels num_latents S"]
    truth: Int[Array, "levels S"]
    num_latents: int = eqx.field(static=True)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one observation."""
        return (self.truth.shape[1],)

    @property
    def bounds(self) -> tuple[float, float]:
        """Every coordinate lies between these two numbers."""
        return 0.0, 1.0

    def __call__(self, latent: Index, level: Index, rng: PRNGKeyArray) -> Float[Array, " S"]:
        """One observation of `latent` at `level`."""
        return jax.nn.one_hot(sample_cdf(self.cumulative[level, latent], rng), self.truth.shape[1])

    def decode(self, level: Index, observation: Float[Array, " S"]) -> Int[Array, ""]:
        """The latent state of an observation."""
        return self.truth[level, jnp.argmax(observation)].astype(jnp.int32)


class FiniteBlockMDP(RandomBlockMDP):
    """A block MDP with few observations per level, in which every expectation is an exact sum.

    ## Description
    Each latent state emits `emissions` observations of its own, in a different order at every level. The
    latent tables are sparse Dirichlet draws. With `lock` they are those of the combination lock: two good
    lanes, one bad state, and at each level one right action per lane. The algorithm `theory` needs it.

    ## Action Space
    `Discrete(num_actions)`.

    ## Observation Space
    One-hot vectors of dimension num_latents x emissions, float32.

    ## Starting State
    A Dirichlet draw over the latent states; either good lane with `lock`.

    ## Rewards
    At most 1 per episode: at most 1 / H per step, or with `lock` 1 for the last right action.

    ## Episode End
    After `horizon` steps, as `terminated`.

    ## Information
    `latent` and `level`.

    ## Arguments
    `horizon`, `num_latents` (the lock has 3), `num_actions`, `emissions`, `lock`, `instance_seed`.

    ## Version History
    v0: initial version.
    """

    block_arguments: tuple[int, int, int, int, bool, int] = eqx.field(static=True)

    def __init__(
        self,
        horizon: int = 3,
        num_latents: int = 2,
        num_actions: int = 2,
        *,
        emissions: int = 2,
        lock: bool = False,
        instance_seed: int = 0,
    ):
        """Draw the tables from `instance_seed`."""
        require_least(0, instance_seed=instance_seed)
        require_least(1, horizon=horizon, num_latents=num_latents, emissions=emissions)
        require_least(2, num_actions=num_actions)
        self.block_arguments = (horizon, num_latents, num_actions, emissions, lock, instance_seed)
        block = self.block
        self.horizon, self.num_latents, self.num_actions = horizon, block.num_latents, num_actions
        model = block.latent
        self.start_cdf = jnp.asarray(cdf(model.initial))
        self.transition_cdf = jnp.asarray(cdf(model.transition))
        self.reward_table = jnp.asarray(model.reward, jnp.float32)
        own = block.truth[:, None] == np.arange(block.num_latents)[:, None]
        self.emission = FiniteEmission(
            jnp.asarray(cdf(block.emission[:, None] * own)), jnp.asarray(block.truth), block.num_latents
        )

    @property
    def block(self) -> BlockMDP:
        """The same MDP as exact tables, in float64."""
        from briee.envs.exact_tables import lock_block_mdp, random_block_mdp

        horizon, num_latents, num_actions, emissions, lock, seed = self.block_arguments
        rng = np.random.default_rng([seed, 5])
        if lock:
            return lock_block_mdp(rng, horizon, num_actions, emissions)
        return random_block_mdp(rng, horizon, num_latents, num_actions, emissions)
