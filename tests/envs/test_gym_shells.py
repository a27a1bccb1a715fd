"""The Gymnasium shells: valid, seeded, equal to one another and to the pure functions."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import jax
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from briee import envs

ROUNDING: Any = {"rtol": 1e-6, "atol": 1e-6}  # batches of other sizes compile to other orders of addition
DYNAMICS = [envs.ENVIRONMENTS[name].id for name in ("lock", "lock-simplex", "random-block")]
IDS = [entry.id for entry in envs.ENVIRONMENTS.values()]


def test_every_environment_is_registered_with_gymnasium():
    assert all(env_id in gym.registry for env_id in IDS)


@pytest.mark.parametrize("env_id", IDS)
def test_check_env_without_a_warning(env_id):
    check_env(gym.make(env_id, horizon=3).unwrapped)


@pytest.mark.parametrize("env_id", DYNAMICS)
def test_vector_shell_is_a_valid_vector_environment(env_id):
    env: Any = gym.make_vec(env_id, num_envs=3, horizon=3)
    assert env.single_action_space == gym.spaces.Discrete(env.unwrapped.pure.num_actions)
    observation, info = env.reset(seed=1)
    env.action_space.seed(0)
    for step in range(1, 8):
        assert observation in env.observation_space
        assert info["level"].tolist() == [(step - 1) % 4] * 3
        observation, reward, terminated, truncated, info = env.step(env.action_space.sample())
        assert reward.shape == terminated.shape == truncated.shape == (3,)
        assert terminated.tolist() == [step % 4 == 3] * 3  # then one step of autoreset
        assert not truncated.any()


@pytest.mark.parametrize("env_id", DYNAMICS)
def test_scalar_equals_vector_for_the_same_keys(env_id):
    vector: Any = gym.make_vec(env_id, num_envs=3, horizon=3)
    scalars = [gym.make(env_id, horizon=3) for _ in range(3)]
    actions = np.random.default_rng(0).integers(vector.unwrapped.pure.num_actions, size=(3, 3))
    batch, _ = vector.reset(seed=[7, 8, 9])
    single: list[Any] = [env.reset(seed=seed) for env, seed in zip(scalars, (7, 8, 9), strict=True)]
    np.testing.assert_allclose(batch, np.stack([s[0] for s in single]), **ROUNDING)
    for row in actions:
        batch, rewards, _, _, info = vector.step(row)
        single = [env.step(a) for env, a in zip(scalars, row, strict=True)]
        np.testing.assert_allclose(batch, np.stack([s[0] for s in single]), **ROUNDING)
        np.testing.assert_array_equal(rewards, np.array([s[1] for s in single], np.float32))
        assert info["latent"].tolist() == [s[4]["latent"] for s in single]


def test_vector_shell_equals_the_pure_functions():
    vector: Any = gym.make_vec("briee/CombinationLock-v0", num_envs=6, horizon=4, num_actions=2)
    pure = vector.unwrapped.pure
    keys = jax.random.split(jax.random.key(3), 6)
    state, expected = jax.jit(jax.vmap(lambda k: envs.episode_start(pure, k)))(keys)
    observation, _ = vector.reset(seed=3)
    np.testing.assert_allclose(observation, expected, **ROUNDING)
    step = jax.jit(jax.vmap(lambda s, a, k: envs.episode_step(pure, s, a, k)))
    for row in np.random.default_rng(1).integers(2, size=(4, 6)):
        state, expected, reward, done = step(state, row.astype(np.int32), keys)
        observation, rewards, terminated, _, _ = vector.step(row)
        np.testing.assert_allclose(observation, expected, **ROUNDING)
        np.testing.assert_array_equal(rewards, reward)
        np.testing.assert_array_equal(terminated, done)


def test_one_seed_one_stream_of_episodes():
    def first_observations(seed):
        env = gym.make("briee/CombinationLock-v0", horizon=3)
        return np.stack([env.reset(seed=seed)[0]] + [env.reset()[0] for _ in range(4)])

    one, same, other = (first_observations(s) for s in (5, 5, 6))
    np.testing.assert_array_equal(one, same)
    assert len(np.unique(np.concatenate([one, other]), axis=0)) == 10


def test_autoreset_continues_the_stream_of_each_environment():
    vector: Any = gym.make_vec("briee/CombinationLock-v0", num_envs=3, horizon=3)
    vector.reset(seed=[1, 2, 3])
    for _ in range(4):
        restarted = vector.step(np.array([0, 0, 0]))[0]
    scalar = gym.make("briee/CombinationLock-v0", horizon=3)
    scalar.reset(seed=2)
    np.testing.assert_allclose(restarted[1], scalar.reset()[0], **ROUNDING)


def test_actions_outside_the_space_and_missing_resets_get_a_sentence():
    env = gym.make("briee/CombinationLock-v0", horizon=3).unwrapped
    with pytest.raises(gym.error.ResetNeeded, match="call reset"):
        env.step(0)
    env.reset(seed=0)
    with pytest.raises(ValueError, match=r"action must be an integer in \[0, 10\), got 10"):
        env.step(10)
    for _ in range(3):
        env.step(0)
    with pytest.raises(gym.error.ResetNeeded, match="call reset"):
        env.step(0)
    vector: Any = gym.make_vec("briee/CombinationLock-v0", num_envs=3, horizon=3)
    with pytest.raises(gym.error.ResetNeeded):
        vector.step(np.array([0, 0, 0]))
    vector.reset(seed=0)
    with pytest.raises(ValueError, match=r"actions must be in \[0, 10\)"):
        vector.step(np.array([0, 0, -1]))
    with pytest.raises(ValueError, match="actions must be 3 integers"):
        vector.step(np.array([0, 1]))
    with pytest.raises(ValueError, match="num_envs must be >= 1, got 0"):
        gym.make_vec("briee/CombinationLock-v0", num_envs=0)


def test_unknown_names_list_the_known_ones():
    with pytest.raises(ValueError, match="unknown environment 'look': pure environments are lock, "):
        envs.make("look")


def test_values_have_the_type_of_the_argument():
    assert envs.make("lock", horizon=3, final_reward=2).optimal_return == 2.0
    assert envs.make("lock", temperature=None).temperature is None
    with pytest.raises(ValueError, match="horizon must be a whole number, got True"):
        envs.make("lock", horizon=True)
