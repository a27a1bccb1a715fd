"""Block MDPs with finitely many observations: the setting of the paper's theorems, as exact tables and
as environments."""

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
    from briee.envs.finite_block import BlockMDP
from dataclasses import dataclass
from functools import cached_property
from itertools import product

from briee.envs.block import LatentModel


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
        from briee.envs.finite_block import lock_block_mdp, random_block_mdp

        horizon, num_latents, num_actions, emissions, lock, seed = self.block_arguments
        rng = np.random.default_rng([seed, 5])
        if lock:
            return lock_block_mdp(rng, horizon, num_actions, emissions)
        return random_block_mdp(rng, horizon, num_latents, num_actions, emissions)


@dataclass(frozen=True)
class BlockMDP:
    """Definition 1 of the paper with finite S.

    latent: model of the latent states, with returns in [0, 1]; truth [H + 1, S]: psi*;
    emission [H + 1, S]: o_h(s | psi*(s)), which sums to one over the observations of a latent state.
    """

    latent: LatentModel
    truth: np.ndarray
    emission: np.ndarray

    @property
    def horizon(self) -> int:
        """H."""
        return self.latent.horizon

    @property
    def num_actions(self) -> int:
        """A."""
        return self.latent.reward.shape[2]

    @property
    def num_latents(self) -> int:
        """Z."""
        return self.latent.reward.shape[1]

    @property
    def dimension(self) -> int:
        """d = Z A, the rank."""
        return self.num_latents * self.num_actions

    @cached_property
    def initial(self) -> np.ndarray:
        """d_0 [S]."""
        return self.latent.initial[self.truth[0]] * self.emission[0]

    @cached_property
    def transition(self) -> np.ndarray:
        """P* [H, S, A, S]."""
        latent, truth, emission = self.latent.transition, self.truth, self.emission
        levels = range(self.horizon)
        return np.stack([latent[h][truth[h]][..., truth[h + 1]] * emission[h + 1] for h in levels])

    @cached_property
    def reward(self) -> np.ndarray:
        """r [H, S, A]."""
        return np.stack([self.latent.reward[h][self.truth[h]] for h in range(self.horizon)])

    @cached_property
    def optimal_return(self) -> float:
        """V* at the start."""
        return self.latent.optimal_return()


def random_block_mdp(
    rng: np.random.Generator,
    horizon: int = 3,
    num_latents: int = 2,
    num_actions: int = 2,
    emissions: int = 3,
    rare: float | None = None,
) -> BlockMDP:
    """A random block MDP: sparse Dirichlet transitions, rewards of at most 1 / H per step.

    With `rare`, the last latent state of each level is entered with that probability under every action.
    """
    H, Z, A = horizon, num_latents, num_actions
    transition = rng.dirichlet(np.full(Z, 0.4), size=(H, Z, A))
    initial = rng.dirichlet(np.ones(Z))
    if rare is not None:
        for table in (transition, initial):
            table[..., :-1] += 1e-6  # a draw may have all its mass on the last state
            table[..., :-1] *= (1.0 - rare) / table[..., :-1].sum(axis=-1, keepdims=True)
            table[..., -1] = rare
    reward = rng.uniform(size=(H, Z, A)) ** 2 / H
    return _with_observations(rng, LatentModel(initial, transition, reward), emissions)


def _with_observations(rng: np.random.Generator, model: LatentModel, emissions: int) -> BlockMDP:
    """Add observations: each latent state emits `emissions` of its own, in random order."""
    H, Z = model.horizon, len(model.initial)
    truth = np.stack([rng.permutation(np.repeat(np.arange(Z), emissions)) for _ in range(H + 1)])
    emission = np.zeros(truth.shape)
    for h, z in product(range(H + 1), range(Z)):
        emission[h, truth[h] == z] = rng.dirichlet(np.full(emissions, 2.0))
    return BlockMDP(model, truth, emission)


def lock_block_mdp(
    rng: np.random.Generator, horizon: int = 3, num_actions: int = 2, emissions: int = 2
) -> BlockMDP:
    """The combination lock with few observations: two good lanes, one bad state, reward 1 at the end."""
    H, A = horizon, num_actions
    transition, reward = np.zeros((H, 3, A, 3)), np.zeros((H, 3, A))
    transition[..., 2] = 1.0
    for h in range(H):
        for lane, right in enumerate(rng.integers(A, size=2)):
            transition[h, lane, right] = [0.5, 0.5, 0.0]
            reward[h, lane, right] = float(h == H - 1)
    model = LatentModel(np.array([0.5, 0.5, 0.0]), transition, reward)
    return _with_observations(rng, model, emissions)
