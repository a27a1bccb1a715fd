"""Policies in NumPy on the host, and copies of an environment in processes of their own."""

from typing import Any

import gymnasium as gym
import jax
import numpy as np
import pytest

from briee.envs.grids import ImageGrid, NoisyGrid
from briee.rollout.host import HostSampler
from briee.rollout.policies import UniformPolicy
from briee.rollout.samplers import make_sampler


class Always:
    """A policy that also has a form in NumPy, which counts how often it was asked."""

    def __init__(self, action: int):
        self.action, self.levels = action, []

    def __call__(self, level, observation, key):
        raise AssertionError("the compiled form was asked")

    def on_host(self, rng: np.random.Generator):
        def act(level: int, observation: np.ndarray) -> np.ndarray:
            self.levels.append((level, len(observation)))
            return np.full(len(observation), self.action)

        return act


def test_the_form_in_numpy_is_asked_for_the_episodes_that_are_kept():
    vector = gym.vector.SyncVectorEnv([lambda: NoisyGrid(size=3)] * 4)
    policy: Any = Always(2)
    data = HostSampler(vector).rollout(policy, jax.random.key(0), 6)
    assert policy.levels == [(h, 4) for h in range(6)] + [(h, 2) for h in range(6)]
    assert (np.asarray(data.action) == 2).all()


def test_deviations_replace_the_actions_of_the_form_in_numpy():
    vector = gym.vector.SyncVectorEnv([lambda: NoisyGrid(size=3)] * 8)
    deviation: Any = jax.numpy.array([0, 1, 2, 3] * 10)
    policy: Any = Always(3)
    data = HostSampler(vector).rollout(policy, jax.random.key(0), 40, deviation, whole=True)
    action, level = np.asarray(data.action), np.arange(6)
    deviates = (level == deviation[:, None]) | (level == deviation[:, None] + 1)
    assert (action[~deviates] == 3).all()
    counts = np.bincount(action[deviates], minlength=4)
    assert counts.min() > 8  # 80 uniform draws


def test_only_the_copies_that_are_needed_are_reset():
    copies = [NoisyGrid(size=3) for _ in range(6)]
    resets = np.zeros(6, int)

    class Counted(gym.Wrapper):
        def __init__(self, index: int):
            super().__init__(copies[index])
            self.index = index

        def reset(self, **kwargs):
            resets[self.index] += 1
            return super().reset(**kwargs)

    sampler = HostSampler(gym.vector.SyncVectorEnv([lambda i=i: Counted(i) for i in range(6)]))
    resets[:] = 0
    sampler.rollout(UniformPolicy(4), jax.random.key(0), 2)
    assert resets.tolist() == [1, 1, 0, 0, 0, 0]


def test_images_and_vectors_of_the_grids_fit_their_spaces():
    for env in (NoisyGrid(), ImageGrid()):
        seen, _ = env.reset(seed=1)
        assert env.observation_space.contains(seen)
        for action in (0, 2) * (env.size - 1):
            seen, reward, over, _, _ = env.step(action)
        assert (reward, over) == (1.0, True)
        assert env.observation_space.contains(seen)


@pytest.mark.parametrize(
    ("env", "workers", "why"),
    [("lock", 5, "compiled, not stepped in processes"), ("grids/Noisy-v0", 2, "at least 5 workers, got 2")],
)
def test_workers_that_do_not_fit_are_one_sentence(env, workers, why):
    with pytest.raises(ValueError, match=why):
        make_sampler(env, None, {}, env_workers=workers)


@pytest.mark.slow
def test_workers_change_no_number():
    here = make_sampler("grids/Noisy-v0", None, {"size": 3})
    there = make_sampler("grids/Noisy-v0", None, {"size": 3}, env_workers=5)
    assert (here.horizon, here.optimal_return) == (there.horizon, there.optimal_return)
    one, two = (sampler.rollout(UniformPolicy(4), jax.random.key(3), 12) for sampler in (here, there))
    jax.tree.map(np.testing.assert_array_equal, one, two)
    there.close()  # type: ignore[union-attr]
