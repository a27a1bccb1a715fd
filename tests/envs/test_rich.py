"""RichObservation: tabular environments as block MDPs."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from briee.envs.adapters.episodic import Episodic
from briee.envs.adapters.rich import NoisyObservation, RichObservation, rich_observation

WRAPPED = "ignore:.*is different from the unwrapped version.*"
EMISSIONS = ["hadamard", "random", "image"]


@pytest.mark.filterwarnings(WRAPPED)
@pytest.mark.parametrize("emission", EMISSIONS)
def test_check_env_without_a_warning(emission):
    check_env(RichObservation(gym.make("FrozenLake-v1"), emission), skip_render_check=True)


@pytest.mark.parametrize("emission", EMISSIONS)
def test_the_state_is_in_info_and_can_be_decoded(emission):
    env = RichObservation(gym.make("FrozenLake-v1", is_slippery=False), emission)
    plain = gym.make("FrozenLake-v1", is_slippery=False)
    assert env.decodability() == 1.0
    observation, info = env.reset(seed=0)
    state, _ = plain.reset(seed=0)
    for action in (2, 2, 1, 1, 1, 2):
        assert observation.shape == ((28, 28, 1) if emission == "image" else (16,))
        assert observation in env.observation_space
        assert info["latent"] == state
        assert env.ground_truth_features(observation).argmax() == state
        observation, reward, terminated, _, info = env.step(action)
        state = plain.step(action)[0]
    assert (reward, terminated, info["latent"]) == (1.0, True, 15)


@pytest.mark.parametrize("emission", EMISSIONS)
def test_emissions_of_a_state_differ_by_noise_alone(emission):
    env = RichObservation(gym.make("FrozenLake-v1"), emission, noise=0.1, templates=1)
    draws = np.stack([env.reset()[0] for _ in range(2000)])
    quiet = RichObservation(gym.make("FrozenLake-v1"), emission, noise=0.0, templates=1).reset()[0]
    if emission == "image":
        assert (np.abs(draws - quiet).max(axis=0) > 0).all()
        return
    # Noise 0.1 before a rotation of squared norm 16 is 0.4 after it; five standard errors.
    assert np.abs(draws.mean(axis=0) - quiet).max() < 5 * 0.4 / np.sqrt(2000)
    assert np.abs(draws.std(axis=0) - 0.4).max() < 5 * 0.4 / np.sqrt(4000)


def test_seeds_of_noise_and_of_instance_are_apart():
    def first(instance, seed):
        return RichObservation(gym.make("FrozenLake-v1"), "random", instance_seed=instance).reset(seed=seed)[
            0
        ]

    np.testing.assert_array_equal(first(0, 1), first(0, 1))
    assert np.abs(first(0, 1) - first(0, 2)).max() < 3
    assert np.abs(first(0, 1) - first(1, 1)).max() > 0.5


def test_taxi_has_five_hundred_states_and_an_optimum():
    env = Episodic(RichObservation(gym.make("Taxi-v4")), 20)
    assert env.observation_space.shape == (513,)
    assert env.optimal_return is not None
    assert 5 < env.optimal_return < 10
    observation, info = env.reset(seed=3)
    assert (
        RichObservation(gym.make("Taxi-v4")).ground_truth_features(observation[:-1]).argmax()
        == info["latent"]
    )


def test_vectors_of_rich_environments():
    wrappers: Any = [RichObservation, lambda env: Episodic(env, 8)]
    env = gym.make_vec("FrozenLake-v1", num_envs=3, vectorization_mode="sync", wrappers=wrappers)
    observation, info = env.reset(seed=0)
    assert observation.shape == (3, 17)
    assert info["latent"].tolist() == [0, 0, 0]
    env.action_space.seed(0)
    for step in range(1, 9):
        terminated = env.step(env.action_space.sample())[2]
        assert terminated.tolist() == [step == 8] * 3


def test_bad_arguments_get_a_sentence():
    with pytest.raises(ValueError, match="need a Discrete observation space, CartPole-v1 has a Box"):
        RichObservation(gym.make("CartPole-v1"))
    with pytest.raises(ValueError, match="emission must be one of hadamard, random, image, got 'smell'"):
        RichObservation(gym.make("FrozenLake-v1"), "smell")
    with pytest.raises(ValueError, match="noise must be >= 0, got -1"):
        RichObservation(gym.make("FrozenLake-v1"), noise=-1)


@pytest.mark.filterwarnings(WRAPPED, "ignore:.*Box observation space m.*value is.*infinity.*")
def test_noise_on_array_observations():
    plain, noisy = gym.make("CartPole-v1"), NoisyObservation(gym.make("CartPole-v1"), noise=0.3)
    check_env(noisy, skip_render_check=True)
    starts = np.stack([noisy.reset(seed=seed)[0] - plain.reset(seed=seed)[0] for seed in range(300)])
    assert starts.std() == pytest.approx(0.3, rel=0.1)  # 1200 draws: five standard errors
    np.testing.assert_array_equal(noisy.reset(seed=3)[0], noisy.reset(seed=3)[0])
    with pytest.raises(ValueError, match="noise needs a Box observation space of real numbers"):
        rich_observation(gym.make("FrozenLake-v1"), {"emission": "noise"})
    with pytest.raises(ValueError, match="noise must be >= 0, got -1"):
        rich_observation(plain, {"emission": "noise", "noise": -1})
