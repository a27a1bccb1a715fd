"""Alias of `briee.diagnose.doctor`."""

from briee.diagnose.doctor import Finding, LevelFacts, examine, lines

__all__ = ["Finding", "LevelFacts", "examine", "lines"]
