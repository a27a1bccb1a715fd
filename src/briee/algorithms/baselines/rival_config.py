"""Configuration of the rivals: what each one's authors chose, or the smallest that works. Imports no JAX."""

from dataclasses import dataclass, field
from typing import ClassVar, Literal, Self

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


@dataclass(frozen=True, kw_only=True)
class AttemptsConfig(AlgorithmConfig):
    """Settings that the level-by-level rivals share."""

    check_episodes: int = 20
    """Episodes of each update that plays the finished policy."""
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)

    def __post_init__(self) -> None:
        require(self, ">= 1", "check_episodes")

    @classmethod
    def paper(cls, horizon: int, dense: bool = False) -> Self:
        """The same at every horizon."""
        return cls()


@dataclass(frozen=True)
class MusikConfig(AttemptsConfig):
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
    decoder_size: int = 0
    """Hidden units of phi; 0: phi is linear, which is enough for the lock (its authors)."""
    steps: int = 128
    """Gradient steps per level (its authors: 64 to 128)."""
    batch: int = 4096
    """Rows per gradient step (its authors)."""
    learning_rate: float = 1e-3
    """Step size of Adam (its authors)."""
    squash: bool = True
    """Whether the logits of the inverse model are tanh / 10, as in its authors' program."""
    fitted_index: bool = False
    """Whether a network predicts which cover policy precedes a state, as in its authors' program, instead of
    counts."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, ">= 1", "num_latents", "episodes_per_level", "hidden_size", "steps", "batch")
        require(self, ">= 0", "decoder_size")
        require(self, "> 0", "learning_rate")

    @classmethod
    def paper(cls, horizon: int, dense: bool = False) -> "MusikConfig":
        """Its authors' budgets by horizon; shorter horizons have those of H = 25."""
        explore, plan = (2600, 320) if horizon <= 25 else (6000, 400) if horizon <= 50 else (10_100, 2000)
        return cls(PsdpConfig(plan, RegressionConfig("mlp")), episodes_per_level=explore)


@dataclass(frozen=True)
class HomerConfig(AttemptsConfig):
    """HOMER: a contrastive classifier finds abstract states, a homing policy reaches each."""

    default_episodes: ClassVar[int | None] = 5_000_000
    """Default budget: at H = 100 an attempt of `released` takes two million episodes."""
    psdp: PsdpConfig
    """PSDP for the homing policies and, with as many episodes a level, for the reward."""
    planner: Literal["psdp", "prefix", "prefix-psdp"] = "psdp"
    """How homing policies are found: by PSDP (its paper), or as one greedy step after the best prefix (its
    program, which then plans for the reward by fitted Q iteration on the stored transitions, or, as
    prefix-psdp, by PSDP)."""
    num_latents: int = 2
    """B, abstract states of a level: 2 for the lock, whose lanes are inseparable backwards (its program)."""
    forward_abstraction: bool = False
    """Whether the first observation goes through a Gumbel-softmax too."""
    episodes_per_level: int = 5000
    """Transitions per level: 5,000 at H = 5, 20,000 at H = 100 (its authors)."""
    temperature: float = 1.0
    """Temperature of the Gumbel-softmax (its program)."""
    hidden_size: int = 56
    """Hidden units of the classifier's head (its program)."""
    decoder_size: int = 0
    """Hidden units of phi and of the encoder; 0: they are linear, which is enough for the lock (its
    program)."""
    batch: int = 32
    """Rows per gradient step, half of them real (its program)."""
    learning_rate: float = 1e-3
    """Step size of Adam (its program)."""
    epochs: int = 200
    """Epochs at most (its program)."""
    patience: int = 10
    """Epochs without progress on the validation rows before training stops (its program)."""
    restarts: int = 10
    """Trainings at most, until the loss is below `enough` (its program)."""
    enough: float = 0.685
    """Validation loss at which no restart is needed; chance is 0.693 (its program)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, ">= 1", "num_latents", "episodes_per_level", "hidden_size", "epochs", "patience")
        require(self, ">= 1", "restarts")
        require(self, ">= 2", "batch")
        require(self, ">= 0", "decoder_size")
        require(self, "> 0", "temperature", "learning_rate", "enough")
        require_choice(self, planner=("psdp", "prefix", "prefix-psdp"))
        if self.planner != "psdp" and self.psdp.regression.kind == "mlp":
            raise ValueError(
                "prefix policies are linear, got psdp.regression.kind 'mlp': use ridge or linear"
            )

    @classmethod
    def paper(cls, horizon: int, dense: bool = False) -> "HomerConfig":
        """Homing policies and the reward by PSDP."""
        return cls(PsdpConfig(1000), episodes_per_level=5000 if horizon <= 6 else 20_000)

    @classmethod
    def released(cls, horizon: int, dense: bool = False) -> "HomerConfig":
        """Greedy prefix policies, and fitted Q iteration with linear functions.

        Its program trains them by Adam; in closed form they do not add up noise over the levels.
        """
        return cls(PsdpConfig(1000), "prefix", episodes_per_level=5000 if horizon <= 6 else 20_000)


@dataclass(frozen=True)
class PcidConfig(AttemptsConfig):
    """PCID: clusters of predicted backward probabilities are the states, a counted model is the plan."""

    num_latents: int = 3
    """K, clusters of a level at most (its program)."""
    episodes_per_level: int = 1000
    """Episodes per level (its authors: 100 to 1,000)."""
    least_cluster: int = 30
    """K is lowered until each cluster has this many rows (its program)."""
    lam: float = 1e-3
    """Regularisation of the least squares, which its program solves by a pseudo-inverse."""
    restarts: int = 10
    """Trials of k-means, of which the tightest counts."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, ">= 1", "num_latents", "episodes_per_level", "least_cluster", "restarts")
        require(self, "> 0", "lam")


