"""Exact values in block MDPs with finitely many observations, and finite classes of decoders.

Symbols: H levels, Z latent states, A actions, S observations per level, M decoders per level. Observation s
of level h belongs to latent state `truth[h, s]` alone. Float64 throughout.
"""

import numpy as np

from briee.envs.exact_tables import BlockMDP


def random_class(rng: np.random.Generator, mdp: BlockMDP, size: int) -> np.ndarray:
    """Phi [H + 1, M, S]: `size` - 1 random decoders per level and psi*, which comes last."""
    H, S = mdp.horizon, mdp.truth.shape[1]
    wrong = rng.integers(mdp.num_latents, size=(H + 1, size - 1, S))
    return np.concatenate([wrong, mdp.truth[:, None]], axis=1)


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


def mixture(mdp: BlockMDP, policy: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """rho, beta and gamma [H, S, A] of Appendix A for data that a single policy collects; beta[0] is zero."""
    gamma = occupancy(mdp.initial, mdp.transition, policy)
    uniform = np.full(mdp.num_actions, 1.0 / mdp.num_actions)
    rho = gamma.sum(axis=2)[..., None] * uniform
    beta = np.zeros_like(rho)
    for h in range(1, mdp.horizon):
        beta[h] = np.einsum("sa,sat->t", rho[h - 1], mdp.transition[h - 1])[:, None] * uniform
    return rho, beta, gamma


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
