"""Configuration of the rivals: what each one's authors chose, or the smallest that works. Imports no JAX."""

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from briee.configuration import AlgorithmConfig, EvaluationConfig, require, require_choice


@dataclass(frozen=True)
class RegressionConfig:
    """Regression of a target on (x, a)."""

    kind: Literal["ridge", "linear", "mlp"] = "ridge"
    """One ridge regression per action, a linear function trained by Adam, or a network with a hidden tanh
    layer."""
    lam: float = 1.0
    """Regularisation of the ridge regression."""
    hidden_size: int = 200
    """Width of the network (MusIK's program)."""
    steps: int = 256
    """Gradient steps."""
    batch: int = 4096
    """Rows per gradient step; all rows if there are fewer (MusIK's program)."""
    learning_rate: float = 1e-3
    """Step size of Adam."""

    def __post_init__(self) -> None:
        require_choice(self, kind=("ridge", "linear", "mlp"))
        require(self, "> 0", "lam", "learning_rate")
        require(self, ">= 1", "hidden_size", "steps", "batch")


@dataclass(frozen=True)
class PsdpConfig:
    """PSDP."""

    episodes: int = 1000
    """Episodes per level."""
    regression: RegressionConfig = field(default_factory=RegressionConfig)

    def __post_init__(self) -> None:
        require(self, ">= 1", "episodes")


@dataclass(frozen=True)
class MusikConfig(AlgorithmConfig):
    """MusIK: inverse kinematics level by level, then PSDP."""

    default_episodes: ClassVar[int | None] = 2_000_000
    """Default budget: an attempt with the authors' budgets takes 1.2 million episodes at H = 100."""
    psdp: PsdpConfig
    num_latents: int = 3
    """K, policies of a cover (its authors use 3 for the lock)."""
    episodes_per_level: int = 2600
    """Episodes per level of exploration: 2,600, 6,000 and 10,100 for H = 25, 50 and 100 (its authors)."""
    hidden_size: int = 200
    """Hidden units of the inverse model (its authors)."""
    steps: int = 128
    """Gradient steps per level (its authors: 64 to 128)."""
    batch: int = 4096
    """Rows per gradient step (its authors)."""
    learning_rate: float = 1e-3
    """Step size of Adam (its authors)."""
    squash: bool = True
    """Whether the logits of the inverse model are tanh / 10, as in its authors' program."""
    check_episodes: int = 20
    """Episodes of each update that plays the finished policy."""
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)

    def __post_init__(self) -> None:
        require(self, ">= 1", "num_latents", "episodes_per_level", "hidden_size", "steps", "batch")
        require(self, ">= 1", "check_episodes")
        require(self, "> 0", "learning_rate")

    @classmethod
    def paper(cls, horizon: int, dense: bool = False) -> "MusikConfig":
        """Its authors' budgets by horizon; shorter horizons have those of H = 25."""
        explore, plan = (2600, 320) if horizon <= 25 else (6000, 400) if horizon <= 50 else (10_100, 2000)
        return cls(PsdpConfig(plan, RegressionConfig("mlp")), episodes_per_level=explore)
