"""BRIEE: provable exploration with rich observations in block Markov decision processes.

These are the public names. Each is imported when it is first used, so that the command line starts at once.
Importing the package registers the environments' ids with Gymnasium.
"""

from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from briee.envs.registry import register
from briee.lazy import lazy_names

try:
    __version__ = version("briee")
except PackageNotFoundError:  # a source tree on the path, not installed
    __version__ = "0+unknown"

register()

if TYPE_CHECKING:
    from briee import doctor as doctor
    from briee.agent.agent import BRIEE, Agent, NotLearnedError
    from briee.agent.files import load
    from briee.algorithms.paper.config import BrieeConfig
    from briee.algorithms.registry import preset
    from briee.errors import RunError
    from briee.rollout.samplers import Evaluation
    from briee.training.checkpoint import CheckpointError
    from briee.training.loop import DivergedError
    from briee.training.session import run
    from briee.training.spec import RunSpec, build

__all__ = [
    "BRIEE",
    "Agent",
    "load",
    "Evaluation",
    "NotLearnedError",
    "BrieeConfig",
    "preset",
    "RunSpec",
    "build",
    "run",
    "RunError",
    "CheckpointError",
    "DivergedError",
    "doctor",
    "__version__",
]

__getattr__, _ = lazy_names(
    __name__,
    {
        "BRIEE": "briee.agent.agent",
        "Agent": "briee.agent.agent",
        "load": "briee.agent.files",
        "Evaluation": "briee.rollout.samplers",
        "NotLearnedError": "briee.agent.agent",
        "BrieeConfig": "briee.algorithms.paper.config",
        "preset": "briee.algorithms.registry",
        "RunSpec": "briee.training.spec",
        "build": "briee.training.spec",
        "run": "briee.training.session",
        "RunError": "briee.errors",
        "CheckpointError": "briee.training.checkpoint",
        "DivergedError": "briee.training.loop",
        "doctor": "briee.doctor",
    },
)


def __dir__() -> list[str]:
    return __all__
