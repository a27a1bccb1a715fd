"""Algorithms 1 and 4 in the setting of the theorems: finite classes, exact oracles, every distribution known.

The policy is planned anew whenever the data have grown by a factor (factor 1: after every episode, as
printed). The data between two plans are multinomial counts, so that 10^12 episodes take as long as ten.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from briee.theory.block import BlockMDP, deterministic, occupancy, uniform_policy, value_iteration, values
from briee.theory.discriminators import Discriminators, appendix_c, section_4
from briee.theory.model import count_bonus, learned_model
from briee.theory.oracle import RepLearnResult, replearn
from briee.theory.presets import TheoryPreset


@dataclass(frozen=True)
class Iteration:
    """What Algorithm 1 knows and what is true of it after n samples per level and data set.

    counts of D and D' [H, S, A, S]; learned: RepLearn's result per level; decoders [H, S]; model P-hat and
    bonus; Q [H, S, A] of the planner, its start value, and its policy [H, S, A]; regret V* - V of the policy;
    rho, beta, gamma [H, S, A]: the mixtures of Appendix A (beta of level 0 is zero).
    """

    n: int
    lam: float
    alpha: float
    counts: np.ndarray
    counts_prime: np.ndarray
    learned: list[RepLearnResult]
    decoders: np.ndarray
    model: np.ndarray
    bonus: np.ndarray
    q: np.ndarray
    optimistic_value: float
    policy: np.ndarray
    regret: float
    rho: np.ndarray
    beta: np.ndarray
    gamma: np.ndarray


@dataclass(frozen=True)
class Setting:
    """A block MDP, its classes Phi [H + 1, M, S], the parameters, and what the agent is told to seek."""

    mdp: BlockMDP
    classes: np.ndarray
    preset: TheoryPreset
    reward_free: bool = False
    growth: float = 1.5
    bonus_scale: float = 1.0
    """1 is Algorithm 1; 0 breaks the bonus on purpose."""
    discriminators: list[Discriminators] = field(default_factory=list)

    @property
    def reward(self) -> np.ndarray:
        """The reward of exploration [H, S, A]: zero in Algorithm 4."""
        return np.zeros_like(self.mdp.reward) if self.reward_free else self.mdp.reward

    def with_discriminators(self) -> "Setting":
        """The same with F_h of every level: Section 4's, or Appendix C's."""
        mdp, H = self.mdp, self.mdp.horizon
        Z, A, c = mdp.num_latents, mdp.num_actions, self.preset.c
        later = np.concatenate([mdp.reward, np.zeros((1, *mdp.reward.shape[1:]))])
        made = [
            appendix_c(self.classes[h + 1], Z, A, H, c)
            if self.reward_free
            else section_4(self.classes[h + 1], Z, later[h + 1], H, c)
            for h in range(H)
        ]
        return replace(self, discriminators=made)


def draw(rng: np.random.Generator, size: int, distribution: np.ndarray) -> np.ndarray:
    """`size` independent draws from a distribution of any shape, counted."""
    p = distribution.ravel() / distribution.sum()
    return rng.multinomial(size, p).reshape(distribution.shape).astype(float)


@dataclass(frozen=True)
class Data:
    """n samples per level and data set: counts of D and D' [H, S, A, S], and the distributions that they came
    from, the mixtures rho, beta and gamma [H, S, A] of Appendix A."""

    n: int
    counts: np.ndarray
    counts_prime: np.ndarray
    rho: np.ndarray
    beta: np.ndarray
    gamma: np.ndarray


def no_data(mdp: BlockMDP) -> Data:
    """Alg. 1, l. 2."""
    counts, pairs = np.zeros(mdp.transition.shape), np.zeros(mdp.reward.shape)
    return Data(0, counts, counts, pairs, pairs, pairs)


def collect(mdp: BlockMDP, data: Data, policy: np.ndarray, m: int, rng: np.random.Generator) -> Data:
    """Alg. 1, l. 4, m times: roll in with `policy` [H, S, A], one uniform action (D_h) or two (D'_h)."""
    counts, counts_prime = data.counts.copy(), data.counts_prime.copy()
    rho, beta, gamma = data.rho.copy(), data.beta.copy(), data.gamma.copy()
    d = occupancy(mdp.initial, mdp.transition, policy)
    state = d.sum(axis=2)
    uniform = np.full(mdp.num_actions, 1.0 / mdp.num_actions)
    share = m / (data.n + m)
    for h in range(mdp.horizon):
        one = state[h][:, None] * uniform
        counts[h] += draw(rng, m, one[..., None] * mdp.transition[h])
        rho[h] += share * (one - rho[h])
        gamma[h] += share * (d[h] - gamma[h])
        if h > 0:
            two = np.einsum("sa,sat->t", state[h - 1][:, None] * uniform, mdp.transition[h - 1])
            two = two[:, None] * uniform
            counts_prime[h] += draw(rng, m, two[..., None] * mdp.transition[h])
            beta[h] += share * (two - beta[h])
    return Data(data.n + m, counts, counts_prime, rho, beta, gamma)


def represent(setting: Setting, data: Data) -> list[RepLearnResult]:
    """Alg. 1, l. 5: RepLearn at every level, with exact oracles."""
    preset, both = setting.preset, data.counts + data.counts_prime
    results = []
    for h, counts in enumerate(both):
        k = counts.sum()
        rounds, ell = preset.rounds(data.n, k), preset.ell(data.n, k)
        found = replearn(
            counts, setting.classes[h], setting.mdp.num_latents, setting.discriminators[h],
            preset.lam(data.n), rounds, ell,
        )  # fmt: skip
        results.append(found)
    return results


def plan(setting: Setting, data: Data, decoders: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Alg. 1, l. 6, and the model of l. 7: P-hat [H, S, A, S] and bonus [H, S, A] for decoders [H, S]."""
    Z, lam, alpha = setting.mdp.num_latents, setting.preset.lam(data.n), setting.preset.alpha(data.n)
    bonus = setting.bonus_scale * count_bonus(data.counts, decoders, Z, lam, alpha)
    return learned_model(data.counts + data.counts_prime, decoders, Z, lam), bonus


def explore(setting: Setting, samples: int, rng: np.random.Generator) -> Iterator[Iteration]:
    """Algorithm 1 (or the exploration of Algorithm 4) until every D_h holds `samples` transitions."""
    if not setting.discriminators:
        setting = setting.with_discriminators()
    mdp, preset = setting.mdp, setting.preset
    data, policy = no_data(mdp), uniform_policy(mdp)  # Alg. 1, l. 2
    while data.n < samples:  # Alg. 1, l. 3
        m = min(batch(data.n, setting.growth), samples - data.n)
        data = collect(mdp, data, policy, m, rng)  # Alg. 1, l. 4
        learned = represent(setting, data)  # Alg. 1, l. 5
        decoders = np.stack([setting.classes[h, found.index] for h, found in enumerate(learned)])
        model, bonus = plan(setting, data, decoders)  # Alg. 1, l. 6
        q, V = value_iteration(model, setting.reward + bonus)  # Alg. 1, l. 7
        policy = deterministic(q.argmax(axis=2), mdp.num_actions)
        achieved = float(mdp.initial @ values(mdp.transition, mdp.reward, policy)[0])
        yield Iteration(
            data.n, preset.lam(data.n), preset.alpha(data.n), data.counts, data.counts_prime, learned,
            decoders, model, bonus, q, float(mdp.initial @ V[0]), policy, mdp.optimal_return - achieved,
            data.rho, data.beta, data.gamma,
        )  # fmt: skip


def batch(n: int, growth: float) -> int:
    """Samples until the next plan."""
    return max(1, round((growth - 1.0) * n))


def mixture_regret(history: list[Iteration], optimal: float, first: float) -> np.ndarray:
    """V* - V of the uniform mixture of the policies that collected data, after each iteration (Thm. 1).

    `first` is the value of the initial policy. Each policy counts as often as it was played.
    """
    regrets = np.array([optimal - first, *(step.regret for step in history[:-1])])
    played = np.diff([0, *(step.n for step in history)])
    return np.cumsum(regrets * played) / np.cumsum(played)


def plan_after(history: list[Iteration], reward: np.ndarray, with_bonus: bool = True) -> np.ndarray:
    """Planning phase of Algorithm 4: the policy [H, S, A] for a reward [H, S, A], from the iteration whose
    planner promised the least."""
    best = min(history, key=lambda step: step.optimistic_value)  # Alg. 4, l. 9
    q, _ = value_iteration(best.model, reward + (best.bonus if with_bonus else 0.0))
    return deterministic(q.argmax(axis=2), reward.shape[2])
