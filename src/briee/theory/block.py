"""Block MDPs with finitely many observations, and finite classes of decoders: everything has an exact value.

Symbols: H levels, Z latent states, A actions, S observations per level, M decoders per level. Observation s
of level h belongs to latent state `truth[h, s]` alone. Float64 throughout.
"""

from dataclasses import dataclass
from functools import cached_property
from itertools import product

import numpy as np

from briee.envs.latent_model import LatentModel


@dataclass(frozen=True)
class BlockMDP:
    """Definition 1 of the paper with finite S.

    latent: the model of the latent states, rewards of an episode in [0, 1]; truth [H + 1, S]: psi*;
    emission [H + 1, S]: o_h(s | psi*(s)), which sums to one over each latent state.
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
        H = self.horizon
        return np.stack(
            [
                self.latent.transition[h][self.truth[h]][..., self.truth[h + 1]] * self.emission[h + 1]
                for h in range(H)
            ]
        )

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
    """A random block MDP: sparse Dirichlet transitions, rewards of at most 1 / H a step.

    With `rare`, the last latent state of each level is entered with that probability, whatever one does.
    """
    H, Z, A = horizon, num_latents, num_actions
    transition = rng.dirichlet(np.full(Z, 0.4), size=(H, Z, A))
    initial = rng.dirichlet(np.ones(Z))
    if rare is not None:
        for table in (transition, initial):
            table[..., :-1] += 1e-6  # a draw may have put everything on the last state
            table[..., :-1] *= (1.0 - rare) / table[..., :-1].sum(axis=-1, keepdims=True)
            table[..., -1] = rare
    reward = rng.uniform(size=(H, Z, A)) ** 2 / H
    return _with_observations(rng, LatentModel(initial, transition, reward), emissions)


def _with_observations(rng: np.random.Generator, model: LatentModel, emissions: int) -> BlockMDP:
    """Every latent state emits `emissions` observations of its own, in random order."""
    H, Z = model.horizon, len(model.initial)
    truth = np.stack([rng.permutation(np.repeat(np.arange(Z), emissions)) for _ in range(H + 1)])
    emission = np.zeros(truth.shape)
    for h, z in product(range(H + 1), range(Z)):
        emission[h, truth[h] == z] = rng.dirichlet(np.full(emissions, 2.0))
    return BlockMDP(model, truth, emission)


def lock_block_mdp(
    rng: np.random.Generator, horizon: int = 3, num_actions: int = 2, emissions: int = 2
) -> BlockMDP:
    """The combination lock with few observations: two good lanes, a bad state, reward 1 at the end."""
    H, A = horizon, num_actions
    transition, reward = np.zeros((H, 3, A, 3)), np.zeros((H, 3, A))
    transition[..., 2] = 1.0
    for h in range(H):
        for lane, right in enumerate(rng.integers(A, size=2)):
            transition[h, lane, right] = [0.5, 0.5, 0.0]
            reward[h, lane, right] = float(h == H - 1)
    model = LatentModel(np.array([0.5, 0.5, 0.0]), transition, reward)
    return _with_observations(rng, model, emissions)


def random_class(rng: np.random.Generator, mdp: BlockMDP, size: int) -> np.ndarray:
    """Phi [H + 1, M, S]: `size` - 1 random decoders per level and psi*, which comes last."""
    H, S = mdp.horizon, mdp.truth.shape[1]
    wrong = rng.integers(mdp.num_latents, size=(H + 1, size - 1, S))
    return np.concatenate([wrong, mdp.truth[:, None]], axis=1)


def singleton_class(mdp: BlockMDP) -> np.ndarray:
    """Phi = {phi*}."""
    return mdp.truth[:, None].copy()


def uniform_policy(mdp: BlockMDP) -> np.ndarray:
    """pi [H, S, A]: every action alike."""
    return np.full(mdp.reward.shape, 1.0 / mdp.num_actions)


def deterministic(action: np.ndarray, num_actions: int) -> np.ndarray:
    """pi [H, S, A] that takes action[h, s]."""
    return np.eye(num_actions)[action]


def occupancy(initial: np.ndarray, transition: np.ndarray, policy: np.ndarray) -> np.ndarray:
    """d_h(s, a) [H, S, A] of a policy [H, S, A]; P may be unnormalised."""
    state, result = initial, []
    for step, choice in zip(transition, policy, strict=True):
        result.append(state[:, None] * choice)
        state = np.einsum("sa,sat->t", result[-1], step)
    return np.stack(result)


def values(transition: np.ndarray, reward: np.ndarray, policy: np.ndarray) -> np.ndarray:
    """V_h(s) [H + 1, S] of a policy; P may be unnormalised."""
    V = np.zeros((len(reward) + 1, reward.shape[1]))
    for h in reversed(range(len(reward))):
        V[h] = np.sum(policy[h] * (reward[h] + transition[h] @ V[h + 1]), axis=1)
    return V


def value_iteration(transition: np.ndarray, reward: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Q [H, S, A] and V [H + 1, S] of the best policy; P may be unnormalised."""
    V, Q = np.zeros((len(reward) + 1, reward.shape[1])), np.zeros_like(reward)
    for h in reversed(range(len(reward))):
        Q[h] = reward[h] + transition[h] @ V[h + 1]
        V[h] = Q[h].max(axis=1)
    return Q, V
