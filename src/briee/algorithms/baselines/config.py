"""Configuration of the baselines, with the tables of Appendix E as presets, and of the rivals that
learn a model or features of low rank. Imports no JAX."""

from dataclasses import dataclass, field
from typing import Literal

from briee.algorithms.baselines.rival_config import AttemptsConfig, PsdpConfig
from briee.configuration import AlgorithmConfig, EvaluationConfig, require, require_choice


@dataclass(frozen=True)
class LsviUcbConfig(AlgorithmConfig):
    """LSVI-UCB with given features."""

    beta: float
    """Bonus coefficient, H / 5 (Table 4)."""
    clip: float
    """Maximum of the values: H, as LSVI-UCB prescribes for rewards in [0, 1]."""
    lam: float = 1.0
    """Regularisation of Sigma_h (Table 4)."""
    prior: Literal["zero", "least"] = "zero"
    """Value that the ridge shrinks predictions to: zero, or the least value of a next state in the data, for
    features that sum to 1, see `LSVIConfig`."""
    episodes_per_update: int = 250
    """Episodes between two policy updates (Table 4, "Update frequency"); every step of them is kept."""
    buffer_size: int = 1_000_000
    """Newest transitions kept, all levels together (Table 4). One-hot features need only counts and ignore
    this."""
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)

    def __post_init__(self) -> None:
        require(self, ">= 1", "episodes_per_update", "buffer_size")
        require(self, ">= 0", "beta")
        require(self, "> 0", "clip", "lam")
        require_choice(self, prior=("zero", "least"))

    @classmethod
    def paper(cls, horizon: int, dense: bool = False) -> "LsviUcbConfig":
        """Table 4; with dense rewards beta = H / 50, as for BRIEE (Table 6)."""
        return cls(beta=horizon / (50 if dense else 5), clip=float(horizon))

    @classmethod
    def calibrated(cls, horizon: int, dense: bool = False) -> "LsviUcbConfig":
        """Small batches, and the bonus rule of Algorithm 1's preset `practical`: an untried cell is worth 2
        more than the worst that a tried one leads to (docs/protocol.md)."""
        beta = 5 / horizon
        lam = (beta / 2) ** 2
        return cls(beta=beta, clip=float(horizon), lam=lam, prior="least", episodes_per_update=5)


