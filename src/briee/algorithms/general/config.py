"""Settings of the general algorithm. Imports no JAX."""

from dataclasses import dataclass, field
from typing import ClassVar, Literal, get_args

from briee.configuration import AlgorithmConfig, EvaluationConfig, require

Candidate = Literal["clouds", "rbf", "quadratic", "products", "patches", "both", "teachers", "shared"]
CANDIDATES: tuple[Candidate, ...] = get_args(Candidate)


@dataclass(frozen=True)
class DataConfig:
    """The episodes that are kept."""

    episodes: int = 2048
    """Episodes kept; a full store drops those whose rarest (state, action) pair is the most common."""
    megabytes: int = 256
    """Memory for their observations; fewer episodes are kept if they are large."""
    fit_rows: int = 500
    """Rows of a level that a fit sees, balanced over (state, action) pairs before and after."""
    shared_rows: int = 1000
    """Rows of all levels together that the fit of one regression for all of them sees."""

    def __post_init__(self) -> None:
        require(self, ">= 1", "episodes", "megabytes", "fit_rows", "shared_rows")


@dataclass(frozen=True)
class FitConfig:
    """How the states of a level are found."""

    candidates: tuple[Candidate, ...] = CANDIDATES
    """Kinds of states that are tried: clouds, regressions with these kernels or coordinates (`both`: pixels
    and patches), and one regression that all levels share."""
    joins: bool = True
    """Join two labels if that predicts held-out rows better."""
    proven: float = 5.0
    """Nats on held-out rows that a level's states must be worth for its race to count."""

    races: int = 3
    """Races of clouds against regressions, at different levels, that clouds win before there are no more."""

    settled: float = 20.0
    """A level worth more nats than this keeps its kind of regression until the next race."""
    race_again: float = 1.5
    """Its next race is held when there are this many times as many episodes."""

    search_again: float = 0.25
    """How often the labels of such a level are searched for all the same."""
    transfer: float = 0.8
    """All levels share a regression if labels of other levels are worth this share of its score."""
    fresh_test: bool = True
    """Withdraw labels that do not predict episodes which no fit has seen."""

    def __post_init__(self) -> None:
        require(self, ">= 0", "proven", "races", "settled", "race_again", "search_again", "transfer")


@dataclass(frozen=True)
class RefitConfig:
    """Which levels are fitted again after new data."""

    min_rows: int = 40
    """Episodes before the first fit; each adds a row to every level."""
    growth: float = 1.0
    """A level is refitted once its strata and those of the level before have grown by this much. A row that
    joins a stratum of n adds 1 / (n + 1), weighted by the chance of a discovery from there."""
    growth_unsure: float = 0.3
    """The same for levels whose states are not clouds that proved right."""
    max_levels: int = 8
    """Maximum number of levels fitted in one update: those that grew most."""

    def __post_init__(self) -> None:
        require(self, ">= 1", "min_rows", "max_levels")
        require(self, ">= 0", "growth", "growth_unsure")


@dataclass(frozen=True)
class ExploreConfig:
    """Where data are collected."""

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
    blind_tries: float = 12.0
    """A discovery cannot be seen while the next level has one state: there a cell tried n times keeps a
    discovery probability of exp(-n / blind_tries) or more."""
    blind_hope: float = 0.3
    """The same times this, as long as clouds explain all levels."""
    prior_cells: float = 2.0
    """Number of imaginary cells, with discovery probability 1 / (n + 1), in the estimated probability."""
    reward_free: bool = False
    """Never look at the rewards, and end only when the budget is used up; short: --reward-free."""

    def __post_init__(self) -> None:
        require(self, ">= 1", "episodes", "rounds", "max_tries")
        require(self, ">= 0", "tolerance", "settled", "prior_cells", "blind_tries", "blind_hope")
        require(self, "<= 1", "tolerance")


@dataclass(frozen=True)
class GeneralConfig(AlgorithmConfig):
    """Settings of the general algorithm."""

    finds_states: ClassVar[bool] = True
    num_latents: int = 64
    """The most states that a level may have; how many it has is found from the data."""
    world_states: int = 8192
    """The most states of a world that has the same ones at every level."""
    data: DataConfig = field(default_factory=DataConfig)
    fit: FitConfig = field(default_factory=FitConfig)
    refit: RefitConfig = field(default_factory=RefitConfig)
    explore: ExploreConfig = field(default_factory=ExploreConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)

    def __post_init__(self) -> None:
        require(self, ">= 1", "num_latents", "world_states")
        episodes, rounds = self.explore.episodes, self.explore.rounds
        if episodes % rounds:
            raise ValueError(f"episodes must be a multiple of rounds ({rounds}), got {episodes}")

    @classmethod
    def general(cls, horizon: int, dense: bool = False) -> "GeneralConfig":
        """The same settings for every horizon and reward."""
        return cls()
