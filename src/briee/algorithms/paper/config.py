"""Configuration of Algorithms 1 to 4, and the named presets. Imports no JAX.

`paper` follows the text and tables of Appendix E, `released` the code published with the paper. Each
difference between the two is one field, and each field says where its value comes from.
"""

from dataclasses import dataclass, field
from math import log1p
from typing import ClassVar, Literal

from briee.configuration import AlgorithmConfig, EvaluationConfig, require, require_choice


@dataclass(frozen=True)
class CollectConfig:
    """Data collection, line 4 of Algorithm 1."""

    episodes_per_level: int = 50
    """Episodes for each level between two policy updates: 50 x H in all (Appendix E, "Update frequency")."""
    warmup_episodes: int = 0
    """Episodes of a uniform policy before the first update: 10,000 for H = 50, 100 (Table 2), else none."""
    buffer_size: int = 10_000
    """Newest transitions kept per level, D and D' together (Appendix E, text; its table says 1e5)."""
    episodes: int | None = None
    """Episodes between two updates of the features, for all levels together, each run to its end; None:
    `episodes_per_level`. Algorithm 1 collects one tuple per level and iteration; batches as large as 50 x H
    are a choice of Appendix E."""
    rounds: int = 1
    """Rounds in which these episodes are collected; bonus and plan are computed anew after each. Needs
    `episodes`, of which it is a divisor."""
    deviating: float = 1.0
    """Share of these episodes that deviate, each at a uniform level; the others follow the policy."""

    def __post_init__(self) -> None:
        require(self, ">= 1", "episodes_per_level", "buffer_size", "episodes", "rounds")
        require(self, ">= 0", "warmup_episodes", "deviating")
        require(self, "<= 1", "deviating")
        if (self.episodes is None and self.rounds > 1) or (self.episodes or 0) % self.rounds:
            raise ValueError(f"rounds must divide episodes = {self.episodes}, got {self.rounds}")


@dataclass(frozen=True)
class FeatureConfig:
    """Features phi(s, a) = softmax(A_h s / tau) ⊗ e_a, Section 5; or with another network for A_h s."""

    decoder: Literal["linear", "mlp", "cnn", "custom"] = "linear"
    """Network of the decoders: linear (Section 5), one hidden layer, or a small CNN for images; custom is an
    Equinox module given in Python."""
    num_latents: int = 3
    """K, the number of latent states that the decoder distinguishes (Section 5: 3)."""
    temperature: float = 1.0
    """tau at every level but the first (Table 2)."""
    first_temperature: float = 0.1
    """tau at level 0, whose latent states are distributed differently (Table 2)."""
    bias: bool = False
    """Add a constant to each logit. Section 5 has none; a state far from the origin on the side of no other
    needs one."""
    standardize: bool = False
    """Standardise a level's observations to mean 0 and an average variance of 1, for decoders and
    discriminators. Table 2 was tuned on the lock, whose observations have that scale; images do not."""

    def __post_init__(self) -> None:
        require_choice(self, decoder=("linear", "mlp", "cnn", "custom"))
        require(self, ">= 1", "num_latents")
        require(self, "> 0", "temperature", "first_temperature")


@dataclass(frozen=True)
class RepLearnConfig:
    """RepLearn, Algorithm 2."""

    solver: Literal["gradient", "held_out"] = "gradient"
    """How the game is played: by minibatch gradient steps of both players (Appendix E), which the fields
    below describe, or on held-out rows (see `held_out`), where few rows decide and gradient steps overfit."""
    growth: float | None = None
    """Learn a level anew once log det of Sigma_h and Sigma_{h-1} grew by more than this, as low-switching
    algorithms do; None: at every update. Only for the solver `held_out`."""
    rows: Literal["deviations", "all"] = "deviations"
    """Data: D_h and D'_h (Alg. 2), or also the transitions of the roll-in, whose actions are not uniform."""
    rounds: int = 30
    """T, the maximum number of rounds of the adversarial game (Table 2)."""
    lam: float = 0.01 / 512
    """Ridge coefficient of the mean squared loss: 0.01 (Table 2) on the sum over a minibatch of 512. On the
    mean, 0.01 outweighs rare latent states and the features collapse."""
    ell: float | None = 0.5
    """Threshold of line 6: stop when no discriminator achieves more than ell / n on n transitions (in Theorem
    1, ell_n shrinks with n, but no number is given; discriminators lie in [-1, 1]). None: never, as
    released."""
    patience: int = 5
    """Stop after this many consecutive rounds below the threshold, because a single ascent may fail."""
    start: Literal["previous", "fresh"] = "fresh"
    """First features of a call: those of the previous update, or random ones. The paper says "arbitrarily";
    the released code draws them at random."""
    first_player: Literal["discriminator", "features"] = "discriminator"
    """The player that moves first. The released code first fits features to an untrained discriminator."""
    ascent: Literal["joint", "alternating"] = "joint"
    """Line 5 updates f and the rival features together (paper), or the rival before f (released)."""
    wait_for_rival: bool = True
    """Keep f fixed while the rival features are worse than the current ones, which are a possible rival too:
    the objective of line 5 is never negative. In the released code, f falls until it is constant."""
    feature_steps: int = 64
    """Gradient steps of line 7 per round (Table 2)."""
    discriminator_steps: int = 128
    """Gradient steps of line 5 per round (Table 2; 64 in the released code)."""
    feature_batch: int = 512
    """Minibatch of line 7 (Table 2)."""
    discriminator_batch: int = 512
    """Minibatch of line 5 (Table 2)."""
    feature_learning_rate: float = 1e-2
    """Step size of line 7 and of the rival features (Table 2)."""
    discriminator_learning_rate: float = 1e-2
    """Step size of f in line 5 (Table 2)."""
    momentum: float = 0.99
    """Momentum of stochastic gradient descent (Appendix E, text)."""
    hidden_sizes: tuple[int, ...] = (256,)
    """Widths of the discriminator's hidden tanh layers: a "two-layer neural network" (Section 5) with a
    hidden layer of 256 (Table 2). The released code has two hidden layers of 256."""

    def __post_init__(self) -> None:
        require(self, ">= 1", "rounds", "patience", "feature_batch", "discriminator_batch")
        require(self, ">= 0", "feature_steps", "discriminator_steps", "momentum", "ell", "growth")
        require(self, "> 0", "lam", "feature_learning_rate", "discriminator_learning_rate")
        require_choice(
            self,
            start=("previous", "fresh"),
            rows=("deviations", "all"),
            solver=("gradient", "held_out"),
            first_player=("discriminator", "features"),
            ascent=("joint", "alternating"),
        )
        if not all(size >= 1 for size in self.hidden_sizes):
            raise ValueError(f"hidden_sizes must all be >= 1, got {self.hidden_sizes}")