@dataclass(frozen=True)
class LsviRffConfig(LsviUcbConfig):
    """LSVI-UCB with random Fourier features."""

    dimension: int = 200
    """D, the number of random Fourier features: 200, 500, 1000 for H = 6, 12, 25 (Table 4)."""
    bandwidth: float = 5.0
    """Kernel bandwidth: the median distance between observations, 5 (Table 4)."""
    reading: Literal["joint", "product"] = "joint"
    """Meaning of "on top of (s, a)" (Section 5): features of the vector [s; e_a], or RFF(s) ⊗ e_a. Both solve
    the lock with H = 6; joint features need fewer episodes and also solve H = 12, as in the paper."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, ">= 1", "dimension")
        require(self, "> 0", "bandwidth")
        require_choice(self, reading=("joint", "product"))
        if self.prior != "zero":
            raise ValueError(
                f"random Fourier features do not sum to 1: prior must be 'zero', got {self.prior!r}"
            )

    @classmethod
    def paper(cls, horizon: int, dense: bool = False) -> "LsviRffConfig":
        """Table 4; its largest dimension is used for longer horizons too."""
        dimension = 200 if horizon <= 6 else 500 if horizon <= 12 else 1000
        return cls(beta=horizon / (50 if dense else 5), clip=float(horizon), dimension=dimension)


@dataclass(frozen=True)
class RndConfig:
    """Random network distillation."""

    coefficient: float = 1000.0
    """Factor of the intrinsic reward (Table 3)."""
    hidden_size: int = 64
    """Width of the fixed and the trained network, and of their output (the released code)."""

    def __post_init__(self) -> None:
        require(self, ">= 0", "coefficient")
        require(self, ">= 1", "hidden_size")


@dataclass(frozen=True)
class PpoConfig(AlgorithmConfig):
    """PPO, with an intrinsic reward if `rnd.coefficient` > 0."""

    rnd: RndConfig
    workers: int = 100
    """Episodes in parallel per policy update, each with its own random stream (the released code)."""
    rounds: int = 1
    """Policy updates per iteration, compiled into one scan; evaluation follows each iteration."""
    hidden_size: int = 64
    """Width of the two hidden layers that actor and critic share (Tables 3 and 7)."""
    learning_rate: float = 1e-3
    """Step size of RMSprop (Tables 3 and 7)."""
    decay: float = 0.99
    """Decay of the squared gradients in RMSprop (the default of the released code's library)."""
    discount: float = 0.99
    """gamma (the released code)."""
    gae: float = 0.95
    """tau_GAE, the decay of advantages (Tables 3 and 7)."""
    clip_ratio: float = 0.2
    """Clipping of the probability ratio (Tables 3 and 7)."""
    entropy: float = 0.01
    """Coefficient of the entropy (Tables 3 and 7)."""
    value: float = 0.5
    """Coefficient of the squared value error (the released code)."""
    gradient_clip: float = 5.0
    """Maximum norm of a gradient (Tables 3 and 7)."""
    minibatch: int = 160
    """Steps per gradient (Tables 3 and 7)."""
    epochs: int = 5
    """Epochs per update (Tables 3 and 7)."""
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)

    def __post_init__(self) -> None:
        require(self, ">= 1", "workers", "rounds", "hidden_size", "minibatch", "epochs")
        require(self, "> 0", "learning_rate", "clip_ratio", "gradient_clip")
        require(self, ">= 0", "decay", "discount", "gae", "entropy", "value")

    @classmethod
    def paper(cls, horizon: int, dense: bool = False) -> "PpoConfig":
        """Table 7: no intrinsic reward."""
        return cls(rnd=RndConfig(coefficient=0.0))

    @classmethod
    def paper_rnd(cls, horizon: int, dense: bool = False) -> "PpoConfig":
        """Table 3: with the intrinsic reward."""
        return cls(rnd=RndConfig())


@dataclass(frozen=True)
class Sb3Config(AlgorithmConfig):
    """An algorithm of Stable-Baselines3 with that library's defaults."""

    algorithm: str
    """Its class: PPO, A2C or DQN."""
    episodes_per_update: int = 100
    """Training episodes between two evaluations; for PPO also the episodes of a policy update."""
    workers: int = 10
    """Number of environments stepped together."""
    schedule_episodes: int = 100_000
    """Length of the library's schedules in episodes, such as the exploration rate of DQN."""
    replay_size: int = 100_000
    """Size of DQN's replay buffer, part of its checkpoint; the library's default is a million."""
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)

    def __post_init__(self) -> None:
        require(self, ">= 1", "episodes_per_update", "workers", "schedule_episodes", "replay_size")
        require_choice(self, algorithm=("PPO", "A2C", "DQN"))

    @classmethod
    def defaults(cls, algorithm: str, horizon: int, dense: bool = False) -> "Sb3Config":
        """The library's defaults, whatever the horizon."""
        return cls(algorithm)


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
class FlambeConfig(AttemptsConfig):
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

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, ">= 1", "episodes_per_level", "members")
        require(self, "> 0", "beta", "lam")


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
class VoxConfig(AttemptsConfig):
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

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, ">= 1", "episodes_per_level", "estimate_episodes", "ratio")
        require(self, ">= 0", "swaps")


@dataclass(frozen=True)
class MoffleConfig(AttemptsConfig):
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

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, ">= 1", "episodes_per_level", "estimate_episodes", "members")
        require(self, "> 0", "beta", "lam", "ridge")
