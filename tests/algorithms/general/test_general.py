"""The general algorithm: the contract of an algorithm, and that it opens locks without being told K."""

from dataclasses import replace
from typing import Any

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from briee.agent.agent import Agent
from briee.algorithms.general.algorithm import General
from briee.algorithms.general.config import DataConfig, GeneralConfig
from briee.algorithms.general.decoders import labels
from briee.algorithms.general.state import reward_bins, slots
from briee.envs.lock import CombinationLock
from briee.rollout.host import HostSampler
from briee.rollout.samplers import ScanSampler, evaluate
from briee.testing import check_agent, equal

H = 5


@pytest.fixture(scope="module")
def algorithm() -> General:
    config = GeneralConfig(data=DataConfig(episodes=128))
    return General(ScanSampler(CombinationLock(horizon=H, instance_seed=2)), config)


@pytest.fixture(scope="module")
def trained(algorithm):
    state = algorithm.init(jax.random.key(0))
    for _ in range(8):
        state = algorithm.update(state)
    return state


def test_the_contract_of_an_agent_holds():
    env = CombinationLock(horizon=2, num_actions=3, instance_seed=3)
    config = GeneralConfig(data=DataConfig(episodes=64))
    agent = check_agent(lambda seed: Agent(env, algorithm="general", config=config, seed=seed), iterations=2)
    assert agent.iterations == 4


def test_a_small_lock_is_opened_without_the_number_of_states(algorithm, trained):
    returns = evaluate(algorithm.sampler, algorithm.policy(trained), jax.random.key(5), 20)
    np.testing.assert_array_equal(returns, 1.0)
    assert trained.decoders.states.tolist() == [2, 3, 3, 3, 3]  # nobody falls before the first action
    assert algorithm.metrics(trained)["states_most"] == 3


def test_an_update_is_a_pure_function_of_the_state(algorithm, trained):
    before = jax.tree.map(np.copy, replace(trained, key=jax.random.key_data(trained.key)))
    assert equal(algorithm.update(trained), algorithm.update(trained))
    assert equal(before, replace(trained, key=jax.random.key_data(trained.key)))


def test_every_leaf_keeps_its_shape(algorithm, trained):
    shapes = lambda state: [(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(state)]  # noqa: E731
    assert shapes(algorithm.init(jax.random.key(0))) == shapes(trained)


def test_a_full_store_keeps_the_rare_episodes(algorithm, trained):
    assert int(trained.episodes) == 160
    assert int(trained.data.size) == 128
    cells = algorithm.cells(trained).counts.sum(-1)
    assert (cells[:, 1:4] > 0).sum() >= 0.9 * (2 * 10 + 4 * 3 * 10)  # hardly a cell was lost


def test_the_compiled_policy_and_the_host_give_the_same_labels(algorithm, trained):
    policy = algorithm.policy(trained, "optimistic")
    for h in range(H):
        x = trained.data.observation[:50, h]
        compiled = jax.vmap(policy.label, (None, 0))(jnp.int32(h), jnp.asarray(x))
        np.testing.assert_array_equal(compiled, labels(trained.decoders, h, x))
    assert slots(trained.decoders) == 8


def test_environments_on_the_host_are_learned_too():
    vector: Any = gym.make_vec("briee/CombinationLock-v0", num_envs=5, horizon=3, num_actions=3)
    host = General(HostSampler(vector, 3), GeneralConfig())
    compiled = General(ScanSampler(vector.unwrapped.pure), GeneralConfig())
    states = []
    for algorithm in (host, compiled):
        state = algorithm.init(jax.random.key(1))
        for _ in range(3):
            state = algorithm.update(state)
        states.append(state)
    np.testing.assert_array_equal(states[0].data.action, states[1].data.action)
    np.testing.assert_array_equal(states[0].decoders.states, states[1].decoders.states)


def test_rewards_are_binned_by_value_or_by_quantile():
    assert reward_bins(np.array([0.0, 1.0, 0.1, 0.0])).tolist() == [0, 2, 1, 0]
    many = reward_bins(np.linspace(0, 1, 101))
    assert many.min() == 0
    assert many.max() == 5
    assert (np.diff(many) >= 0).all()


def test_rounds_must_divide_the_episodes():
    config = GeneralConfig()
    with pytest.raises(ValueError, match=r"episodes must be a multiple of rounds \(3\), got 20"):
        replace(config, explore=replace(config.explore, rounds=3))


def test_large_images_keep_the_shape_of_every_leaf():
    env = CombinationLock(horizon=2, num_actions=3, emission="image", image_size=36, instance_seed=1)
    algorithm = General(ScanSampler(env), GeneralConfig())
    state = first = algorithm.init(jax.random.key(0))
    for _ in range(3):  # patches are drawn at the second update
        state = algorithm.update(state)
    assert state.decoders.patches.patch.any()
    assert [leaf.shape for leaf in jax.tree.leaves(state)] == [leaf.shape for leaf in jax.tree.leaves(first)]


def test_shared_labels_that_a_level_does_not_use_are_not_counted(algorithm, trained):
    label = trained.data.label.copy()
    n = int(trained.data.size)
    label[:n] = 1
    label[: n // 2, 0] = 2
    shared = replace(trained, transfer=np.asarray(0.9, np.float32), data=replace(trained.data, label=label))
    assert algorithm.metrics(shared)["states_most"] == 2
    assert algorithm.metrics(shared)["states_mean"] == pytest.approx((H + 1) / H)


@pytest.mark.slow
def test_levels_that_look_alike_share_a_regression():
    lock = CombinationLock(horizon=5, num_actions=3, emission="network", instance_seed=3)
    algorithm = General(ScanSampler(lock), GeneralConfig())
    state = first = algorithm.init(jax.random.key(3))
    for _ in range(12):
        state = algorithm.update(state)
    assert float(state.transfer) > 0.8
    assert equal(algorithm.update(state), algorithm.update(state))
    shapes = [jax.tree.map(np.shape, tree) for tree in (first, state)]
    assert jax.tree.all(jax.tree.map(lambda a, b: a == b, *shapes))
    returns = evaluate(algorithm.sampler, algorithm.policy(state), jax.random.key(4), 100)
    assert np.mean(returns) > 0.9
