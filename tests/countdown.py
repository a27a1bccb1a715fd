"""A small environment that can misbehave; without JAX, so that worker processes start quickly."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class Countdown(gym.Env):
    """Observes how many steps it took; ends after `length`; can misbehave at a step."""

    def __init__(self, length=3, space=None, actions=None, fault=None, fault_step=2, truncate=False):
        self.observation_space = space or spaces.Box(0, 100, (2,), np.float32)
        self.action_space = actions or spaces.Discrete(2)
        self.length, self.fault, self.fault_step, self.truncate = length, fault, fault_step, truncate
        self.count = 0

    def _observe(self):
        if isinstance(self.observation_space, spaces.Box) and self.observation_space.shape == (2,):
            return np.full(2, self.count + 1, np.float32)
        return self.observation_space.sample()

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return self._observe(), {}

    def step(self, action):
        self.count += 1
        observation, reward = self._observe(), 1.0
        if self.count == self.fault_step:
            if self.fault == "raise":
                raise OSError("the sensor is unplugged")
            if self.fault == "nan":
                observation = np.full(2, np.nan, np.float32)
            if self.fault == "shape":
                observation = np.zeros(3, np.float32)
            if self.fault == "reward":
                reward = float("inf")
        over = self.count >= self.length
        return observation, reward, over and not self.truncate, over and self.truncate, {}
