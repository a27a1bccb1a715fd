"""Environments: the combination lock and its kin, and wrappers for any other Gymnasium environment."""

from .emission import ImageEmission, VectorEmission, decodability
from .latent_model import LatentModel
from .lock import CombinationLock, LockState
from .random_block import RandomBlockMDP
from .registration import (
    ENVIRONMENTS,
    PureEnv,
    PureVectorEnv,
    episode_start,
    episode_step,
    make,
    register_all,
)

register_all()

__all__ = [
    "ENVIRONMENTS",
    "CombinationLock",
    "ImageEmission",
    "LatentModel",
    "LockState",
    "PureEnv",
    "PureVectorEnv",
    "RandomBlockMDP",
    "VectorEmission",
    "decodability",
    "episode_start",
    "episode_step",
    "make",
    "register_all",
]
