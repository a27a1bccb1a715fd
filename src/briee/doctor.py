"""Alias of `briee.diagnose.environment_verdict`."""

from briee.diagnose.environment_verdict import Finding, LevelFacts, examine, lines

__all__ = ["Finding", "LevelFacts", "examine", "lines"]
