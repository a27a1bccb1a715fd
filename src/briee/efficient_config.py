"""Settings of the sample-efficient sibling of Algorithm 1. Imports no JAX."""

from dataclasses import dataclass, field
from typing import Literal

from briee.config import EvaluationConfig, require, require_choice


@dataclass(frozen=True)
class StrataConfig:
    """The data that is kept."""

    rows: int = 768
    """Transitions kept per level; a full level takes a new one at the cost of its largest stratum."""
    fit_rows: int = 512
    """Transitions of a level that a fit sees, as many from each stratum as there are."""
    stratified: bool = True
    """Whether (latent state, action) pairs have strata of their own; else all rows of a level are alike."""

    def __post_init__(self) -> None:
        require(self, ">= 1", "rows", "fit_rows")


@dataclass(frozen=True)
class FitConfig:
    """The objective of a level's decoder, and how it is minimised."""

    directions: int = 4
    """T, directions of the next observation that the latent state and the action have to predict."""
    discriminators: Literal["predictable", "variance"] = "predictable"
    """Directions that stand out and can be predicted, or plain principal components."""
    forward: float = 1.0
    """Weight of predicting those directions and the reward."""
    ridge: float = 1.0
    """lambda of every eliminated regression, on sums over the rows."""
    backward: float = 0.05
    """beta, the weight of telling the previous (latent state, action) from the latent state."""
    compact: float = 0.1
    """gamma, the weight of reconstructing the observation itself within the decoder's subspace."""
    decay: float = 0.2
    """Weight decay: the price of variance of the scores within a latent state."""
    reward: float = 0.5
    """Weight of the reward as a further discriminator, against 1 for all directions together."""
    few: float = 5.0
    """Groups with fewer rows than this count as if they had that many when indicators are whitened."""
    evaluations: int = 40
    """Evaluations of objective and gradient in one run of L-BFGS, at most."""
    radius: float = 5.0
    """An observation this many (robust) standard deviations further from every centre than usual is novel."""

    def __post_init__(self) -> None:
        require(self, ">= 1", "directions", "evaluations")
        require(self, "> 0", "ridge", "few", "radius")
        require(self, ">= 0", "forward", "backward", "compact", "decay", "reward")
        require_choice(self, discriminators=("predictable", "variance"))


@dataclass(frozen=True)
class RefitConfig:
    """Which levels are fitted again after new data."""

    min_rows: int = 40
    """Rows that a level needs for its first fit."""
    growth: float = 6.0
    """A level is due when its strata and those before it have grown by this factor in logarithm, summed."""
    max_levels: int = 8
    """Levels fitted in one update, at most: those that grew most."""
    doubt: float = 0.25
    """Below this probability of a discovery the threshold `growth` falls to 0: an old decoder may be what
    hides the rest."""

    def __post_init__(self) -> None:
        require(self, ">= 1", "min_rows", "max_levels")
        require(self, ">= 0", "growth", "doubt")


@dataclass(frozen=True)
class ExploreConfig:
    """Where data are collected."""

    rule: Literal["discovery", "tries", "bonus"] = "discovery"
    """Value of trying a cell again: the estimated probability of a discovery; 1 until it was tried
    `known_after` times, then 0; or 1 / sqrt(n + 1), the bonus of one-hot features (Alg. 1, l. 6)."""
    known_after: int = 2
    """Tries after which the rule `tries` takes a cell for known."""
    episodes: int = 20
    """Episodes between two plans."""
    tolerance: float = 0.8
    """Actions whose probability of a discovery is at least this share of the best are chosen alike."""
    settled: float = 0.05
    """Once an episode discovers something with less than this probability, half of all episodes follow the
    greedy policy."""
    max_tries: int = 32
    """Tries after which the probability of a discovery is not distinguished any further."""
    prior_cells: float = 2.0
    """Imaginary cells behind the estimated probability of a discovery; they discover with 1 / (n + 1)."""

    def __post_init__(self) -> None:
        require(self, ">= 2", "episodes")
        require(self, ">= 1", "max_tries", "known_after")
        require(self, ">= 0", "tolerance", "settled", "prior_cells")
        require_choice(self, rule=("discovery", "tries", "bonus"))


@dataclass(frozen=True)
class EfficientConfig:
    """The sample-efficient preset."""

    num_latents: int = 3
    """K, the number of latent states that a level's decoder can tell apart."""
    strata: StrataConfig = field(default_factory=StrataConfig)
    fit: FitConfig = field(default_factory=FitConfig)
    refit: RefitConfig = field(default_factory=RefitConfig)
    explore: ExploreConfig = field(default_factory=ExploreConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    workers: int = 0
    """Levels fitted at the same time; 0 means one per core. Does not change any result."""

    def __post_init__(self) -> None:
        require(self, ">= 1", "num_latents")
        require(self, ">= 0", "workers")

    @classmethod
    def efficient(cls, horizon: int, dense: bool = False) -> "EfficientConfig":
        """The same settings for every horizon and reward."""
        return cls()
