"""Configuration of the rivals that learn a model or features of low rank. Imports no JAX."""

from dataclasses import dataclass, field

from briee.algorithms.baselines.rival_config import PsdpConfig
from briee.configuration import AlgorithmConfig, EvaluationConfig, require


@dataclass(frozen=True)
class LikelihoodConfig:
    """Maximum likelihood of a latent model with Gaussian emissions, by expectation maximisation."""

    num_latents: int = 3
    """K, latent states of a level."""
    steps: int = 20
    """Steps of the expectation maximisation."""
    restarts: int = 3
    """Trials, of which the likeliest counts."""

    def __post_init__(self) -> None:
        require(self, ">= 1", "num_latents", "steps", "restarts")


@dataclass(frozen=True)
class RepUcbConfig(AlgorithmConfig):
    """Rep-UCB: maximum likelihood of a model, an elliptical bonus, a plan in the model."""

    alpha: float
    """Bonus coefficient: H / 5, as for BRIEE."""
    likelihood: LikelihoodConfig = field(default_factory=LikelihoodConfig)
    episodes_per_level: int = 50
    """Episodes per level and iteration, as for BRIEE."""
    buffer_size: int = 2000
    """Newest transitions kept per level, of D and of D' each."""
    cap: float = 2.0
    """Largest bonus of a step (its paper)."""
    lam: float = 1.0
    """Regularisation of the covariance."""
    emissions: int = 32
    """Observations drawn from each emission to average values in the model."""
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)

    def __post_init__(self) -> None:
        require(self, ">= 1", "episodes_per_level", "buffer_size", "emissions")
        require(self, ">= 0", "alpha", "cap")
        require(self, "> 0", "lam")
        if self.buffer_size % self.episodes_per_level:
            told = f"episodes_per_level ({self.episodes_per_level}), got {self.buffer_size}"
            raise ValueError(f"buffer_size must be a multiple of {told}")

    @classmethod
    def paper(cls, horizon: int, dense: bool = False) -> "RepUcbConfig":
        """BRIEE's data and bonus."""
        return cls(alpha=horizon / (50 if dense else 5))


@dataclass(frozen=True)
class FlambeConfig(AlgorithmConfig):
    """FLAMBE: a model layer by layer, and an elliptical planner inside it."""

    likelihood: LikelihoodConfig = field(default_factory=LikelihoodConfig)
    episodes_per_level: int = 2000
    """Episodes per level."""
    members: int = 8
    """Policies of the exploratory mixture of a level at most."""
    beta: float = 0.5
    """The planner adds policies until the best one's value of its bonus is below this."""
    lam: float = 0.1
    """Regularisation of the covariance."""
    check_episodes: int = 20
    """Episodes of each update that plays the finished policy."""
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)

    def __post_init__(self) -> None:
        require(self, ">= 1", "episodes_per_level", "members", "check_episodes")
        require(self, "> 0", "beta", "lam")

    @classmethod
    def paper(cls, horizon: int, dense: bool = False) -> "FlambeConfig":
        """The same at every horizon."""
        return cls()


@dataclass(frozen=True)
class AdversaryConfig:
    """Features from the min-max-min objective: discriminators that other features would predict better."""

    num_latents: int = 3
    """K, numbers of psi(x) = softmax(A x)."""
    rounds: int = 8
    """Discriminators."""
    steps: int = 64
    """Gradient steps of each player in a round."""
    batch: int = 1024
    """Rows per gradient step."""
    learning_rate: float = 1e-2
    """Step size of Adam."""
    hidden_size: int = 64
    """Hidden tanh units of a discriminator."""
    lam: float = 1e-3
    """Regularisation of the least squares on a mean loss. The pairs (state, action) that open a lock are one
    row in a hundred: with 1e-2 they count for nothing."""

    def __post_init__(self) -> None:
        require(self, ">= 1", "num_latents", "rounds", "steps", "batch", "hidden_size")
        require(self, "> 0", "learning_rate", "lam")


@dataclass(frozen=True)
class VoxConfig(AlgorithmConfig):
    """VoX: learned features, and a barycentric spanner of their expectations found by PSDP."""

    psdp: PsdpConfig = field(default_factory=lambda: PsdpConfig(500))
    features: AdversaryConfig = field(default_factory=AdversaryConfig)
    episodes_per_level: int = 5000
    """Episodes per level that the features are learned from."""
    estimate_episodes: int = 200
    """Episodes that estimate a policy's expected features."""
    swaps: int = 2
    """Exchanges of a spanner's members at most, after each was found once."""
    ratio: float = 2.0
    """C of the approximate spanner: a member is exchanged if the determinant grows by this factor."""
    check_episodes: int = 20
    """Episodes of each update that plays the finished policy."""
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)

    def __post_init__(self) -> None:
        require(self, ">= 1", "episodes_per_level", "estimate_episodes", "ratio", "check_episodes")
        require(self, ">= 0", "swaps")

    @classmethod
    def paper(cls, horizon: int, dense: bool = False) -> "VoxConfig":
        """The same at every horizon."""
        return cls()


@dataclass(frozen=True)
class MoffleConfig(AlgorithmConfig):
    """MOFFLE: features from the min-max-min objective, and an elliptical planner by fitted Q iteration."""

    features: AdversaryConfig = field(default_factory=AdversaryConfig)
    episodes_per_level: int = 5000
    """Episodes per level, which are kept."""
    estimate_episodes: int = 200
    """Episodes that estimate the covariance of a policy's features."""
    members: int = 6
    """Policies of the exploratory mixture of a level at most."""
    beta: float = 0.5
    """The planner adds policies until the best one's value of its bonus is below this."""
    lam: float = 0.1
    """Regularisation of the covariance."""
    ridge: float = 1.0
    """Regularisation of fitted Q iteration."""
    check_episodes: int = 20
    """Episodes of each update that plays the finished policy."""
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)

    def __post_init__(self) -> None:
        require(self, ">= 1", "episodes_per_level", "estimate_episodes", "members", "check_episodes")
        require(self, "> 0", "beta", "lam", "ridge")

    @classmethod
    def paper(cls, horizon: int, dense: bool = False) -> "MoffleConfig":
        """The same at every horizon."""
        return cls()
