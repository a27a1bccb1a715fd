"""Runs with exact oracles; on them both sides of each lemma: the right one is proved to be above the left.

The runs are Algorithms 1 and 4 with every iteration kept; Algorithm 4 with the discriminators of Appendix C.

Numbers follow the order in the paper: Lemma 3 and 4 one step back, 5 almost optimism, 6 covering, 7 uniform
convergence, 9 and 10 reward-free, 11 bounded weights, 12 to 14 potentials, 15 bonus, 16 simulation.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise, product
from typing import NamedTuple

import numpy as np

from briee.algorithms.theory.exploration import Data, ExactSetting, batch, collect, no_data, plan, represent
from briee.algorithms.theory.oracle import (
    Discriminators,
    RepLearnResult,
    aggregate,
    deterministic,
    first_class,
    indicator,
    occupancy,
    stack,
    value_iteration,
    values,
)
from briee.envs.finite_block import BlockMDP


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
class RewardFreeSetting(ExactSetting):
    """The setting of Algorithm 4: no reward, and the discriminators of Appendix C."""

    def with_discriminators(self) -> "RewardFreeSetting":
        """The same with F_h of every level."""
        mdp, H, c = self.mdp, self.mdp.horizon, self.preset.c
        sizes = mdp.num_latents, mdp.num_actions, H, c
        return replace(self, discriminators=[appendix_c(self.classes[h + 1], *sizes) for h in range(H)])


def appendix_c(
    decoders: np.ndarray, num_latents: int, num_actions: int, horizon: int, c: float, printed: bool = False
) -> Discriminators:
    """The class of reward-free exploration: F1 and x[psi(s), pi(s)] + y[psi'(s), pi'(s)], policies of the
    decoded latent state.

    Rewards theta and values w' lie in [-1, 1], the bonus w in [0, c]; `printed` allows all three [-c, c].
    """
    scale, first = 2 * horizon + 1, first_class(decoders, num_latents)
    if printed:
        bounds = (-c - c / scale, c + min(c, 2.0) / scale), (-c / scale, c / scale)
    else:
        bounds = (-1.0, 1.0 + min(c, 2.0) / scale), (-1.0 / scale, 1.0 / scale)
    cells = partitions(decoders, num_latents, num_actions)
    pieces = []
    for one, two in product(cells, cells):
        basis = np.hstack([indicator(one, one.max() + 1), indicator(two, two.max() + 1)])
        limits = np.repeat(np.asarray(bounds), [one.max() + 1, two.max() + 1], axis=0)
        pieces.append((basis, np.zeros(len(one)), limits[:, 0], limits[:, 1]))
    second = stack(pieces)
    return Discriminators([first, second], [first, second])


def partitions(decoders: np.ndarray, num_latents: int, num_actions: int) -> list[np.ndarray]:
    """The finest partitions of the observations by (psi(s), pi(s)), as labels [S]; others add no f."""
    found = set()
    for labels, other in product(decoders, decoders):
        for rule in product(range(num_actions), repeat=num_latents):
            joint = (labels * num_actions + np.asarray(rule)[other]).tolist()
            names = {cell: index for index, cell in enumerate(dict.fromkeys(joint))}  # in order of appearance
            found.add(tuple(names[cell] for cell in joint))

    def refines(fine: tuple[int, ...], coarse: tuple[int, ...]) -> bool:
        return len(set(zip(fine, coarse, strict=True))) == len(set(fine))

    finest = [p for p in found if not any(q != p and refines(q, p) for q in found)]
    return [np.asarray(p) for p in sorted(finest)]


def uniform_policy(mdp: BlockMDP) -> np.ndarray:
    """pi [H, S, A]: all actions equally likely."""
    return np.full(mdp.reward.shape, 1.0 / mdp.num_actions)


def explore(setting: ExactSetting, samples: int, rng: np.random.Generator) -> Iterator[Iteration]:
    """Algorithm 1 (or the exploration of Algorithm 4) until every D_h holds `samples` transitions."""
    if not setting.discriminators:
        setting = setting.with_discriminators()
    mdp, preset = setting.mdp, setting.preset
    reward = np.zeros_like(mdp.reward) if isinstance(setting, RewardFreeSetting) else mdp.reward
    data, policy = no_data(mdp), uniform_policy(mdp)  # Alg. 1, l. 2
    while data.n < samples:  # Alg. 1, l. 3
        m = min(batch(data.n, setting.growth), samples - data.n)
        data = collect(mdp, data, policy, m, rng)  # Alg. 1, l. 4
        learned = represent(setting, data)  # Alg. 1, l. 5
        decoders = np.stack([setting.classes[h, found.index] for h, found in enumerate(learned)])
        model, bonus = plan(setting, data, decoders)  # Alg. 1, l. 6
        q, V = value_iteration(model, reward + bonus)  # Alg. 1, l. 7
        policy = deterministic(q.argmax(axis=2), mdp.num_actions)
        achieved = float(mdp.initial @ values(mdp.transition, mdp.reward, policy)[0])
        yield Iteration(
            **vars(data), lam=preset.lam(data.n), alpha=preset.alpha(data.n), learned=learned,
            decoders=decoders, model=model, bonus=bonus, q=q, optimistic_value=float(mdp.initial @ V[0]),
            policy=policy, regret=mdp.optimal_return - achieved,
        )  # fmt: skip


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


class Sides(NamedTuple):
    """left <= right is the claim."""

    left: float
    right: float

    @property
    def holds(self) -> bool:
        """Up to rounding."""
        return self.left <= self.right + 1e-9 * max(1.0, abs(self.right))


def data_distribution(step: Iteration, h: int) -> np.ndarray:
    """The distribution [S, A] of D_h and D'_h together."""
    return step.rho[h] if h == 0 else (step.rho[h] + step.beta[h]) / 2.0


