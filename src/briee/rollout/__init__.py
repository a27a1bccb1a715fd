"""Rollouts: samplers that run episodes of an environment with a policy and return them as arrays.

`samplers` compiles pure environments and picks a sampler by name; `host` steps any other environment.
May import `envs`, `numerics` and the top-level modules.
"""

from typing import TYPE_CHECKING

from briee.lazy import lazy_names

if TYPE_CHECKING:
    from briee.rollout.host import HostSampler
    from briee.rollout.samplers import ScanSampler

__all__ = ["HostSampler", "ScanSampler"]

_HOMES = {"HostSampler": "briee.rollout.host", "ScanSampler": "briee.rollout.samplers"}
__getattr__, __dir__ = lazy_names(__name__, _HOMES)
