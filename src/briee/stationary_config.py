"""Settings of the stationary variant. Imports no JAX."""

from dataclasses import dataclass
from operator import attrgetter
from typing import ClassVar

from briee.efficient_config import EfficientConfig, RefitConfig, StrataConfig


@dataclass(frozen=True)
class StationaryConfig(EfficientConfig):
    """The settings of the efficient preset, which it shares, and a discount."""

    discount: float = 0.9
    """gamma: what is k steps away counts gamma^k; 1 - 1/H by default."""
    unused: ClassVar[tuple[str, ...]] = ("explore.rounds", "refit.max_levels")
    """Settings of the efficient preset that mean nothing for a single decoder and two halves of episodes.
    `workers` means nothing either, but changes no number, so any value will do."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in self.unused:
            value, usual = attrgetter(name)(self), attrgetter(name)(EfficientConfig())
            if value != usual:
                raise ValueError(f"{name} has no effect on the stationary variant, got {value}: leave it out")
        if not 0 <= self.discount < 1:
            raise ValueError(f"discount must be in [0, 1), got {self.discount}")

    def check_rounds(self) -> None:
        """Half of the episodes may be greedy."""
        if self.explore.episodes % 2:
            raise ValueError(f"episodes must be even for the stationary variant, got {self.explore.episodes}")

    @classmethod
    def efficient(cls, horizon: int, dense: bool = False) -> "StationaryConfig":
        """One store for the data of all levels, and a discount whose horizon is about the episode's."""
        strata, refit = StrataConfig(rows=3072, fit_rows=1024), RefitConfig(growth=6.0)
        return cls(strata=strata, refit=refit, discount=1 - 1 / max(horizon, 2))
