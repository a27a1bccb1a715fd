"""Exact oracles: RepLearn, Algorithm 2, by enumeration of a finite class, and values by dynamic programming.

The data is counts [S, A, S], which suffice for finitely many observations, so 10^12 samples cost as much as
ten. With one-hot features the loss of line 3 is a quadratic form:
k min_w L(phi, w, f) = sum_i f(s'_i)^2 - f' G_phi f, where G_phi = sum over (z, a) of u u' / (N(z, a) + lam)
and u counts the next observations. So line 5 maximises f' (G_other - G_current) f.

Symbols: H levels, Z latent states, A actions, S observations per level, M decoders per level. Observation s
of level h belongs to latent state `truth[h, s]` alone. Float64 throughout.
"""

from dataclasses import dataclass

import numpy as np

from briee.algorithms.theory.discriminators import Discriminators
from briee.envs.finite_block import BlockMDP


@dataclass(frozen=True)
class RepLearnResult:
    """The chosen decoder, rounds played, line 5's objective in each round, an upper bound on the last one,
    and the discriminators [rounds, S]."""

    index: int
    rounds: int
    gaps: list[float]
    certified: float
    discriminators: list[np.ndarray]


def aggregate(counts: np.ndarray, labels: np.ndarray, num_latents: int) -> np.ndarray:
    """Counts [Z, A, S] of (psi(s), a, s')."""
    total = np.zeros((num_latents, *counts.shape[1:]))
    np.add.at(total, labels, counts)
    return total


def explained(counts: np.ndarray, labels: np.ndarray, num_latents: int, lam: float) -> np.ndarray:
    """G_phi [S, S] divided by the number k of samples: f'Gf is the part of f(s') that phi predicts."""
    u = aggregate(counts, labels, num_latents)
    weight = 1.0 / (u.sum(axis=-1) + lam)
    return np.einsum("zas,za,zat->st", u, weight, u) / max(counts.sum(), 1)


def loss(counts: np.ndarray, labels: np.ndarray, num_latents: int, lam: float, f: np.ndarray) -> float:
    """min_w L_{lam,D}(phi, w, f) (Alg. 2, l. 3), with lam / k as in Appendix B."""
    second_moment = counts.sum(axis=(0, 1)) @ f**2 / max(counts.sum(), 1)
    return float(second_moment - f @ explained(counts, labels, num_latents, lam) @ f)


def replearn(
    counts: np.ndarray,
    decoders: np.ndarray,
    num_latents: int,
    discriminators: Discriminators,
    lam: float,
    rounds: int,
    ell: float,
    start: int = 0,
) -> RepLearnResult:
    """Algorithm 2 on counts [S, A, S] for the class decoders [M, S], from decoder number `start` (l. 2)."""
    forms = np.stack([explained(counts, labels, num_latents, lam) for labels in decoders])
    index, gaps, found, certified = start, [], [], 0.0
    for _ in range(rounds):  # Alg. 2, l. 4
        gap, f, certified = discriminators.maximise(forms - forms[index])  # Alg. 2, l. 5
        gaps.append(gap)
        if gap <= ell:  # Alg. 2, l. 6
            break
        found.append(f)
        score = sum(np.einsum("s,mst,t->m", f, forms, f) for f in found)
        index = int(np.argmax(score))  # Alg. 2, l. 7
    return RepLearnResult(index, len(gaps), gaps, certified, found)


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