def reconstruction_error(setting: ExactSetting, step: Iteration, h: int) -> float:
    """Lemma 1, left: max over F_h of E (w_f'phi - E f)^2. The form is convex, so vertices suffice; if the
    class is only enclosed, this is the upper bound."""
    error = (step.model[h] - setting.mdp.transition[h]).reshape(-1, step.model.shape[-1])
    form = np.einsum("i,is,it->st", data_distribution(step, h).ravel(), error, error)
    return setting.discriminators[h].maximise(form[None])[2]


def replearn_guarantee(setting: ExactSetting, step: Iteration, h: int) -> Sides:
    """Lemma 1."""
    k = float((step.counts[h] + step.counts_prime[h]).sum())
    return Sides(reconstruction_error(setting, step, h), setting.preset.zeta(step.n, k))


def almost_optimism(setting: ExactSetting, step: Iteration, zeta: float) -> Sides:
    """Lemmas 2 and 5: V* - sqrt(A zeta) <= V-hat."""
    slack = np.sqrt(setting.mdp.num_actions * zeta)
    return Sides(setting.mdp.optimal_return - float(slack), step.optimistic_value)


def simulation_lemma(
    mdp: BlockMDP, model: np.ndarray, bonus: np.ndarray, policy: np.ndarray, printed: bool = False
) -> tuple[float, float, float]:
    """Lemma 16: the difference V_{P',r+b} - V_{P,r}, and both of its forms. `printed` uses P instead of P' in
    the value function of the second form, as the statement of the lemma does (not the proof of Theorem 3)."""
    there = values(model, mdp.reward + bonus, policy)
    here = values(mdp.transition, mdp.reward, policy)
    second = values(mdp.transition, mdp.reward + bonus, policy) if printed else there
    shift = model - mdp.transition
    forms = []
    for world, V in ((model, here), (mdp.transition, second)):
        d = occupancy(mdp.initial, world, policy)
        forms.append(float(np.sum(d * (bonus + np.einsum("hsat,ht->hsa", shift, V[1:])))))
    return float(mdp.initial @ (there[0] - here[0])), forms[0], forms[1]


def cell_norm(distribution: np.ndarray, labels: np.ndarray, num_latents: int, n: float, lam: float):
    """|phi(s, a)|_{Sigma^-1} [S, A] for Sigma = n E phi phi' + lam I and one-hot phi."""
    mass = np.zeros((num_latents, distribution.shape[1]))
    np.add.at(mass, labels, distribution)
    return 1.0 / np.sqrt(n * mass + lam)[labels]


