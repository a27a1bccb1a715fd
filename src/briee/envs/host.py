"""Lazy alias of `briee.rollout.host`; lazy because environments may not import rollouts."""

from briee.lazy import lazy_names

__getattr__, __dir__ = lazy_names(__name__, {"HostSampler": "briee.rollout.host"})
