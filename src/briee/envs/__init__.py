"""Environments: the combination lock and its kin, and wrappers for any other Gymnasium environment."""

from briee.gym_ids import register

from .describe import Description, describe, describe_all
from .emission import ImageEmission, VectorEmission, decodability
from .encoding import ObservationEncoder, UnsupportedSpaceError
from .entries import ENVIRONMENTS
from .episodic import EnvironmentStepError, Episodic, EpisodicVector, episodic
from .finite_block import FiniteBlockMDP
from .latent_model import LatentModel
from .lock import CombinationLock, LockState
from .random_block import RandomBlockMDP
from .registration import (
    PureEnv,
    PureVectorEnv,
    episode_start,
    episode_step,
    make,
)
from .rich import NoisyObservation, RichObservation, rich_observation

register()

__all__ = [
    "ENVIRONMENTS",
    "CombinationLock",
    "Description",
    "EnvironmentStepError",
    "Episodic",
    "EpisodicVector",
    "FiniteBlockMDP",
    "ImageEmission",
    "LatentModel",
    "LockState",
    "NoisyObservation",
    "ObservationEncoder",
    "PureEnv",
    "PureVectorEnv",
    "RandomBlockMDP",
    "RichObservation",
    "UnsupportedSpaceError",
    "VectorEmission",
    "decodability",
    "describe",
    "describe_all",
    "episode_start",
    "episode_step",
    "episodic",
    "make",
    "rich_observation",
]
