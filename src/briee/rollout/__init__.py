"""Rollouts: samplers that run episodes of an environment with a policy and return them as arrays.

`scan` compiles pure environments, `host` steps any other; `samplers` picks one by name.
May import `envs`, `numerics` and the top-level modules.
"""

from typing import TYPE_CHECKING

from briee.lazy import lazy_names

if TYPE_CHECKING:
    from briee.rollout.host import HostSampler
    from briee.rollout.scan import ScanSampler

__all__ = ["HostSampler", "ScanSampler"]

_HOMES = {"HostSampler": "briee.rollout.host", "ScanSampler": "briee.rollout.scan"}
__getattr__, __dir__ = lazy_names(__name__, _HOMES)
