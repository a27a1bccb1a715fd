"""Configuration of Algorithm 1 in the setting of the theorems. Imports neither JAX nor NumPy."""

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from briee.configuration import AlgorithmConfig, EvaluationConfig, require, require_choice


@dataclass(frozen=True)
class TheoryConfig(AlgorithmConfig):
    """Theorem 1: a finite class with exact oracles; alpha_n, lambda_n, T_n, ell_n and c follow formulas."""

    default_episodes: ClassVar[int | None] = 5 * 10**17
    """Default budget: Theorem 1 needs many samples, but here they cost nothing."""
    class_size: int = 4
    """|Phi|, decoders per level: psi* and random ones."""
    class_seed: int = 0
    """Seed of the random decoders."""
    constants: Literal["statement", "proof"] = "statement"
    """The orders of Theorem 1 with every hidden constant 1, or the constants of Appendices A and B."""
    alpha_scale: float = 1.0
    """Factor of alpha_n. 1 is Theorem 1; a smaller one shows the same effects with fewer samples."""
    delta: float = 0.1
    """Failure probability of the theorem."""
    samples: float = 1e17
    """N of Theorem 1, on which c depends."""
    growth: float = 1.3
    """Plan again when the data has grown by this factor; 1: after every sample, as printed."""
    members: int = 400
    """Maximum number of past policies in the mixture, each weighted by the samples it collected."""
    evaluation: EvaluationConfig = field(
        default_factory=lambda: EvaluationConfig(episodes=400, tolerance=0.1, policy="mixture")
    )
    """Evaluates the mixture; the tolerance is the epsilon of Theorem 1."""

    def __post_init__(self) -> None:
        require(self, ">= 1", "class_size", "samples", "growth", "members")
        require(self, ">= 0", "class_seed", "alpha_scale")
        require_choice(self, constants=("statement", "proof"))
        if not 0 < self.delta < 1:
            raise ValueError(f"delta must be in (0, 1), got {self.delta}")

    @classmethod
    def theory(cls, horizon: int, dense: bool = False) -> "TheoryConfig":
        """Theorem 1; its parameters do not depend on the horizon."""
        return cls()
