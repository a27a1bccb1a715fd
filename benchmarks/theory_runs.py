"""Algorithms 1 and 4 with exact oracles, every iteration kept: what the lemmas are measured on."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from briee.algorithms.theory.dynamic_programming import deterministic, uniform_policy, value_iteration, values
from briee.algorithms.theory.exploration import Data, ExactSetting, batch, collect, no_data, plan, represent
from briee.algorithms.theory.oracle import RepLearnResult


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
