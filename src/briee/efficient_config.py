"""Settings of the sample-efficient sibling of Algorithm 1. Imports no JAX."""

from dataclasses import dataclass, field
from typing import ClassVar, Literal

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
    forward: float = 1.0
    """Weight of predicting those directions and the reward: T + 1 targets, of which the mean counts."""
    ridge: float = 1.0
    """lambda of every eliminated regression, on sums over the rows."""
    compact: float = 0.5
    """gamma, the weight of reconstructing the observation itself within the decoder's subspace, every label
    alike."""
    decay: float = 0.2
    """Weight decay: the price of variance of the scores within a latent state."""
    reward: float = 0.5
    """Factor of the reward, standardised, as a further target; a direction has a mean square of about 1, on
    average over those that stand out of noise."""
    evaluations: int = 40
    """Evaluations of objective and gradient in one run of L-BFGS, at most."""
    radius: float = 5.0
    """An observation this many (robust) standard deviations further from every centre than usual is novel."""
    apart: float = 4.0
    """Parts of a decoder closer than this many standard deviations are taken for one state."""

    def __post_init__(self) -> None:
        require(self, ">= 1", "directions", "evaluations")
        require(self, "> 0", "ridge", "radius")
        require(self, ">= 0", "forward", "compact", "decay", "reward", "apart")


@dataclass(frozen=True)
class RefitConfig:
    """Which levels are fitted again after new data."""

    min_rows: int = 40
    """Episodes, each of which is a row of every level, before the first fit."""
    growth: float = 1.0
    """A level is due when its strata and those before it have grown by this much: 1 / (n + 1) for each new
    row of a stratum of n, times the chance of a discovery from there relative to that of an episode."""
    max_levels: int = 8
    """Levels fitted in one update, at most: those that grew most."""

    def __post_init__(self) -> None:
        require(self, ">= 1", "min_rows", "max_levels")
        require(self, ">= 0", "growth")


@dataclass(frozen=True)
class ExploreConfig:
    """Where data are collected."""

    rule: Literal["discovery", "tries", "bonus"] = "discovery"
    """Value of trying a cell again: the estimated probability of a discovery; 1 until it was tried
    `known_after` times, then 0; or 1 / sqrt(n + 1), the bonus of one-hot features (Alg. 1, l. 6)."""
    known_after: int = 2
    """Tries after which the rule `tries` takes a cell for known."""
    episodes: int = 20
    """Episodes of one update."""
    rounds: int = 4
    """Parts of these episodes, of the same size; what a part tried counts as tried for the next."""
    tolerance: float = 0.8
    """Actions whose probability of a discovery is at least this share of the best are chosen alike."""
    settled: float = 0.05
    """Once an episode discovers something with less than this probability, every second round follows the
    greedy policy."""
    max_tries: int = 32
    """Tries after which the probability of a discovery is not distinguished any further."""
    prior_cells: float = 2.0
    """Imaginary cells behind the estimated probability of a discovery; they discover with 1 / (n + 1)."""

    def __post_init__(self) -> None:
        require(self, ">= 1", "episodes", "rounds", "max_tries", "known_after")
        require(self, ">= 0", "tolerance", "settled", "prior_cells")
        require(self, "<= 1", "tolerance")
        require_choice(self, rule=("discovery", "tries", "bonus"))


@dataclass(frozen=True)
class EfficientConfig:
    """The sample-efficient preset."""

    free_fields: ClassVar[tuple[str, ...]] = ("workers",)
    """Fields that change no result."""
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
        self.check_rounds()

    def check_rounds(self) -> None:
        """Rounds have as many episodes as one another."""
        episodes, rounds = self.explore.episodes, self.explore.rounds
        if episodes % rounds:
            raise ValueError(f"episodes must be a multiple of rounds ({rounds}), got {episodes}")

    @classmethod
    def efficient(cls, horizon: int, dense: bool = False) -> "EfficientConfig":
        """The same settings for every horizon and reward."""
        return cls()
