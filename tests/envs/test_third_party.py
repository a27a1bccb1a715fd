"""Environments of other projects through Episodic and the host sampler; skipped where not installed."""

# pyright: reportMissingImports=false
# The other projects are extras; their tests are skipped without them.

from __future__ import annotations

from typing import Any

import gymnasium as gym
import jax
import numpy as np
import pytest

from briee import envs
from briee.envs.adapters.episodic import Episodic
from briee.envs.adapters.rich import RichObservation
from briee.rollout.host import HostSampler
from briee.rollout.policies import UniformPolicy

# pygame, which some of these import for drawing, warns about its own packaging.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


def minigrid(layout: str):
    """A fully observed MiniGrid whose layout is fixed, so that it is a block MDP."""
    pytest.importorskip("minigrid")
    from minigrid.wrappers import FullyObsWrapper

    class FixedLayout(gym.Wrapper):
        def reset(self, *, seed=None, options=None):
            return self.env.reset(seed=7, options=options)

    return FixedLayout(FullyObsWrapper(gym.make(f"MiniGrid-{layout}-v0")))


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


def test_minigrid_says_that_it_leaves_the_mission_out():
    with pytest.warns(UserWarning, match="'mission' is text and is left out"):
        Episodic(minigrid("Empty-5x5"), 12)


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


def test_frozen_lake_and_taxi_as_block_mdps():
    for env_id, states in (("FrozenLake-v1", 16), ("Taxi-v4", 500)):
        sampler = HostSampler(RichObservation(gym.make(env_id)), 15)
        data = sampler.rollout(UniformPolicy(sampler.num_actions), jax.random.key(0), 4)
        assert data.observation.shape[1:] == (16, 2 ** int(np.ceil(np.log2(states))) + 1)
        assert sampler.optimal_return is not None


@pytest.mark.parametrize("name", list(envs.ENVIRONMENTS))
def test_stable_baselines_accepts_the_registered_environments(name):
    checker = pytest.importorskip("stable_baselines3.common.env_checker")
    checker.check_env(gym.make(envs.ENVIRONMENTS[name].id, horizon=3).unwrapped)


# Its own networks want large images in uint8; these are small floats in [0, 1].
@pytest.mark.filterwarnings(
    "ignore:It seems that your observation .*is an image", "ignore:The minimal resolution for an image"
)
@pytest.mark.parametrize("emission", ["hadamard", "random", "image"])
def test_stable_baselines_accepts_the_wrappers(emission):
    checker = pytest.importorskip("stable_baselines3.common.env_checker")
    rich = RichObservation(gym.make("FrozenLake-v1"), emission)
    checker.check_env(Episodic(rich, 8))
    checker.check_env(rich)
