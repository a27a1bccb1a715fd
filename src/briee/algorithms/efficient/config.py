"""Settings of the efficient algorithm and of its stationary variant. Imports no JAX."""

from dataclasses import dataclass, field
from operator import attrgetter
from typing import ClassVar, Literal

from briee.configuration import AlgorithmConfig, EvaluationConfig, require, require_choice


@dataclass(frozen=True)
class StrataConfig:
    """The transitions that are kept."""

    rows: int = 768
    """Transitions kept per level; in a full level a new row replaces one of the largest stratum."""
    fit_rows: int = 512
    """Transitions of a level that a fit sees, balanced over the strata."""
    stratified: bool = True
    """Whether each (latent state, action) pair is a stratum; otherwise a level is one stratum."""

    def __post_init__(self) -> None:
        require(self, ">= 1", "rows", "fit_rows")


@dataclass(frozen=True)
class FitConfig:
    """The objective of a level's decoder and its optimiser."""

    directions: int = 4
    """T, the directions of the next observation that latent state and action must predict."""
    forward: float = 1.0
    """Weight of the mean loss over those T directions and the reward."""
    ridge: float = 1.0
    """lambda of every eliminated regression, on sums over the rows."""
    compact: float = 0.5
    """gamma, the weight of reconstructing the observation itself; every label counts alike."""
    decay: float = 0.2
    """Weight decay, which penalises variance of the scores within a latent state."""
    reward: float = 0.5
    """Scale of the standardised reward as a target; a direction above the noise has mean square about 1."""
    evaluations: int = 40
    """Maximum number of evaluations of objective and gradient in one run of L-BFGS."""
    radius: float = 5.0
    """An observation is novel if its distance to every centre exceeds the usual one by this many (robust)
    standard deviations."""
    apart: float = 4.0
    """Clusters closer than this many standard deviations count as one: parts of a decoder, and rows of one
    label from which the noise is estimated."""

    def __post_init__(self) -> None:
        require(self, ">= 1", "directions", "evaluations")
        require(self, "> 0", "ridge", "radius")
        require(self, ">= 0", "forward", "compact", "decay", "reward", "apart")


@dataclass(frozen=True)
class RefitConfig:
    """Which levels are fitted again after new data."""

    min_rows: int = 40
    """Episodes before the first fit; each adds a row to every level."""
    growth: float = 1.0
    """A level is refitted once its strata and those of the level before have grown by this much. A row that
    joins a stratum of n adds 1 / (n + 1), weighted by the chance of a discovery from there."""
    max_levels: int = 8
    """Maximum number of levels fitted in one update: those that grew most."""

    def __post_init__(self) -> None:
        require(self, ">= 1", "min_rows", "max_levels")
        require(self, ">= 0", "growth")


@dataclass(frozen=True)
class ExploreConfig:
    """Where data are collected."""

    rule: Literal["discovery", "tries", "bonus"] = "discovery"
    """Value of trying a cell again: the estimated probability of a discovery; 1 for the first `known_after`
    tries and 0 afterwards; or 1 / sqrt(n + 1), the bonus of one-hot features (Alg. 1, l. 6)."""
    known_after: int = 2
    """Tries after which the rule `tries` treats a cell as known."""
    episodes: int = 20
    """Episodes per update."""
    rounds: int = 4
    """Rounds of equal size into which the episodes are split; each plans with the counts of those before."""
    tolerance: float = 0.8
    """Draw uniformly among actions whose discovery probability is at least this share of the best."""
    settled: float = 0.05
    """If an episode makes a discovery with a lower probability than this, every second round is greedy."""
    max_tries: int = 32
    """Cells tried more often than this have the discovery probability of this many tries."""
    prior_cells: float = 2.0
    """Number of imaginary cells, with discovery probability 1 / (n + 1), in the estimated probability."""

    def __post_init__(self) -> None:
        require(self, ">= 1", "episodes", "rounds", "max_tries", "known_after")
        require(self, ">= 0", "tolerance", "settled", "prior_cells")
        require(self, "<= 1", "tolerance")
        require_choice(self, rule=("discovery", "tries", "bonus"))


@dataclass(frozen=True)
class EfficientConfig(AlgorithmConfig):
    """Settings of the efficient algorithm."""

    free_fields: ClassVar[tuple[str, ...]] = ("workers",)
    num_latents: int = 3
    """K, the number of latent states that a level's decoder can tell apart."""
    strata: StrataConfig = field(default_factory=StrataConfig)
    fit: FitConfig = field(default_factory=FitConfig)
    refit: RefitConfig = field(default_factory=RefitConfig)
    explore: ExploreConfig = field(default_factory=ExploreConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    workers: int = 0
    """Levels fitted in parallel; 0 means one per core. Does not change any result."""

    def __post_init__(self) -> None:
        require(self, ">= 1", "num_latents")
        require(self, ">= 0", "workers")
        self.check_rounds()

    def check_rounds(self) -> None:
        """All rounds must have the same number of episodes."""
        episodes, rounds = self.explore.episodes, self.explore.rounds
        if episodes % rounds:
            raise ValueError(f"episodes must be a multiple of rounds ({rounds}), got {episodes}")

    @classmethod
    def efficient(cls, horizon: int, dense: bool = False) -> "EfficientConfig":
        """The same settings for every horizon and reward."""
        return cls()


@dataclass(frozen=True)
class StationaryConfig(EfficientConfig):
    """Settings of the stationary variant: those of the efficient algorithm and a discount."""

    discount: float = 0.9
    """gamma: a reward k steps away counts gamma^k; the preset sets 1 - 1/H."""
    unused: ClassVar[tuple[str, ...]] = ("explore.rounds", "refit.max_levels")
    """Settings without effect here: there is one decoder, and episodes come in two halves."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in self.unused:
            value, usual = attrgetter(name)(self), attrgetter(name)(EfficientConfig())
            if value != usual:
                raise ValueError(f"{name} has no effect on the stationary variant, got {value}: leave it out")
        if not 0 <= self.discount < 1:
            raise ValueError(f"discount must be in [0, 1), got {self.discount}")

    def check_rounds(self) -> None:
        """The second half of the episodes may be greedy."""
        if self.explore.episodes % 2:
            raise ValueError(f"episodes must be even for the stationary variant, got {self.explore.episodes}")

    @classmethod
    def efficient(cls, horizon: int, dense: bool = False) -> "StationaryConfig":
        """One store for the data of all levels, and a discount with an effective horizon of about H."""
        strata, refit = StrataConfig(rows=3072, fit_rows=1024), RefitConfig(growth=6.0)
        return cls(strata=strata, refit=refit, discount=1 - 1 / max(horizon, 2))