def one_step_back(
    mdp: BlockMDP, rho: np.ndarray, gamma: np.ndarray, g: np.ndarray, policy: np.ndarray, n: float,
    lam: float, bound: float, action_factor: float | None = None,
) -> Sides:  # fmt: skip
    """Lemma 4, in the true model. `action_factor` replaces |A| under the root, to test that it is needed."""
    A, d, H = mdp.num_actions, mdp.dimension, mdp.horizon
    factor = A if action_factor is None else action_factor
    seen = occupancy(mdp.initial, mdp.transition, policy)
    right = np.sqrt(factor * np.sum(rho[0] * g[0] ** 2))
    for h in range(H - 1):
        norm = cell_norm(gamma[h], mdp.truth[h], mdp.num_latents, n, lam)
        inside = n * factor * np.sum(rho[h + 1] * g[h + 1] ** 2) + bound**2 * lam * d
        right += np.sum(seen[h] * norm) * np.sqrt(inside)
    return Sides(float(np.sum(seen * g)), float(right))


def one_step_back_learned(
    setting: ExactSetting, step: Iteration, g: np.ndarray, policy: np.ndarray, zeta: float, bound: float,
    action_factor: float | None = None,
) -> Sides:  # fmt: skip
    """Lemma 3, in the learned model, for g >= 0. `action_factor` replaces |A|^2 under the root."""
    mdp, n, lam = setting.mdp, step.n, step.lam
    A, d = mdp.num_actions, mdp.dimension
    factor = A**2 if action_factor is None else action_factor
    seen = occupancy(mdp.initial, step.model, policy)
    right = float(np.sqrt(A * np.sum(step.rho[0] * g[0] ** 2)))
    for h in range(mdp.horizon - 1):
        norm = cell_norm(step.rho[h], step.decoders[h], mdp.num_latents, n, lam)
        inside = n * factor * (np.sum(step.beta[h + 1] * g[h + 1] ** 2) + zeta) + bound**2 * lam * d
        right += float(np.sum(seen[h] * np.minimum(norm * np.sqrt(inside), bound)))
    return Sides(float(np.sum(seen * g)), right)


def uniform_convergence(
    setting: ExactSetting, step: Iteration, h: int, rng: np.random.Generator, share: float = 0.5
) -> float:
    """Lemma 7: the constant that a random f and a random decoder need instead of 28 (it may be < 0). `share`
    replaces 1/2, to test that it is needed."""
    preset, mdp = setting.preset, setting.mdp
    counts = step.counts[h] + step.counts_prime[h]
    k, rho = float(counts.sum()), data_distribution(step, h)
    f = setting.discriminators[h].sample(rng)
    labels = setting.classes[h, rng.integers(setting.classes.shape[1])]
    w = ridge_weights(counts, labels, mdp.num_latents, step.lam, f)[labels]  # [S, A]
    truth = mdp.transition[h] @ f
    expected = float(np.sum(rho * (w - truth) ** 2))
    difference = (w[..., None] - f) ** 2 - (truth[..., None] - f) ** 2
    empirical = float(np.sum(counts * difference)) / k
    return (abs(expected - empirical) - share * expected) * 28.0 / (preset.epsilon_tilde(k) / 2.0)


def ridge_weights(
    counts: np.ndarray, labels: np.ndarray, num_latents: int, lam: float, f: np.ndarray
) -> np.ndarray:
    """w_f [Z, A] = argmin of sum (w'phi - f(s'))^2 + lam |w|^2."""
    u = aggregate(counts, labels, num_latents)
    return (u @ f) / (u.sum(axis=-1) + lam)


def bounded_weights(setting: ExactSetting, step: Iteration, h: int, rng: np.random.Generator) -> Sides:
    """Lemma 11: |w_f| <= L = max |f|, for a random f."""
    f = setting.discriminators[h].sample(rng)
    counts = step.counts[h] + step.counts_prime[h]
    w = ridge_weights(counts, step.decoders[h], setting.mdp.num_latents, step.lam, f)
    return Sides(float(np.abs(w).max()), float(np.abs(f).max()))


def bonus_ratio(setting: ExactSetting, step: Iteration) -> tuple[float, float]:
    """Lemma 15: the smallest and largest ratio of the empirical to the population's norm over all of Phi."""
    low, high = np.inf, 0.0
    for h in range(setting.mdp.horizon):
        for labels in setting.classes[h]:
            cells = aggregate(step.counts[h], labels, setting.mdp.num_latents).sum(axis=-1)[labels]
            population = cell_norm(step.rho[h], labels, setting.mdp.num_latents, step.n, step.lam)
            ratio = 1.0 / np.sqrt(cells + step.lam) / population
            low, high = min(low, ratio.min()), max(high, ratio.max())
    return float(low), float(high)


