"""BRIEE: provable exploration with rich observations in block Markov decision processes."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("briee")
except PackageNotFoundError:  # a source tree on the path, not installed
    __version__ = "0+unknown"

__all__ = ["__version__"]
