"""Algorithms 1 and 4 with exact oracles, every iteration kept: what the lemmas are measured on.

For Algorithm 4, exploration without a reward, this adds the discriminators of Appendix C.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from briee.algorithms.theory.exploration import Data, ExactSetting, batch, collect, no_data, plan, represent
from briee.algorithms.theory.oracle import (
    Discriminators,
    RepLearnResult,
    deterministic,
    first_class,
    indicator,
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
