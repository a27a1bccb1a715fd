"""Block MDPs with finitely many observations, as exact tables (NumPy, float64)."""

from dataclasses import dataclass
from functools import cached_property
from itertools import product

import numpy as np

from briee.envs.block import LatentModel


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