@dataclass(frozen=True)
class HeldOutConfig:
    """RepLearn, Algorithm 2, as a game on held-out rows; see docs/protocol.md."""

    rounds: int = 0
    """T, the maximum number of rounds; 0: the first features are kept."""
    clusters: bool = True
    """First features from clusters of the observations, if the old ones do not predict clearly better;
    otherwise the old ones alone, random in the beginning (line 2: "arbitrarily")."""
    rows: int = 1000
    """Rows of a fit: the newest half, the others by leverage. More rows hardly help, because rare cells are
    drawn first."""
    softness: float = 10.0
    """tau of the features that clusters start with: soft enough to remain differentiable, 10 standard
    deviations of the noise."""
    white_softness: float = 4.0
    """The same for clusters in white coordinates."""
    share: float = 1 / 3
    """Share of the games that are played although new clusters and the old features split the rows in the
    same way: the others would most likely change nothing."""
    least_rows: int = 100
    """With fewer rows the first features are kept: there is nothing to hold out."""
    folds: int = 3
    """Folds of the rows: rivals and ridge weights are fitted without the fold on which they are compared."""
    gain: float = 1.0
    """Line 6 rejects features only if a rival explains at least this many rows more, in squared ranges of
    f, on held-out rows: the threshold ell, on the sum."""
    z: float = 1.64
    """And only if that difference is this many times its standard error: 5 % for one f."""
    passes: int = 3
    """Games in a row, each in white coordinates that the features of the one before improve."""
    singles: int = 3
    """Discriminators with a rival of their own in line 5, those predicted worst; one rival serves all."""
    directions: int = 12
    """Dimension of the subspace in which features are searched."""
    temperatures: tuple[float, ...] = (0.1, 1.0, 2.0, 3.0, 4.5, 7.0, 10.0)
    """Factors of tau, for all levels together, of the features that bonus and plan use: the first one, with
    which clusters are the posterior of a Gaussian mixture, unless another predicts clearly better. It does
    if the MDP is not a block MDP but of low rank. The game is played with tau itself."""
    rival_evaluations: int = 20
    """Evaluations of L-BFGS for a rival in line 5."""
    evaluations: int = 80
    """Evaluations of L-BFGS for the features in line 7."""

    def __post_init__(self) -> None:
        require(self, ">= 0", "rounds", "gain", "z", "singles")
        require(
            self, ">= 1", "rows", "least_rows", "directions", "rival_evaluations", "evaluations", "passes"
        )
        require(self, ">= 2", "folds")
        require(self, "> 0", "softness", "white_softness")
        require(self, ">= 0", "share")
        if not self.temperatures or not all(factor > 0 for factor in self.temperatures):
            raise ValueError(f"temperatures must be at least one number > 0, got {self.temperatures}")


@dataclass(frozen=True)
class BonusConfig:
    """Exploration bonus, line 6 of Algorithm 1."""

    alpha: float
    """Bonus coefficient, H / 5 for sparse rewards and H / 50 for dense ones (Tables 2 and 6)."""
    cap: float | None = 2.0
    """Maximum of the bonus (line 6). The released code has none."""
    covariance: Literal["on_policy", "deviations", "all"] = "on_policy"
    """Data of Sigma_h: D_h alone (line 6), D_h and D'_h together, or all that is kept. The released code
    keeps D_h and D'_h and uses all."""
    lam: float | None = None
    """Regularisation of Sigma_h in the bonus; None: that of the regression (`lsvi.lam`), as in Table 2."""

    def __post_init__(self) -> None:
        require(self, ">= 0", "alpha", "cap")
        require(self, "> 0", "lam")
        require_choice(self, covariance=("on_policy", "deviations", "all"))


