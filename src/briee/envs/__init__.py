"""Environments: the combination lock and its variants, and adapters for any Gymnasium environment.

Pure environments are functions of a state and a random key; `gym_shells` gives them Gymnasium's interface.
May import `numerics` and the top-level modules.
"""

from typing import TYPE_CHECKING

from briee.lazy import lazy_names

if TYPE_CHECKING:
    from briee.envs.adapters.encoding import Downsampled, ObservationEncoder, UnsupportedSpaceError
    from briee.envs.adapters.episodic import EnvironmentStepError, Episodic, EpisodicVector, episodic
    from briee.envs.adapters.rich import NoisyObservation, RichObservation, rich_observation
    from briee.envs.block import LatentModel, episode_start, episode_step
    from briee.envs.emission import EmissionChoice, VectorEmission, decodability
    from briee.envs.emission_images import DigitsEmission, ImageEmission, ShapesEmission
    from briee.envs.emission_kinds import ModesEmission, NetworkEmission, RingsEmission
    from briee.envs.exogenous import ExogenousEmission
    from briee.envs.finite_block import FiniteBlockMDP
    from briee.envs.gym_shells import PureEnv, PureVectorEnv
    from briee.envs.lock import CombinationLock, LockState
    from briee.envs.random_block import RandomBlockMDP
    from briee.envs.registry import ENVIRONMENTS, Description, describe, describe_all, make

__all__ = [
    "ENVIRONMENTS",
    "CombinationLock",
    "Description",
    "DigitsEmission",
    "Downsampled",
    "EmissionChoice",
    "EnvironmentStepError",
    "Episodic",
    "EpisodicVector",
    "ExogenousEmission",
    "FiniteBlockMDP",
    "ImageEmission",
    "LatentModel",
    "LockState",
    "ModesEmission",
    "NetworkEmission",
    "NoisyObservation",
    "ObservationEncoder",
    "PureEnv",
    "PureVectorEnv",
    "RandomBlockMDP",
    "RichObservation",
    "RingsEmission",
    "ShapesEmission",
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

_NAMES = {
    "adapters.encoding": ("Downsampled", "ObservationEncoder", "UnsupportedSpaceError"),
    "adapters.episodic": ("EnvironmentStepError", "Episodic", "EpisodicVector", "episodic"),
    "adapters.rich": ("NoisyObservation", "RichObservation", "rich_observation"),
    "block": ("LatentModel", "episode_start", "episode_step"),
    "emission": ("EmissionChoice", "VectorEmission", "decodability"),
    "emission_images": ("DigitsEmission", "ImageEmission", "ShapesEmission"),
    "emission_kinds": ("ModesEmission", "NetworkEmission", "RingsEmission"),
    "exogenous": ("ExogenousEmission",),
    "finite_block": ("FiniteBlockMDP",),
    "gym_shells": ("PureEnv", "PureVectorEnv"),
    "lock": ("CombinationLock", "LockState"),
    "random_block": ("RandomBlockMDP",),
    "registry": ("ENVIRONMENTS", "Description", "describe", "describe_all", "make"),
}
__getattr__, __dir__ = lazy_names(
    __name__, {name: f"briee.envs.{module}" for module, names in _NAMES.items() for name in names}
)