@dataclass(frozen=True)
class PpeConfig(AttemptsConfig):
    """PPE: paths that a classifier cannot tell apart lead to the same state."""

    num_latents: int = 4
    """Paths kept per level at most."""
    episodes_per_level: int = 5000
    """Episodes per level (its authors' quickstart)."""
    steps: int = 400
    """Gradient steps of the classifier."""
    batch: int = 512
    """Rows per gradient step."""
    learning_rate: float = 1e-2
    """Step size of Adam."""
    lam: float = 0.04
    """Penalty of the squared weights of the classifier, which must not see paths in the noise."""
    merge: float = 0.625
    """Paths are merged if their predictions differ by less than this over the number of candidates: 5 / 8
    (its paper)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, ">= 1", "num_latents", "episodes_per_level", "steps", "batch")
        require(self, "> 0", "learning_rate", "merge")
        require(self, ">= 0", "lam")


@dataclass(frozen=True)
class BootDqnConfig(AlgorithmConfig):
    """Bootstrapped DQN with randomised priors, with the numbers of bsuite's baseline."""

    heads: int = 20
    """Networks of the ensemble; one of them plays each episode (bsuite)."""
    prior_scale: float = 5.0
    """Factor of the fixed random networks (bsuite)."""
    hidden_size: int = 50
    """Width of the two hidden layers (bsuite)."""
    learning_rate: float = 1e-3
    """Step size of Adam (bsuite)."""
    batch: int = 128
    """Transitions per gradient step (bsuite)."""
    discount: float = 0.99
    """gamma (bsuite)."""
    mask: float = 0.5
    """Probability that a head sees a transition (bsuite)."""
    target_period: int = 4
    """Gradient steps between two copies of the target networks (bsuite)."""
    replay_size: int = 10_000
    """Newest transitions kept (bsuite)."""
    workers: int = 10
    """Episodes played between gradient steps; bsuite plays one at a time."""
    steps_per_episode: int = 10
    """Gradient steps per episode; bsuite takes one per environment step, which is as many on deep sea 10."""
    rounds: int = 10
    """Rounds of playing and learning per iteration."""
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)

    def __post_init__(self) -> None:
        require(self, ">= 1", "heads", "hidden_size", "batch", "target_period", "replay_size", "workers")
        require(self, ">= 1", "steps_per_episode", "rounds")
        require(self, "> 0", "learning_rate", "mask")
        require(self, ">= 0", "prior_scale", "discount")

    @classmethod
    def bsuite(cls, horizon: int, dense: bool = False) -> "BootDqnConfig":
        """The same at every horizon."""
        return cls()


@dataclass(frozen=True)
class OliveConfig(AlgorithmConfig):
    """OLIVE on an enumerated class of Q-functions."""

    default_episodes: ClassVar[int | None] = 10_000_000
    """Default budget: each elimination takes as many episodes as its threshold needs."""
    class_size: int = 4
    """Decoders per level: the true one and random ones."""
    tables: int = 4
    """Tables of Q-values of the latent states per level: the true one and random ones."""
    class_seed: int = 0
    """Seed of the random decoders and tables."""
    epsilon: float = 0.2
    """Accuracy: OLIVE stops when the summed Bellman errors of the chosen function are at most 5/8 of it."""
    threshold: float | None = None
    """Largest average Bellman error of a function that is kept; None: epsilon / (12 H sqrt(rank)), with the
    number of latent states as the rank (its paper)."""
    estimate_episodes: int = 2000
    """Episodes of the chosen policy that estimate its Bellman errors."""
    eliminate_episodes: int = 100_000
    """Episodes of one elimination."""
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)

    def __post_init__(self) -> None:
        require(self, ">= 1", "class_size", "tables", "estimate_episodes", "eliminate_episodes")
        require(self, ">= 0", "class_seed")
        require(self, "> 0", "epsilon", "threshold")

    @classmethod
    def paper(cls, horizon: int, dense: bool = False) -> "OliveConfig":
        """Its thresholds, with enough episodes for them on the small worlds it can enumerate."""
        return cls()
