"""Rich observations of environments with Discrete ones, which turn them into block MDPs."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, cast

import gymnasium as gym
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from briee.envs.adapters.third_party import environment_name
from briee.envs.emission import (
    NORMAL_BOUND,
    VectorEmission,
    decodability,
    require_least,
)
from briee.envs.emission_images import ImageEmission
from briee.envs.registry import check_values
from briee.errors import suggestion

EMISSIONS = ("hadamard", "random", "image")

Emission = VectorEmission | ImageEmission


class RichObservation(gym.Wrapper, gym.utils.RecordConstructorArgs):
    """Replaces the integer observation by a rich one and keeps the integer in `info["latent"]`.

    Args:
        env: an environment with a `Discrete` observation space (FrozenLake, Taxi, a table of your own).
        emission: `hadamard` or `random`: a rotated one-hot vector plus noise, of dimension 2^⌈log₂ n⌉;
            `image`: one of several small images per state, plus noise.
        noise: standard deviation of the noise on each coordinate or pixel.
        image_size, templates: side of the images, number of images per state.
        instance_seed: draws the rotation and the images; the seed of `reset` draws the noise.
    """

    def __init__(
        self,
        env: gym.Env,
        emission: str = "hadamard",
        *,
        noise: float = 0.1,
        image_size: int = 28,
        templates: int = 4,
        instance_seed: int = 0,
    ):
        gym.utils.RecordConstructorArgs.__init__(
            self,
            emission=emission,
            noise=noise,
            image_size=image_size,
            templates=templates,
            instance_seed=instance_seed,
        )
        gym.Wrapper.__init__(self, env)
        space = env.observation_space
        if not isinstance(space, spaces.Discrete):
            found = f"{environment_name(env)} has a {type(space).__name__}"
            raise ValueError(f"rich observations need a Discrete observation space, {found}")
        if emission not in EMISSIONS:
            raise ValueError(f"emission must be one of {', '.join(EMISSIONS)}, got {emission!r}")
        self.num_latents = int(space.n)
        self._first = int(space.start)
        self.emission: Emission
        if emission == "image":
            self.emission = ImageEmission(
                self.num_latents, 0, noise=noise, size=image_size, templates=templates, seed=instance_seed
            )
        else:
            self.emission = VectorEmission(
                self.num_latents, 0, noise=noise, rotation=emission, seed=instance_seed
            )
        low, high = self.emission.bounds
        self.observation_space = spaces.Box(low, high, shape=self.emission.shape, dtype=np.float32)
        self._draw = host_emission(self.emission)
        self._noise_rng = np.random.default_rng()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        """Reset the environment; a seed also restarts the noise."""
        if seed is not None:
            self._noise_rng = np.random.default_rng([seed, 4])
        observation, info = self.env.reset(seed=seed, options=options)
        return self._emit(observation, info)

    def step(self, action):
        """Step the environment and emit its new state."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        rich, info = self._emit(observation, info)
        return rich, reward, terminated, truncated, info

    def decodability(self, samples: int = 50) -> float:
        """The fraction of observations whose state can be recovered; 1 in a block MDP."""
        return decodability(self.emission, samples=samples)

    def ground_truth_features(self, observation: np.ndarray) -> np.ndarray:
        """One-hot vector f32[num_latents] of the state behind an observation."""
        latent = int(self.emission.decode(jnp.int32(0), jnp.asarray(observation)))
        return np.eye(self.num_latents, dtype=np.float32)[latent]

    def _emit(self, observation: Any, info: dict[str, Any]):
        latent = int(observation) - self._first
        return self._draw(latent, self._noise_rng), info | {"latent": latent}


class NoisyObservation(gym.ObservationWrapper, gym.utils.RecordConstructorArgs):
    """Adds normal noise to every coordinate of array observations; the seed of `reset` draws it.

    Args:
        env: an environment with a `Box` observation space of real numbers.
        noise: standard deviation.
    """

    def __init__(self, env: gym.Env, *, noise: float = 0.1):
        gym.utils.RecordConstructorArgs.__init__(self, noise=noise)
        gym.ObservationWrapper.__init__(self, env)
        space = env.observation_space
        if not isinstance(space, spaces.Box) or space.dtype.kind != "f":
            found = f"{environment_name(env)} has a {type(space).__name__} of {space.dtype}"
            raise ValueError(f"noise needs a Box observation space of real numbers, {found}")
        require_least(0, noise=noise)
        self.noise = np.float32(noise)
        reach = self.noise * NORMAL_BOUND
        self.observation_space = spaces.Box(space.low - reach, space.high + reach, dtype=np.float32)
        self._rng = np.random.default_rng()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        """Reset the environment; a seed also restarts the noise."""
        if seed is not None:
            self._rng = np.random.default_rng([seed, 5])
        return super().reset(seed=seed, options=options)

    def observation(self, observation: np.ndarray) -> np.ndarray:
        """The observation with noise."""
        noise = np.clip(self._rng.standard_normal(observation.shape, np.float32), -NORMAL_BOUND, NORMAL_BOUND)
        return (observation + self.noise * noise).astype(np.float32)


def rich_observation(env: gym.Env, arguments: Mapping[str, Any]) -> gym.Env:
    """`RichObservation(env, **arguments)`, or `NoisyObservation` if the emission is `noise`."""
    noisy = arguments.get("emission") == "noise"
    wrapper: Any = NoisyObservation if noisy else RichObservation
    given = {name: value for name, value in arguments.items() if not noisy or name == "noise"}
    known = list(inspect.signature(RichObservation).parameters)[1:]
    for name in arguments:
        if name not in known:
            raise ValueError(f"rich observations have no argument {name!r}{suggestion(name, known)}")
    check_values(RichObservation, arguments)
    return wrapper(env, **given)


def host_emission(emission: Emission):
    """`draw(latent, rng) -> observation` in NumPy: the emission's distribution without a device call."""
    if isinstance(emission, ImageEmission):
        images = np.asarray(emission.templates[0])[..., None]

        def draw_image(latent: int, rng: np.random.Generator) -> np.ndarray:
            image = images[latent, rng.integers(images.shape[1])]
            noise = emission.noise * rng.standard_normal(image.shape, np.float32)
            return np.clip(image + noise, 0.0, 1.0).astype(np.float32)

        return draw_image
    basis, std = np.asarray(emission.basis[0]), np.asarray(emission.std)
    scale = (np.sqrt(len(std)) * std).astype(np.float32)  # the noise is isotropic: see VectorEmission

    def draw_vector(latent: int, rng: np.random.Generator) -> np.ndarray:
        noise = np.clip(rng.standard_normal(len(std), np.float32), -NORMAL_BOUND, NORMAL_BOUND)
        return cast(np.ndarray, basis[latent] + scale * noise)

    return draw_vector
