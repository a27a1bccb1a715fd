"""RichObservation: tabular environments as block MDPs; environments of other projects."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import jax
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from briee import envs
from briee.envs.adapters.episodic import Episodic
from briee.envs.adapters.rich import NoisyObservation, RichObservation, rich_observation
from briee.rollout.host import HostSampler
from briee.rollout.policies import UniformPolicy

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


# pyright: reportMissingImports=false
# The other projects are extras; their tests are skipped without them.


# pygame, which some of these import for drawing, warns about its own packaging.
others_warn = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


def minigrid(layout: str):
    """A fully observed MiniGrid whose layout is fixed, so that it is a block MDP."""
    pytest.importorskip("minigrid")
    from minigrid.wrappers import FullyObsWrapper

    class FixedLayout(gym.Wrapper):
        def reset(self, *, seed=None, options=None):
            return self.env.reset(seed=7, options=options)

    return FixedLayout(FullyObsWrapper(gym.make(f"MiniGrid-{layout}-v0")))


@others_warn
@pytest.mark.parametrize("layout", ["Empty-5x5", "DoorKey-5x5"])
def test_minigrid(layout):
    env = Episodic(minigrid(layout), 12, keys="image", image_scale=10)
    assert env.observation_space.shape == (5, 5, 3)
    one, other = (env.reset(seed=seed)[0] for seed in (0, 1))
    np.testing.assert_array_equal(one, other)
    data = HostSampler(env.env, 12, keys=("image", "direction"), image_scale=10).rollout(
        UniformPolicy(7), jax.random.key(0), 3
    )
    assert data.observation.shape == (3, 13, 5 * 5 * 3 + 4 + 1)
    assert float(data.observation.min()) >= 0
    assert float(data.observation.max()) <= 1


@others_warn
def test_minigrid_reaches_its_goal_and_is_absorbed():
    env = Episodic(minigrid("Empty-5x5"), 12, keys="image", image_scale=10)
    assert Episodic(minigrid("Empty-5x5"), keys="image").horizon == 100
    env.reset(seed=0)
    forward, right = 2, 1
    rewards = [env.step(action)[1] for action in (forward, forward, right, forward, forward)]
    assert rewards[-1] > 0
    assert sum(rewards[:-1]) == 0
    observation, reward, _, _, _ = env.step(forward)
    assert not observation.any()
    assert reward == 0


@others_warn
def test_minigrid_says_that_it_leaves_the_mission_out():
    with pytest.warns(UserWarning, match="'mission' is text and is left out"):
        Episodic(minigrid("Empty-5x5"), 12)


@others_warn
def test_deep_sea():
    pytest.importorskip("bsuite")
    shimmy = pytest.importorskip("shimmy")
    gym.register_envs(shimmy)
    env: Any = gym.make("bsuite/deep_sea-v0", size=10, disable_env_checker=True)
    sampler = HostSampler(env, 10, optimal_return=0.99)
    assert sampler.observation_shape == (101,)
    data = sampler.rollout(UniformPolicy(2), jax.random.key(0), 20)
    observation = np.asarray(data.observation)
    # One diver, one row deeper at each level; the last step leaves the sea.
    assert (observation[:, :10, :-1].sum(axis=2) == 1).all()
    depth = observation[:, :10, :-1].argmax(axis=2) // 10
    assert (depth == np.arange(10)).all()


@others_warn
@pytest.mark.parametrize("mode", ["sync", "vector_entry_point"])
def test_cartpole_is_no_block_mdp_and_runs_all_the_same(mode):
    env = gym.make_vec("CartPole-v1", num_envs=4, vectorization_mode=mode)
    sampler = HostSampler(env, 40)
    data = sampler.rollout(UniformPolicy(2), jax.random.key(0), 6)
    again = sampler.rollout(UniformPolicy(2), jax.random.key(0), 6)
    np.testing.assert_array_equal(data.observation, again.observation)
    over = np.asarray(data.observation[..., -1]) == 1
    assert over[:, -1].all(), "a random policy drops the pole within 40 steps, seeds fixed"
    assert (np.asarray(data.reward) == ~over[:, 1:]).all()


@others_warn
def test_frozen_lake_and_taxi_as_block_mdps():
    for env_id, states in (("FrozenLake-v1", 16), ("Taxi-v4", 500)):
        sampler = HostSampler(RichObservation(gym.make(env_id)), 15)
        data = sampler.rollout(UniformPolicy(sampler.num_actions), jax.random.key(0), 4)
        assert data.observation.shape[1:] == (16, 2 ** int(np.ceil(np.log2(states))) + 1)
        assert sampler.optimal_return is not None


@others_warn
@pytest.mark.parametrize("name", list(envs.ENVIRONMENTS))
def test_stable_baselines_accepts_the_registered_environments(name):
    checker = pytest.importorskip("stable_baselines3.common.env_checker")
    checker.check_env(gym.make(envs.ENVIRONMENTS[name].id, horizon=3).unwrapped)


# Its own networks want large images in uint8; these are small floats in [0, 1].
@others_warn
@pytest.mark.filterwarnings(
    "ignore:It seems that your observation .*is an image", "ignore:The minimal resolution for an image"
)
@pytest.mark.parametrize("emission", ["hadamard", "random", "image"])
def test_stable_baselines_accepts_the_wrappers(emission):
    checker = pytest.importorskip("stable_baselines3.common.env_checker")
    rich = RichObservation(gym.make("FrozenLake-v1"), emission)
    checker.check_env(Episodic(rich, 8))
    checker.check_env(rich)
