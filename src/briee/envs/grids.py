"""Small grids as users write them: Gymnasium environments on the host, with noise on what is seen.

Importing this module registers `grids/Noisy-v0` and `grids/Image-v0`. Imports no JAX.
"""

from typing import Any

import gymnasium as gym
import numpy as np

MOVES = ((1, 0), (-1, 0), (0, 1), (0, -1))
"""Down, up, right, left."""


class Grid(gym.Env):
    """A square grid: from one corner to the other, with reward 1 on arrival, which ends the episode."""

    action_space = gym.spaces.Discrete(len(MOVES))

    def __init__(self, size: int):
        self.size, self.place = size, 0
        self.horizon = 3 * (size - 1)
        """Steps until the episode is cut; the shortest way takes two thirds of them."""
        self.optimal_return = 1.0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        super().reset(seed=seed)
        self.place = 0
        return self.seen(), {}

    def step(self, action):
        row, column = divmod(self.place, self.size)
        down, right = MOVES[int(action)]
        row, column = np.clip([row + down, column + right], 0, self.size - 1)
        self.place = int(row * self.size + column)
        arrived = self.place == self.size**2 - 1
        return self.seen(), float(arrived), arrived, False, {}

    def seen(self) -> np.ndarray:
        """The observation of the agent's place."""
        raise NotImplementedError


class NoisyGrid(Grid):
    """A 6 x 6 grid; each place is a fixed random vector, seen with normal noise.

    Args:
        size: places on a side.
        dimension: of the vectors, whose entries are standard normal.
        noise: standard deviation of the noise on each coordinate.
        instance_seed: draws the vectors; the seed of `reset` draws the noise.
    """

    def __init__(self, size: int = 6, dimension: int = 40, noise: float = 0.1, instance_seed: int = 0):
        super().__init__(size)
        self.noise = noise
        self.vectors = np.random.default_rng(instance_seed).standard_normal((size**2, dimension))
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (dimension,), np.float32)

    def seen(self) -> np.ndarray:
        own = self.vectors[self.place]
        return (own + self.noise * self.np_random.standard_normal(own.shape)).astype(np.float32)


class ImageGrid(Grid):
    """A 4 x 4 grid as an image of 20 x 20 pixels: a bright square on a grey ground, with noise.

    Args:
        size: places on a side.
        pixels: side of the square.
        noise: standard deviation of the noise on each pixel, in grey levels of 256.
    """

    def __init__(self, size: int = 4, pixels: int = 5, noise: float = 10.0):
        super().__init__(size)
        self.pixels, self.noise = pixels, noise
        self.observation_space = gym.spaces.Box(0, 255, (size * pixels, size * pixels, 1), np.uint8)

    def seen(self) -> np.ndarray:
        image = np.full((self.size, self.pixels) * 2, 60.0)
        row, column = divmod(self.place, self.size)
        image[row, :, column] = 200.0
        image = image.reshape(*self.observation_space.shape)  # type: ignore[misc]
        image += self.noise * self.np_random.standard_normal(image.shape)
        return image.clip(0, 255).astype(np.uint8)


for _name, _class in (("grids/Noisy-v0", NoisyGrid), ("grids/Image-v0", ImageGrid)):
    if _name not in gym.registry:
        gym.register(_name, entry_point=f"{__name__}:{_class.__name__}")
