"""Settings as frozen dataclasses, and the named presets.

`paper` follows the text and tables of Appendix E, `released` the program published with the paper. Each
difference between the two is one field, and every field says where its value comes from. This module imports
no JAX.
"""

from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True)
class CollectConfig:
    """Data collection, line 4 of Algorithm 1."""

    episodes_per_level: int = 50
    """Episodes for each level between two policy updates: 50 x H in all (Appendix E, "Update frequency")."""
    warmup_episodes: int = 0
    """Episodes of a uniformly random policy before the first update: 10,000 for H = 50, 100 (Table 4), else
    none."""
    buffer_size: int = 10_000
    """Newest transitions kept per level, D and D' together (Appendix E, text; its table says 1e5)."""


@dataclass(frozen=True)
class FeatureConfig:
    """Features phi(s, a) = softmax(A_h s / tau) ⊗ e_a, Section 5."""

    num_latents: int = 3
    """K, the number of latent states the decoder can tell apart (Section 5: 3)."""
    temperature: float = 1.0
    """tau at every level but the first (Table 4)."""
    first_temperature: float = 0.1
    """tau at level 0, whose latent states are distributed differently (Table 4)."""


@dataclass(frozen=True)
class RepLearnConfig:
    """RepLearn, Algorithm 2."""

    rounds: int = 30
    """T, the rounds of the adversarial game at most (Table 4)."""
    lam: float = 0.01 / 512
    """Ridge coefficient on the mean squared loss: 0.01 (Table 4) on the sum over a minibatch of 512. On the
    mean itself, 0.01 outweighs rare latent states and the features collapse."""
    ell: float | None = 0.5
    """Threshold of line 6: stop when no discriminator achieves more than ell / n on n transitions (Theorem 1
    lets ell_n shrink with n but no number is given; discriminators lie in [-1, 1]). None: never, as
    released."""
    patience: int = 5
    """Line 6 believes a small objective after this many rounds in a row: one gradient ascent may fail."""
    start: Literal["previous", "fresh"] = "fresh"
    """First features of a call: those of the previous update, or drawn anew. The paper says "arbitrarily";
    the released program draws them anew."""
    first_player: Literal["discriminator", "features"] = "discriminator"
    """Who moves first in a call. The released program fits features to an untrained discriminator first."""
    ascent: Literal["joint", "alternating"] = "joint"
    """Line 5 moves f and the rival features together (paper), or the rival first and f after it
    (released)."""
    wait_for_rival: bool = True
    """The current features are a possible rival too, so the objective of line 5 is never negative and f
    stands still while the other rival is worse. The released program lets f sink until it is constant."""
    feature_steps: int = 64
    """Gradient steps of line 7 per round (Table 4)."""
    discriminator_steps: int = 128
    """Gradient steps of line 5 per round (Table 4; the released program takes 64)."""
    feature_batch: int = 512
    """Minibatch of line 7 (Table 4)."""
    discriminator_batch: int = 512
    """Minibatch of line 5 (Table 4)."""
    feature_learning_rate: float = 1e-2
    """Step size of line 7 and of the rival features (Table 4)."""
    discriminator_learning_rate: float = 1e-2
    """Step size of f in line 5 (Table 4)."""
    momentum: float = 0.99
    """Momentum of stochastic gradient descent (Appendix E, text)."""
    hidden_sizes: tuple[int, ...] = (256,)
    """Widths of the discriminator's hidden tanh layers: a "two-layer neural network" (Section 5) with a
    hidden layer of 256 (Table 4). The released program has two hidden layers of 256."""


@dataclass(frozen=True)
class BonusConfig:
    """Exploration bonus, line 6 of Algorithm 1."""

    alpha: float
    """Bonus coefficient, H / 5 for sparse rewards and H / 50 for dense ones (Tables 4 and 8)."""
    cap: float | None = 2.0
    """The bonus is at most this (line 6). The released program has no cap."""
    covariance: Literal["on_policy", "all"] = "on_policy"
    """Data of Sigma_h: D_h alone (line 6), or D_h and D'_h together (released)."""


@dataclass(frozen=True)
class LSVIConfig:
    """Least-squares value iteration, Algorithm 3."""

    lam: float = 1.0
    """Regularisation of Sigma_h in planning and in the bonus (Table 4)."""
    clip: float | None = None
    """Values are at most this. Algorithm 3 does not clip; the released program clips at H."""


@dataclass(frozen=True)
class EvaluationConfig:
    """How a policy is judged after each update (Appendix E)."""

    episodes: int = 20
    """Evaluation episodes after each policy update (Appendix E, text)."""
    streak: int = 5
    """Updates in a row that must all reach the optimal return before a run counts as solved (Appendix E,
    text)."""
    policy: Literal["greedy", "optimistic"] = "greedy"
    """Evaluate the plan without the bonus, or the exploring one as the released program does."""


@dataclass(frozen=True)
class BrieeConfig:
    """Algorithm 1 and everything it calls."""

    bonus: BonusConfig
    collect: CollectConfig = field(default_factory=CollectConfig)
    features: FeatureConfig = field(default_factory=FeatureConfig)
    replearn: RepLearnConfig = field(default_factory=RepLearnConfig)
    lsvi: LSVIConfig = field(default_factory=LSVIConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    mixture_size: int = 0
    """Past policies to keep for the uniform mixture of Theorem 1: all of them while they are fewer than this,
    else a uniform sample of them. 0: only the last policy is returned."""
    workers: int = 0
    """Levels whose features are learned at the same time; 0 means one per core. Does not change any
    result."""

    @classmethod
    def paper(cls, horizon: int, dense: bool = False) -> "BrieeConfig":
        """The text and tables of Appendix E."""
        return cls(
            bonus=BonusConfig(alpha=horizon / (50 if dense else 5)),
            collect=CollectConfig(warmup_episodes=10_000 if horizon >= 50 and not dense else 0),
        )

    @classmethod
    def released(cls, horizon: int, dense: bool = False) -> "BrieeConfig":
        """What the published program does where it departs from the paper."""
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
