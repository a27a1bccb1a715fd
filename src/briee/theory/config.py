"""Settings of Algorithm 1 as the theorems have it. Imports neither JAX nor NumPy."""

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from briee.config import EvaluationConfig, require, require_choice


@dataclass(frozen=True)
class TheoryConfig:
    """Theorem 1: a finite class with exact oracles, and alpha_n, lambda_n, T_n, ell_n and c by formula."""

    default_episodes: ClassVar[int] = 5 * 10**17
    """Budget where none is given: Theorem 1 asks for many samples, but here they cost nothing."""
    class_size: int = 4
    """|Phi|, decoders per level: psi* and random ones."""
    class_seed: int = 0
    """Draws the random decoders."""
    constants: Literal["statement", "proof"] = "statement"
    """The orders of Theorem 1 with every hidden constant one, or each number of Appendices A and B."""
    alpha_scale: float = 1.0
    """Multiplies alpha_n. 1 is Theorem 1; less shows at fewer samples what the theorem shows at many."""
    delta: float = 0.1
    """Probability with which the theorem may fail."""
    samples: float = 1e17
    """N of Theorem 1, on which c depends."""
    growth: float = 1.3
    """Plan anew when the data grew by this factor; 1: after every sample, as printed."""
    members: int = 400
    """Past policies that the mixture has room for, each with the share of the samples that it collected."""
    evaluation: EvaluationConfig = field(
        default_factory=lambda: EvaluationConfig(episodes=400, tolerance=0.1, policy="mixture")
    )
    """The mixture is judged; its tolerance is the epsilon of Theorem 1."""

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
