"""BRIEE: provable exploration with rich observations in block Markov decision processes.

The public names. Each is imported when it is first used, so that the command line starts at once; importing
the package itself registers the environments' ids with Gymnasium.
"""

import importlib
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from briee.gym_ids import register

try:
    __version__ = version("briee")
except PackageNotFoundError:  # a source tree on the path, not installed
    __version__ = "0+unknown"

register()

if TYPE_CHECKING:
    from briee import doctor
    from briee.acting import Evaluation
    from briee.agent import BRIEE, Agent, NotLearnedError
    from briee.algorithms import build, preset
    from briee.checkpoint import CheckpointError
    from briee.config import BrieeConfig
    from briee.rundir import RunError, RunSpec
    from briee.runs import run
    from briee.saved import load
    from briee.training import DivergedError

_HOMES = {
    "BRIEE": "briee.agent",
    "Agent": "briee.agent",
    "load": "briee.saved",
    "Evaluation": "briee.acting",
    "NotLearnedError": "briee.agent",
    "BrieeConfig": "briee.config",
    "preset": "briee.algorithms",
    "RunSpec": "briee.rundir",
    "build": "briee.algorithms",
    "run": "briee.runs",
    "RunError": "briee.rundir",
    "CheckpointError": "briee.checkpoint",
    "DivergedError": "briee.training",
}
_MODULES = ("doctor",)

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


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"briee.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'briee' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
