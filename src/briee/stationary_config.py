"""Settings of the stationary variant. Imports no JAX."""

from dataclasses import dataclass

from briee.config import require
from briee.efficient_config import EfficientConfig, RefitConfig, StrataConfig


@dataclass(frozen=True)
class StationaryConfig(EfficientConfig):
    """The settings of the efficient preset, which it shares, and a discount."""

    discount: float = 0.9
    """gamma: what is k steps away counts gamma^k; 1 - 1/H by default."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.explore, ">= 2", "episodes")  # half of them may be greedy
        if not 0 <= self.discount < 1:
            raise ValueError(f"discount must be in [0, 1), got {self.discount}")

    @classmethod
    def efficient(cls, horizon: int, dense: bool = False) -> "StationaryConfig":
        """One store for the data of all levels, and a discount whose horizon is about the episode's."""
        strata, refit = StrataConfig(rows=3072, fit_rows=1024), RefitConfig(growth=6.0)
        return cls(strata=strata, refit=refit, discount=1 - 1 / max(horizon, 2))
