"""Algorithms 1 and 4 in the setting of the theorems: finite classes, exact oracles, known distributions.

The algorithm plans again when the data has grown by a factor (factor 1: after every episode, as printed). The
data between two plans is multinomial counts, so 10^12 episodes take as long as ten.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from briee.algorithms.theory.block import deterministic, mixture, uniform_policy, value_iteration, values
from briee.algorithms.theory.discriminators import Discriminators, appendix_c, section_4
from briee.algorithms.theory.model import count_bonus, learned_model
from briee.algorithms.theory.oracle import RepLearnResult, replearn
from briee.algorithms.theory.presets import TheoryPreset
from briee.envs.exact_tables import BlockMDP


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
class Iteration(Data):
    """The data, results and true regret of one iteration of Algorithm 1.

    learned: RepLearn's result per level; decoders [H, S]; model P-hat and bonus; Q [H, S, A] of the planner,
    its start value and its policy [H, S, A]; regret V* - V of the policy.
    """

    lam: float
    alpha: float
    learned: list[RepLearnResult]
    decoders: np.ndarray
    model: np.ndarray
    bonus: np.ndarray
    q: np.ndarray
    optimistic_value: float
    policy: np.ndarray
    regret: float


@dataclass(frozen=True)
class ExactSetting:
    """A block MDP, its classes Phi [H + 1, M, S], the parameters, and the goal of exploration."""

    mdp: BlockMDP
    classes: np.ndarray
    preset: TheoryPreset
    reward_free: bool = False
    growth: float = 1.5
    bonus_scale: float = 1.0
    """Factor of the bonus: 1 is Algorithm 1; 0 turns the bonus off."""
    discriminators: list[Discriminators] = field(default_factory=list)

    @property
    def reward(self) -> np.ndarray:
        """The reward of exploration [H, S, A]: zero in Algorithm 4."""
        return np.zeros_like(self.mdp.reward) if self.reward_free else self.mdp.reward

    def with_discriminators(self) -> "ExactSetting":
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


def explore(setting: ExactSetting, samples: int, rng: np.random.Generator) -> Iterator[Iteration]:
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
            **vars(data), lam=preset.lam(data.n), alpha=preset.alpha(data.n), learned=learned,
            decoders=decoders, model=model, bonus=bonus, q=q, optimistic_value=float(mdp.initial @ V[0]),
            policy=policy, regret=mdp.optimal_return - achieved,
        )  # fmt: skip


def batch(n: int, growth: float) -> int:
    """Samples until the next plan."""
    return max(1, round((growth - 1.0) * n))


def mixture_regret(history: list[Iteration], optimal: float, first: float) -> np.ndarray:
    """V* - V of the uniform mixture of the policies that collected data, after each iteration (Thm. 1).

    `first` is the value of the initial policy. Each policy is weighted by the samples it collected.
    """
    regrets = np.array([optimal - first, *(step.regret for step in history[:-1])])
    played = np.diff([0, *(step.n for step in history)])
    return np.cumsum(regrets * played) / np.cumsum(played)


def planned_policy(step: Iteration, reward: np.ndarray, with_bonus: bool = True) -> np.ndarray:
    """The planning phase of Algorithm 4 in the model of one iteration: a policy [H, S, A]."""
    q, _ = value_iteration(step.model, reward + (step.bonus if with_bonus else 0.0))
    return deterministic(q.argmax(axis=2), reward.shape[2])


def plan_after(history: list[Iteration], reward: np.ndarray, with_bonus: bool = True) -> np.ndarray:
    """The same in the iteration whose planner promised the least, for a reward [H, S, A]."""
    best = min(history, key=lambda step: step.optimistic_value)  # Alg. 4, l. 9
    return planned_policy(best, reward, with_bonus)