@dataclass(frozen=True)
class LSVIConfig:
    """Least-squares value iteration, Algorithm 3."""

    lam: float = 1.0
    """Regularisation of Sigma_h in planning and, unless `bonus.lam` is given, in the bonus (Table 2)."""
    rows: Literal["deviations", "all"] = "deviations"
    """Data of the regression: D_h and D'_h (Algorithm 3), or also the transitions of the roll-in."""
    clip: float | None = None
    """Maximum of the values. Algorithm 3 does not clip; the released code clips at H."""
    prior: Literal["zero", "least"] = "zero"
    """Value that the ridge shrinks predictions to: zero (Algorithm 3, l. 5), or the least value of a next
    state in the data. With zero, the bonuses that tried actions inherit hide untried actions."""

    def __post_init__(self) -> None:
        require(self, "> 0", "lam")
        require_choice(self, rows=("deviations", "all"), prior=("zero", "least"))


@dataclass(frozen=True)
class BrieeConfig(AlgorithmConfig):
    """Algorithm 1 and everything it calls."""

    free_fields: ClassVar[tuple[str, ...]] = ("workers",)
    bonus: BonusConfig
    collect: CollectConfig = field(default_factory=CollectConfig)
    features: FeatureConfig = field(default_factory=FeatureConfig)
    replearn: RepLearnConfig = field(default_factory=RepLearnConfig)
    held_out: HeldOutConfig = field(default_factory=HeldOutConfig)
    lsvi: LSVIConfig = field(default_factory=LSVIConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    mixture_size: int = 0
    """Number of past policies to keep for the uniform mixture of Theorem 1; if there are more, a uniform
    sample of them is kept. 0: only the last policy is returned."""
    workers: int = 0
    """Levels whose features are learned in parallel; 0 means one per core. Does not change any result."""

    def __post_init__(self) -> None:
        require(self, ">= 0", "mixture_size", "workers")
        if self.replearn.solver == "held_out":
            if self.features.decoder != "linear" or not self.features.bias or self.features.standardize:
                raise ValueError(
                    "replearn.solver='held_out' needs features.decoder='linear' with a bias, not "
                    f"{self.features.decoder!r}: choose replearn.solver='gradient' for other decoders"
                )
            if self.collect.episodes is None:
                raise ValueError("replearn.solver='held_out' needs collect.episodes, got None")

    @property
    def bonus_lam(self) -> float:
        """The regularisation of Sigma_h in the bonus."""
        return self.lsvi.lam if self.bonus.lam is None else self.bonus.lam

    @property
    def warmup_episodes(self) -> int:
        """Episodes before the first update."""
        return self.collect.warmup_episodes

    @classmethod
    def paper(cls, horizon: int, dense: bool = False) -> "BrieeConfig":
        """The text and tables of Appendix E."""
        return cls(
            bonus=BonusConfig(alpha=horizon / (50 if dense else 5)),
            collect=CollectConfig(warmup_episodes=10_000 if horizon >= 50 and not dense else 0),
        )

    @classmethod
    def practical(cls, horizon: int, dense: bool = False) -> "BrieeConfig":
        """Algorithm 1 with few episodes: small batches, all transitions, a calibrated bonus, and RepLearn as
        a game on held-out rows. docs/protocol.md derives and measures each change.

        A level is learned anew after two new cells, its own or those of the level before; games need three
        rows for each dimension of the lock's observations."""
        cap, alpha = 2.0, 5 / horizon
        lam = (alpha / cap) ** 2
        return cls(
            bonus=BonusConfig(alpha=alpha, cap=cap, covariance="all", lam=lam),
            collect=CollectConfig(buffer_size=4_000, episodes=10, rounds=2, deviating=0.25),
            features=FeatureConfig(bias=True, first_temperature=1.0),
            replearn=RepLearnConfig(solver="held_out", rows="all", growth=1.6 * log1p(1 / lam)),
            held_out=HeldOutConfig(rounds=4, least_rows=max(100, 4 * horizon)),
            lsvi=LSVIConfig(lam=lam, rows="all", prior="least"),
        )

    @classmethod
    def released(cls, horizon: int, dense: bool = False) -> "BrieeConfig":
        """The released code, where it differs from the paper."""
        paper = cls.paper(horizon, dense)
        return cls(
            bonus=BonusConfig(alpha=paper.bonus.alpha, cap=None, covariance="all"),
            collect=paper.collect,
            replearn=RepLearnConfig(
                ell=None, start="fresh", first_player="features", ascent="alternating",
                discriminator_steps=64, hidden_sizes=(256, 256), wait_for_rival=False,
            ),
            lsvi=LSVIConfig(clip=float(horizon)),
            evaluation=EvaluationConfig(policy="optimistic"),
        )  # fmt: skip