def potential(G: np.ndarray, lam: float) -> tuple[Sides, Sides, Sides]:
    """Lemmas 12 and 13 for G [N, d, d] with eigenvalues and traces of at most 1.

    First, sum tr(G_n M_{n-1}^-1) <= 2 ln det(M_N) / det(lam I); second, ln det(M_N) / det(lam I) <= d ln(1 +
    N / (d lam)); third, the second with a factor of 2 on its left, as printed.
    """
    N, d, _ = G.shape
    M, total = lam * np.eye(d), 0.0
    for step in G:
        total += float(np.trace(np.linalg.solve(M, step)))
        M = M + step
    volume = float(np.linalg.slogdet(M)[1] - d * np.log(lam))
    right = d * float(np.log1p(N / (d * lam)))
    return Sides(total, 2.0 * volume), Sides(volume, right), Sides(2.0 * volume, right)


def generalised_potential(theta: np.ndarray, lam: float) -> Sides:
    """Lemma 14 for theta [T + 1, d] with |theta_t| <= L sqrt(d) and lam >= L^2 d; Sigma_t sums theta_1..t."""
    T, d = len(theta) - 1, theta.shape[1]
    M, total = lam * np.eye(d), 0.0
    for now, later in pairwise(theta):
        M = M + np.outer(now, now)
        total += float(np.linalg.norm(np.linalg.solve(M, later)))
    return Sides(total, 2.0 * float(np.sqrt(d * T / lam)))


def total_variation(mdp: BlockMDP, step: Iteration, policy: np.ndarray) -> float:
    """Thm. 6, left: sum over h of E_d |P* - P-hat|_1."""
    d = occupancy(mdp.initial, mdp.transition, policy)
    return float(np.sum(d * np.abs(mdp.transition - step.model).sum(axis=-1)))


def reward_free_values(setting: ExactSetting, history: list[Iteration]) -> tuple[Sides, Sides]:
    """Lemma 9 after the last iteration: N min V-hat <= sum of V-hat over the samples, and this sum <= H^{5/2}
    A^{1/2} d ln(|Phi| / delta)^{1/4} N^{3/4}, with a hidden constant of 1."""
    mdp, preset, N = setting.mdp, setting.preset, history[-1].n
    played = np.diff([0, *(step.n for step in history)])
    promised = np.array([step.optimistic_value for step in history])
    total = float(played @ promised)
    order = mdp.horizon**2.5 * mdp.num_actions**0.5 * preset.d
    bound = order * float(np.log(preset.class_size / preset.delta)) ** 0.25 * N**0.75
    return Sides(N * float(promised.min()), total), Sides(total, bound)


def overestimation(
    mdp: BlockMDP, step: Iteration, reward: np.ndarray, zeta: float, constant: float = 1.0
) -> Sides:
    """Lemma 10 for a later reward [H, S, A]: V_{P-hat,r+b} - V_{P*,r} <= C V_{P-hat,b} + sqrt(A zeta) of the
    policy planned for it."""
    policy = planned_policy(step, reward)
    there = values(step.model, reward + step.bonus, policy)[0]
    bonus = mdp.initial @ values(step.model, step.bonus, policy)[0]
    left = mdp.initial @ (there - values(mdp.transition, reward, policy)[0])
    return Sides(float(left), float(constant * bonus + np.sqrt(mdp.num_actions * zeta)))


def planning_error(
    mdp: BlockMDP, step: Iteration, reward: np.ndarray, zeta: float, constant: float = 1.0
) -> Sides:
    """Thm. 5, as in its proof: V* - V of the planned policy <= 2 sqrt(A zeta) + C V-hat, for V-hat of the
    iteration that Algorithm 4 keeps."""
    got = values(mdp.transition, reward, planned_policy(step, reward))[0]
    best = value_iteration(mdp.transition, reward)[1][0]
    slack = 2.0 * np.sqrt(mdp.num_actions * zeta)
    return Sides(float(mdp.initial @ (best - got)), float(slack + constant * step.optimistic_value))
