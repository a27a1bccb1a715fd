"""Configuration of Algorithm 1 in the setting of the theorems, and the parameters of Theorem 1.

`proof` uses the constants of Appendices A and B; `statement` uses the orders of Theorem 1 with every hidden
constant 1, which is small enough for experiments. Symbols: n samples per level and data set, k = 2n samples
of D and D' together, L bound on discriminators, d = Z A. Imports neither JAX nor NumPy.
"""

from dataclasses import dataclass, field
from functools import cached_property
from math import ceil, log, sqrt
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


@dataclass(frozen=True)
class TheoryPreset:
    """alpha_n, lambda_n, T_n, ell_n and c of Theorem 1, and the bound zeta_n of Lemma 1."""

    num_latents: int
    num_actions: int
    class_size: int
    samples: float
    """N, the largest n: c depends on it."""
    delta: float = 0.1
    constants: Literal["proof", "statement"] = "statement"
    bound: float = 2.0
    """L, the largest discriminator (Appendix B: 2)."""
    alpha_scale: float = 1.0
    """Factor of alpha_n. 1 is Theorem 1; a smaller one shows the same effects with fewer samples."""
    concentration: float = 0.5
    """c_1 of Lemma 15: the smallest ratio of the empirical bonus to the population's."""

    def __post_init__(self):
        if not 0 < self.delta < 1:
            raise ValueError(f"delta must be in (0, 1), got {self.delta}")
        if self.samples < 1:
            raise ValueError(f"samples must be >= 1, got {self.samples}")

    @property
    def d(self) -> int:
        """Rank of the block MDP."""
        return self.num_latents * self.num_actions

    @cached_property
    def c(self) -> float:
        """alpha_N / sqrt(lambda_N), a fixed point in `proof`: c enters zeta through the covering number."""
        c = 1.0
        for _ in range(50 if self.constants == "proof" else 1):
            c = max(1.0, self._alpha(self.samples, c) / sqrt(self.lam(self.samples)))
        return c

    def lam(self, n: float) -> float:
        """lambda_n = d ln(|Phi| n / delta)."""
        return self.d * log(self.class_size * max(n, 1) / self.delta)

    def log_covering(self, k: float, c: float | None = None) -> float:
        """Lemma 6: ln of 2 |Phi|^2 (2c / gamma)^{2d} at gamma = L / 2k."""
        ratio = 4.0 * k * max(self.c if c is None else c, 1.0) / self.bound
        return log(2.0) + 2.0 * log(self.class_size) + 2.0 * self.d * log(ratio)

    def epsilon_tilde(self, k: float, c: float | None = None) -> float:
        """Lemma 8: 56 L^2 ln(2 (4k)^d |Phi| |F|_{L/2k} / delta) / k."""
        inside = log(2.0 / self.delta) + self.d * log(4.0 * k) + log(self.class_size)
        return 56.0 * self.bound**2 * (inside + self.log_covering(k, c)) / k

    def epsilon_1(self, k: float) -> float:
        """Thm. 4: 16 sqrt(2) L d^{3/2} epsilon_tilde^{1/2}."""
        return 16.0 * sqrt(2.0) * self.bound * self.d**1.5 * sqrt(self.epsilon_tilde(k))

    def ell(self, n: float, k: float | None = None) -> float:
        """ell_n: the threshold of line 6 of Algorithm 2."""
        if self.constants == "statement":
            return self.d**2 * sqrt(log(self.class_size / self.delta) / n)
        k = 2.0 * n if k is None else k
        ridge = 2.0 * self.lam(n) * self.bound**2 * self.d / k
        return 1.5 * self.epsilon_1(k) + self.epsilon_tilde(k) + ridge

    def rounds(self, n: float, k: float | None = None) -> int:
        """T_n, at least 1, because Algorithm 2 returns nothing before the end of round 0."""
        if self.constants == "statement":
            squared = n / (self.d * log(self.class_size / self.delta))
        else:
            squared = self.bound**2 * self.d / (2.0 * self.epsilon_tilde(2.0 * n if k is None else k))
        return max(1, ceil(sqrt(squared)))

    def zeta(self, n: float, k: float | None = None, c: float | None = None) -> float:
        """zeta_n of Lemma 1, 75 L d^{3/2} epsilon_tilde^{1/2} (Thm. 4)."""
        if self.constants == "statement":
            return self.d**2 * sqrt(log(self.class_size * max(n, 1) / self.delta) / n)
        k = 2.0 * n if k is None else k
        return 75.0 * self.bound * self.d**1.5 * sqrt(self.epsilon_tilde(k, c))

    def alpha(self, n: float) -> float:
        """alpha_n, the bonus coefficient."""
        return self.alpha_scale * self._alpha(n, self.c if self.constants == "proof" else 1.0)

    def _alpha(self, n: float, c: float) -> float:
        if self.constants == "statement":
            return (n * self.d**5) ** 0.25 * self.num_actions * log(self.class_size * max(n, 1) / self.delta)
        zeta = self.zeta(n, c=c)
        inside = n * self.num_actions**2 * zeta + 4.0 * self.lam(n) * self.d + n * zeta
        return sqrt(inside) / self.concentration
