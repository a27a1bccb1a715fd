"""MiniGrid's empty room of 5 x 5, fully observed: `minigrid_full:FullyObserved/Empty-5x5-v0`.

Observations are the whole grid f32[5, 5, 3] (object, colour, direction of each cell), divided by 10 so that
they are of order one. The goal is five steps away: forward, forward, right, forward, forward.
"""

import gymnasium as gym
import numpy as np
from gymnasium.wrappers import TransformObservation
from minigrid.wrappers import FullyObsWrapper, ImgObsWrapper

SCALE = 10.0


def make_empty(**kwargs) -> gym.Env:
    """The environment, wrapped."""
    env = ImgObsWrapper(FullyObsWrapper(gym.make("MiniGrid-Empty-5x5-v0", **kwargs)))
    space = gym.spaces.Box(0.0, 255.0 / SCALE, env.observation_space.shape, np.float32)
    env = TransformObservation(env, lambda picture: np.float32(picture) / np.float32(SCALE), space)
    # Reward 1 - 0.9 t / 100 on reaching the goal after t steps; it cannot be reached in fewer than five.
    env.unwrapped.optimal_return = 1 - 0.9 * 5 / 100
    return env


gym.register("FullyObserved/Empty-5x5-v0", make_empty)
