"""Encode observations of any Gymnasium space as float32 arrays of a fixed shape."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, cast

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from briee.configuration import whole_number

MOST_ROWS = 1024
"""Discrete observations up to this many are looked up in a table."""


class UnsupportedSpaceError(ValueError):
    """An unsupported observation or action space; the message says what is supported."""


class ObservationEncoder:
    """Encodes observations of `space`, one or a batch, as float32 arrays, and defines the absorbing one.

    A Box of images (three axes, or two of uint8) keeps its shape; uint8 is divided by `image_scale`.
    Everything else becomes one vector: other boxes flattened, Discrete and MultiDiscrete one-hot, Dict
    and Tuple part by part. `keys` selects the parts of a Dict; by default all but text. A vector has an
    additional last coordinate, 0 for an observation and 1 (with zeros elsewhere) for the absorbing state.
    The absorbing image is black.
    """

    def __init__(self, space: gym.Space, keys: Sequence[str] | str | None = None, image_scale: float = 255.0):
        if not image_scale > 0:
            raise ValueError(f"image_scale must be > 0, got {image_scale}")
        self.image_scale = float(image_scale)
        self.source = space
        self.parts = _parts(space, (keys,) if isinstance(keys, str) else keys)
        self.may_be_infinite = any(part.dtype is None or part.dtype.kind == "f" for _, part in self.parts)
        self.is_image = len(self.parts) == 1 and _is_image(self.parts[0][1])
        low, high = zip(*(self._bounds(part) for _, part in self.parts), strict=True)
        if self.is_image:
            lowest, highest = low[0], high[0]
        else:
            lowest = np.concatenate([*(x.ravel() for x in low), [0.0]])
            highest = np.concatenate([*(x.ravel() for x in high), [1.0]])
        self.space = spaces.Box(
            np.minimum(lowest, 0).astype(np.float32),
            np.maximum(highest, 0).astype(np.float32),
            dtype=np.float32,
        )
        self.absorbing = np.zeros(self.space.shape, np.float32)
        if not self.is_image:
            self.absorbing[-1] = 1.0
        self._rows: np.ndarray | None = None
        """The encoding of each state of a Discrete space."""
        if isinstance(space, spaces.Discrete) and space.start == 0 and space.n <= MOST_ROWS:
            self._rows = np.eye(int(space.n), self.space.shape[0], dtype=np.float32)

    def __call__(self, observation: Any, batch: int | None = None) -> np.ndarray:
        """float32 [*shape], or [batch, *shape] for the batched observation of a vector environment."""
        n = 1 if batch is None else batch
        if self._rows is not None and isinstance(observation, np.ndarray) and observation.shape == (batch,):
            try:
                if not (observation < 0).any():
                    return self._rows[observation]
            except IndexError:
                pass  # the error below names the values
        encoded = []
        for path, part in self.parts:
            value = observation
            for step in path:
                value = value[step]
            value = np.asarray(value)
            shape = part.shape if part.shape is not None else ()
            expected = shape if batch is None else (n, *shape)
            if value.shape != expected:
                where = "".join(f"[{step!r}]" for step in path)
                raise ValueError(
                    f"observation{where} has shape {value.shape}, but the space {part} promises {expected}"
                )
            encoded.append(self._encode(part, value.reshape(n, *shape)))
        if self.is_image:
            result = encoded[0]
        else:
            result = np.zeros((n, self.space.shape[0]), np.float32)
            end = 0
            for x in encoded:
                start, end = end, end + x.size // n
                result[:, start:end] = x.reshape(n, -1)
        if self.may_be_infinite and not np.isfinite(result).all():
            kind = "NaN" if np.isnan(result).any() else "infinite"
            index = np.flatnonzero(~np.isfinite(result.reshape(n, -1)).all(axis=1))
            raise ValueError(
                f"observation has {kind} entries" + (f" in copies {index.tolist()}" if batch else "")
            )
        return result[0] if batch is None else result

    def _encode(self, part: gym.Space, value: np.ndarray) -> np.ndarray:
        if isinstance(part, spaces.Discrete):
            return _one_hot(value - part.start, int(part.n))
        if isinstance(part, spaces.MultiDiscrete):
            flat = value.reshape(len(value), -1) - np.asarray(part.start).ravel()
            columns = [_one_hot(flat[:, i], int(n)) for i, n in enumerate(part.nvec.ravel())]
            return np.concatenate(columns, axis=1)
        value = value.astype(np.float32)
        scaled = part.dtype == np.uint8 and isinstance(part, spaces.Box)
        return value / np.float32(self.image_scale) if scaled else value

    def _bounds(self, part: gym.Space) -> tuple[np.ndarray, np.ndarray]:
        if isinstance(part, spaces.Box):
            scale = self.image_scale if part.dtype == np.uint8 else 1.0
            return part.low.astype(np.float64) / scale, part.high.astype(np.float64) / scale
        if isinstance(part, spaces.MultiBinary):
            size = int(np.prod(part.shape))
        elif isinstance(part, spaces.MultiDiscrete):
            size = int(part.nvec.sum())
        else:
            assert isinstance(part, spaces.Discrete)
            size = int(part.n)
        return np.zeros(size), np.ones(size)


class Downsampled(gym.ObservationWrapper):
    """Images averaged over squares of `side` pixels, uint8 as numbers in [0, 1]; in a Dict, all its images.

    An image has its channels last, or first if that axis alone has length 1, 3 or 4.
    """

    def __init__(self, env: gym.Env, side: int):
        super().__init__(env)
        self.side, own = whole_number("downsample", side), env.observation_space
        parts = own.spaces if isinstance(own, spaces.Dict) else {"": own}
        self.images = [key for key, part in parts.items() if _is_image(part)]
        if not self.images:
            raise UnsupportedSpaceError(f"downsample is for images, not for observations of {own}")
        smaller = {key: self._smaller(cast(spaces.Box, parts[key])) for key in self.images}
        is_dict = isinstance(own, spaces.Dict)
        self.observation_space = spaces.Dict({**parts, **smaller}) if is_dict else smaller[""]

    def observation(self, observation: Any) -> Any:
        """The observation with smaller images."""
        if isinstance(self.observation_space, spaces.Dict):
            return {**observation, **{key: self._average(observation[key]) for key in self.images}}
        return self._average(observation)

    def _smaller(self, space: spaces.Box) -> spaces.Box:
        low, high = (self._average(bound.astype(space.dtype)) for bound in (space.low, space.high))
        return spaces.Box(low, high, dtype=np.float32)

    def _average(self, image: Any) -> np.ndarray:
        image = np.asarray(image)
        mean = (image[..., None] if image.ndim == 2 else image).astype(np.float32)
        colours = (1, 3, 4)
        rows = 1 if mean.shape[0] in colours and mean.shape[-1] not in colours else 0
        for axis in (rows, rows + 1):
            starts = np.arange(0, mean.shape[axis], self.side)
            size = np.diff(starts, append=mean.shape[axis]).astype(np.float32)
            mean = np.add.reduceat(mean, starts, axis) / np.expand_dims(
                size, [i for i in range(3) if i != axis]
            )
        return mean / np.float32(255) if image.dtype == np.uint8 else mean


def discrete_actions(space: gym.Space, name: str) -> int:
    """The number of actions; `UnsupportedSpaceError` unless the space is `Discrete` and starts at 0."""
    if isinstance(space, spaces.Discrete):
        if space.start != 0:
            raise UnsupportedSpaceError(f"actions of {name} must count from 0, got {space}")
        return int(space.n)
    kind = "continuous" if isinstance(space, spaces.Box) else type(space).__name__
    raise UnsupportedSpaceError(
        f"{name} has {kind} actions, {space}; supported are Discrete action spaces: "
        "enumerate or discretise its actions in a wrapper first"
    )


def check_agreement(env: gym.vector.VectorEnv, name: str) -> None:
    """Raise unless all sub-environments of a vector have the same spaces."""
    if not isinstance(env.unwrapped, (gym.vector.SyncVectorEnv, gym.vector.AsyncVectorEnv)):
        return
    for attribute in ("observation_space", "action_space"):
        found = env.unwrapped.get_attr(attribute)
        for index, space in enumerate(found):
            if space != found[0]:
                raise UnsupportedSpaceError(
                    f"environments 0 and {index} of the vector {name} disagree: "
                    f"their {attribute.replace('_', ' ')}s are {found[0]} and {space}"
                )


def _one_hot(value: np.ndarray, n: int) -> np.ndarray:
    if ((value < 0) | (value >= n)).any():
        raise ValueError(f"observation {value.tolist()} lies outside Discrete({n})")
    out = np.zeros((len(value), n), np.float32)
    out[np.arange(len(value)), value.astype(int)] = 1.0
    return out


def _is_image(space: gym.Space) -> bool:
    if not isinstance(space, spaces.Box):
        return False
    return len(space.shape) == 3 or (len(space.shape) == 2 and space.dtype == np.uint8)


def _parts(space: gym.Space, keys: Sequence[str] | None, path: tuple = ()) -> list[tuple[tuple, gym.Space]]:
    """The encoded leaves of a space, each with the path to its value."""
    if keys is not None:
        if not isinstance(space, spaces.Dict):
            raise UnsupportedSpaceError(f"keys {tuple(keys)} need a Dict observation space, got {space}")
        missing = [key for key in keys if key not in space.spaces]
        if missing or not keys:
            raise UnsupportedSpaceError(f"keys must be some of {list(space.spaces)}, got {list(keys)}")
        chosen = [_parts(space[key], None, (key,)) for key in keys]
        return [part for parts in chosen for part in parts]
    if isinstance(space, (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)):
        return [(path, space)]
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        inner = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
        found: list[tuple[tuple, gym.Space]] = []
        for key, part in inner:
            if _is_text(part):
                warnings.warn(
                    f"observation {key!r} is text and is left out; choose keys=... to say so yourself",
                    stacklevel=4,
                )
            else:
                found += _parts(part, None, (*path, key))
        if found:
            return found
    hint = ": text cannot be encoded, choose other keys" if _is_text(space) else ""
    raise UnsupportedSpaceError(
        f"observation space {space} is not supported{hint}; supported are Box, Discrete, MultiDiscrete, "
        "MultiBinary, and Dict or Tuple of these"
    )


def _is_text(space: gym.Space) -> bool:
    # MiniGrid's mission space is not a spaces.Text, but its values are strings.
    return isinstance(space, spaces.Text) or (space.dtype is not None and space.dtype.kind == "U")
