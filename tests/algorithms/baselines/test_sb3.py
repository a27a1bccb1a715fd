"""Stable-Baselines3 under our counter: counting, purity, and that its policy is ours number by number."""

import random
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("stable_baselines3")

from briee.algorithms.baselines.config import PpoConfig, Sb3Config
from briee.algorithms.baselines.ppo import Ppo
from briee.algorithms.baselines.sb3 import Sb3
from briee.envs.lock import CombinationLock
from briee.rollout.samplers import ScanSampler, evaluate


@pytest.fixture(scope="module")
def sampler():
    pure = CombinationLock(horizon=2, num_actions=3, step_reward=0.1, anti_reward=0.0, instance_seed=3)
    return ScanSampler(pure)


def same(one, two) -> bool:
    return all(np.array_equal(one.parameters[name], two.parameters[name]) for name in one.parameters)


@pytest.mark.parametrize("name", ["PPO", "A2C", "DQN"])
def test_it_counts_its_episodes_and_its_policy_is_the_library_s(sampler, name):
    algorithm = Sb3(sampler, Sb3Config(name, episodes_per_update=20))
    state = algorithm.update(algorithm.init(jax.random.key(0)))
    assert int(state.env_steps) >= 40
    assert int(state.episodes) == -(-int(state.env_steps) // 20) * 10, "ten copies of two steps"
    observation = sampler.pure.emit(0, 0, jax.random.key(1))
    theirs, _ = algorithm._model.predict(np.asarray(observation), deterministic=True)
    assert int(algorithm.policy(state)(jnp.int32(0), observation, jax.random.key(2))) == int(theirs)


def test_an_update_depends_on_the_state_alone_and_leaves_global_generators(sampler):
    algorithm = Sb3(sampler, Sb3Config("PPO", episodes_per_update=20))
    start = algorithm.init(jax.random.key(0))
    before = random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[union-attr]  # noqa: NPY002
    first = algorithm.update(start)
    second = algorithm.update(first)
    fresh = Sb3(sampler, Sb3Config("PPO", episodes_per_update=20))
    assert same(algorithm.update(start), first)
    assert same(fresh.update(first), second), "a resumed run goes on as if never stopped"
    assert before == (random.getstate(), np.random.get_state()[1].tolist())  # type: ignore[union-attr]  # noqa: NPY002
    assert not same(first, algorithm.update(algorithm.init(jax.random.key(1))))


def test_it_learns_the_dense_lock(sampler):
    algorithm = Sb3(sampler, Sb3Config("A2C", episodes_per_update=200))
    state, returns = algorithm.init(jax.random.key(0)), np.zeros(1)
    for _ in range(30):
        state = algorithm.update(state)
        returns = evaluate(sampler, algorithm.policy(state), jax.random.key(5), 100)
        if returns.min() > 1.09:
            break
    assert returns.min() > 1.09, f"after {int(state.episodes)} episodes the mean is {returns.mean()}"


def test_only_algorithms_for_discrete_actions_are_known():
    with pytest.raises(ValueError, match="algorithm must be one of PPO, A2C, DQN, got 'SAC'"):
        Sb3Config("SAC")


@pytest.mark.slow
def test_our_ppo_and_theirs_agree_on_the_dense_lock():
    """Each with its own settings and 100 episodes for a policy update: the median run of either ends at the
    optimum of the lock with H = 5 (one in four stays on a plateau for long), and their mean returns on the
    way there differ by no more than the noise of three seeds: a run's varies by about 0.2, so two standard
    errors of the difference are 0.3."""
    sampler = ScanSampler(CombinationLock(horizon=5, step_reward=0.1, anti_reward=0.0, instance_seed=3))
    rivals: dict[str, tuple[Any, int]] = {
        "ours": (Ppo(sampler, replace(PpoConfig.paper(5), rounds=5)), 1),
        "theirs": (Sb3(sampler, Sb3Config("PPO", episodes_per_update=100)), 5),
    }
    final, area = {}, {}
    for name, (algorithm, repeats) in rivals.items():
        means = np.zeros((3, 24))
        for row, seed in zip(means, (2, 3, 4), strict=True):
            state = algorithm.init(jax.random.key(seed))
            for column in range(24):
                for _ in range(repeats):
                    state = algorithm.update(state)
                row[column] = evaluate(sampler, algorithm.policy(state), jax.random.key(5), 100).mean()
            assert int(state.episodes) == 12_000
        final[name], area[name] = np.median(means[:, -3:].mean(axis=1)), means.mean()
    assert sampler.pure.optimal_return == pytest.approx(1.4)
    assert min(final.values()) == pytest.approx(1.4, rel=0.02), final
    assert abs(area["ours"] - area["theirs"]) < 0.3, area
