"""The steps of Algorithm 1 in the setting of the theorems: finite classes, exact oracles.

The algorithm plans again when the data has grown by a factor (factor 1: after every episode, as printed). The
data between two plans is multinomial counts, so 10^12 episodes take as long as ten.

The model-based view of the proof sketch is here too: for one-hot features the unnormalised P-hat(s' | s, a) =
N(psi(s), a, s') / (N(psi(s), a) + lam), and LSVI (Algorithm 3) with reward r + b is value iteration in the
model (P-hat, r + b). Counts are [H, S, A, S], decoders [H, S].
"""

from dataclasses import dataclass, field, replace

import numpy as np

from briee.algorithms.bonus import one_hot_bonus
from briee.algorithms.theory.config import TheoryPreset
from briee.algorithms.theory.oracle import (
    Discriminators,
    RepLearnResult,
    aggregate,
    mixture,
    replearn,
    section_4,
)
from briee.envs.finite_block import BlockMDP


@dataclass(frozen=True)
class Data:
    """n samples per level and data set: counts of D and D' [H, S, A, S], and the distributions they came
    from, the mixtures rho, beta and gamma [H, S, A] of Appendix A (beta of level 0 is zero)."""

    n: int
    counts: np.ndarray
    counts_prime: np.ndarray
    rho: np.ndarray
    beta: np.ndarray
    gamma: np.ndarray


@dataclass(frozen=True)
class ExactSetting:
    """A block MDP, its classes Phi [H + 1, M, S], and the parameters."""

    mdp: BlockMDP
    classes: np.ndarray
    preset: TheoryPreset
    growth: float = 1.5
    bonus_scale: float = 1.0
    """Factor of the bonus: 1 is Algorithm 1; 0 turns the bonus off."""
    discriminators: list[Discriminators] = field(default_factory=list)

    def with_discriminators(self) -> "ExactSetting":
        """The same with F_h of every level."""
        mdp, H, c = self.mdp, self.mdp.horizon, self.preset.c
        later = np.concatenate([mdp.reward, np.zeros((1, *mdp.reward.shape[1:]))])
        made = [section_4(self.classes[h + 1], mdp.num_latents, later[h + 1], H, c) for h in range(H)]
        return replace(self, discriminators=made)


def draw(rng: np.random.Generator, size: int, distribution: np.ndarray) -> np.ndarray:
    """`size` independent draws from a distribution of any shape, counted."""
    p = distribution.ravel() / distribution.sum()
    return rng.multinomial(size, p).reshape(distribution.shape).astype(float)


def no_data(mdp: BlockMDP) -> Data:
    """Alg. 1, l. 2."""
    counts, pairs = np.zeros(mdp.transition.shape), np.zeros(mdp.reward.shape)
    return Data(0, counts, counts, pairs, pairs, pairs)


def collect(mdp: BlockMDP, data: Data, policy: np.ndarray, m: int, rng: np.random.Generator) -> Data:
    """Alg. 1, l. 4, m times: roll in with `policy` [H, S, A], one uniform action (D_h) or two (D'_h)."""
    counts, counts_prime, P = data.counts.copy(), data.counts_prime.copy(), mdp.transition
    rho, beta, gamma = mixture(mdp, policy)
    for h in range(mdp.horizon):
        counts[h] += draw(rng, m, rho[h][..., None] * P[h])
        if h > 0:
            counts_prime[h] += draw(rng, m, beta[h][..., None] * P[h])
    pairs, share = ((data.rho, rho), (data.beta, beta), (data.gamma, gamma)), m / (data.n + m)
    return Data(data.n + m, counts, counts_prime, *(old + share * (new - old) for old, new in pairs))


def represent(setting: ExactSetting, data: Data) -> list[RepLearnResult]:
    """Alg. 1, l. 5: RepLearn at every level, with exact oracles."""
    preset, both = setting.preset, data.counts + data.counts_prime
    results = []
    for h, counts in enumerate(both):
        k = counts.sum()
        rounds, ell, lam = preset.rounds(data.n, k), preset.ell(data.n, k), preset.lam(data.n)
        decoders, F, Z = setting.classes[h], setting.discriminators[h], setting.mdp.num_latents
        results.append(replearn(counts, decoders, Z, F, lam, rounds, ell))
    return results


def plan(setting: ExactSetting, data: Data, decoders: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Alg. 1, l. 6, and the model of l. 7: P-hat [H, S, A, S] and bonus [H, S, A] for decoders [H, S]."""
    Z, lam, alpha = setting.mdp.num_latents, setting.preset.lam(data.n), setting.preset.alpha(data.n)
    bonus = setting.bonus_scale * count_bonus(data.counts, decoders, Z, lam, alpha)
    return learned_model(data.counts + data.counts_prime, decoders, Z, lam), bonus


def batch(n: int, growth: float) -> int:
    """Samples until the next plan."""
    return max(1, round((growth - 1.0) * n))


def learned_model(counts: np.ndarray, decoders: np.ndarray, num_latents: int, lam: float) -> np.ndarray:
    """P-hat [H, S, A, S]; its rows are non-negative and sum to less than one."""
    model = np.zeros(counts.shape)
    for h, labels in enumerate(decoders):
        u = aggregate(counts[h], labels, num_latents)
        model[h] = (u / (u.sum(axis=-1, keepdims=True) + lam))[labels]
    return model


def count_bonus(
    counts: np.ndarray, decoders: np.ndarray, num_latents: int, lam: float, alpha: float, cap: float = 2.0
) -> np.ndarray:
    """b [H, S, A] = min(alpha / sqrt(N(psi(s), a) + lam), cap), with the counts of D_h (Alg. 1, l. 6)."""
    bonus = np.zeros(counts.shape[:3])
    for h, labels in enumerate(decoders):
        n = aggregate(counts[h], labels, num_latents).sum(axis=-1)
        bonus[h] = one_hot_bonus(n, lam, alpha, cap)[labels]
    return bonus
