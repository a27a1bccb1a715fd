"""Algorithms and their presets by name. Imports no JAX before a class is loaded.

To add an algorithm, write its class and its configuration in a package of this one and add one entry to
`ALGORITHMS`.
"""

import importlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

from briee.algorithms.baselines.config import LsviRffConfig, LsviUcbConfig, PpoConfig, Sb3Config
from briee.algorithms.baselines.low_rank_config import FlambeConfig, MoffleConfig, RepUcbConfig, VoxConfig
from briee.algorithms.baselines.rival_config import (
    BootDqnConfig,
    HomerConfig,
    MusikConfig,
    OliveConfig,
    PcidConfig,
    PpeConfig,
)
from briee.algorithms.efficient.config import EfficientConfig, StationaryConfig
from briee.algorithms.general.config import GeneralConfig
from briee.algorithms.paper.config import BrieeConfig
from briee.algorithms.theory.config import TheoryConfig
from briee.envs.registry import has_dense_rewards
from briee.errors import suggestion


class AlgorithmEntry(NamedTuple):
    """One algorithm: a summary, the path of its class, and its presets.

    A preset is a named constructor of the configuration, called with `horizon` and `dense` (rewards). The
    first preset is the default.
    """

    summary: str
    path: str
    presets: Mapping[str, Callable[..., Any]]

    def load(self) -> type:
        """The class."""
        module, _, name = self.path.partition(":")
        return getattr(importlib.import_module(f"briee.algorithms.{module}"), name)


ALGORITHMS: dict[str, AlgorithmEntry] = {
    "efficient": AlgorithmEntry(
        "a sibling of Algorithm 1 for few episodes: stratified data, level fits, discovery",
        "efficient.algorithm:Efficient",
        {"default": EfficientConfig.efficient},
    ),
    "general": AlgorithmEntry(
        "latent states behind any observation, their number found: candidates judged by what they predict",
        "general.algorithm:General",
        {"default": GeneralConfig.general},
    ),
    "briee": AlgorithmEntry(
        "representation learning, bonus and planning, interleaved (Algorithm 1)",
        "paper.briee:BrieeAlgorithm",
        {"practical": BrieeConfig.practical, "paper": BrieeConfig.paper, "released": BrieeConfig.released},
    ),
    "reward-free": AlgorithmEntry(
        "explore without a reward, plan for any reward later (Algorithm 4)",
        "paper.reward_free:RewardFree",
        {"paper": BrieeConfig.paper, "released": BrieeConfig.released},
    ),
    "theory": AlgorithmEntry(
        "Algorithm 1 with the parameters of Theorem 1, on finitely many observations",
        "theory.algorithm:Theory",
        {"default": TheoryConfig.theory},
    ),
    "stationary": AlgorithmEntry(
        "one representation for all levels, pooled data, a discounted plan",
        "efficient.stationary:Stationary",
        {"default": StationaryConfig.efficient},
    ),
    "lsvi-ucb": AlgorithmEntry(
        "LSVI-UCB with the environment's true features",
        "baselines.lsvi_ucb:LsviUcb",
        {"paper": LsviUcbConfig.paper, "calibrated": LsviUcbConfig.calibrated},
    ),
    "lsvi-ucb-rff": AlgorithmEntry(
        "LSVI-UCB with random Fourier features",
        "baselines.lsvi_ucb:LsviUcbRff",
        {"paper": LsviRffConfig.paper},
    ),
    "ppo": AlgorithmEntry("PPO", "baselines.ppo:Ppo", {"paper": PpoConfig.paper}),
    "ppo-rnd": AlgorithmEntry(
        "PPO with random network distillation", "baselines.ppo:PpoRnd", {"paper": PpoConfig.paper_rnd}
    ),
    "boot-dqn": AlgorithmEntry(
        "Bootstrapped DQN with randomised priors",
        "baselines.boot_dqn:BootDqn",
        {"bsuite": BootDqnConfig.bsuite},
    ),
    "flambe": AlgorithmEntry(
        "FLAMBE: a model layer by layer, explored by an elliptical planner inside it",
        "baselines.flambe:Flambe",
        {"paper": FlambeConfig.paper},
    ),
    "homer": AlgorithmEntry(
        "HOMER: abstract states from a contrastive classifier, a homing policy for each",
        "baselines.homer:Homer",
        {"paper": HomerConfig.paper, "released": HomerConfig.released},
    ),
    "moffle": AlgorithmEntry(
        "MOFFLE: adversarially learned features, explored by fitted Q iteration",
        "baselines.moffle:Moffle",
        {"paper": MoffleConfig.paper},
    ),
    "musik": AlgorithmEntry(
        "MusIK: inverse kinematics level by level, then PSDP",
        "baselines.musik:Musik",
        {"paper": MusikConfig.paper},
    ),
    "olive": AlgorithmEntry(
        "OLIVE: optimism and elimination in an enumerated class, on finitely many observations",
        "baselines.olive:Olive",
        {"paper": OliveConfig.paper},
    ),
    "pcid": AlgorithmEntry(
        "PCID: states are clusters of backward probabilities, plans are made in counts",
        "baselines.pcid:Pcid",
        {"paper": PcidConfig.paper},
    ),
    "ppe": AlgorithmEntry(
        "PPE: paths that end alike are merged, for near-deterministic worlds with exogenous noise",
        "baselines.ppe:Ppe",
        {"paper": PpeConfig.paper},
    ),
    "rep-ucb": AlgorithmEntry(
        "Rep-UCB: maximum likelihood of a model, a bonus, a plan in the model",
        "baselines.rep_ucb:RepUcb",
        {"paper": RepUcbConfig.paper},
    ),
    "vox": AlgorithmEntry(
        "VoX: a barycentric spanner of adversarially learned features, found by PSDP",
        "baselines.vox:Vox",
        {"paper": VoxConfig.paper},
    ),
    **{
        f"sb3:{name}": AlgorithmEntry(
            f"{name} of Stable-Baselines3", "baselines.sb3:Sb3", {"paper": partial(Sb3Config.defaults, name)}
        )
        for name in ("PPO", "A2C", "DQN")
    },
}
DEFAULT_ALGORITHM = "efficient"
BASELINES = tuple(name for name, entry in ALGORITHMS.items() if entry.path.startswith("baselines."))
"""Names of the algorithms that BRIEE is compared with."""
RIVALS = (
    "boot-dqn",
    "flambe",
    "homer",
    "moffle",
    "musik",
    "olive",
    "pcid",
    "ppe",
    "rep-ucb",
    "vox",
)
"""Those among them that explore with guarantees, or are meant to: docs/rivals.md."""

RENAMED = {
    ("briee", "efficient"): ("efficient", "default"),
    ("briee", "theory"): ("theory", "default"),
    ("efficient", "efficient"): ("efficient", "default"),
    ("theory", "theory"): ("theory", "default"),
    ("stationary", "efficient"): ("stationary", "default"),
}
"""Names of version 0.1, when two algorithms were presets of `briee`, and their names now."""


def find(algorithm: str) -> AlgorithmEntry:
    """The entry of an algorithm; raises `ValueError` with a suggestion for unknown names."""
    if algorithm not in ALGORITHMS:
        raise ValueError(f"unknown algorithm {algorithm!r}{suggestion(algorithm, ALGORITHMS)}")
    return ALGORITHMS[algorithm]


class Choice(NamedTuple):
    """An algorithm and a preset of it, by name."""

    algorithm: str
    preset: str


def choose(algorithm: str | None, preset: str | None) -> Choice:
    """The algorithm and preset for names that may be missing or old; raises `ValueError` for unknown names.

    A preset without an algorithm selects the algorithm that has it: `practical`, `paper` and `released`
    belong to Algorithm 1; `efficient` and `theory` mean the algorithms of that name.
    """
    if algorithm is None:
        known = preset is None or preset in ALGORITHMS[DEFAULT_ALGORITHM].presets
        algorithm = DEFAULT_ALGORITHM if known else "briee"
    presets = find(algorithm).presets
    if preset is None:
        return Choice(algorithm, default_preset(algorithm))
    if (algorithm, preset) in RENAMED:
        return Choice(*RENAMED[algorithm, preset])
    if preset not in presets:
        raise ValueError(f"unknown preset of {algorithm} {preset!r}{suggestion(preset, presets)}")
    return Choice(algorithm, preset)


def preset(
    algorithm: str, name: str, horizon: int, env: Any = None, arguments: Mapping[str, Any] | None = None
) -> Any:
    """The configuration of a preset, a frozen dataclass; raises `ValueError` for unknown names.

    `env` is the name of an environment, with its `arguments`, or a pure environment; without one, rewards
    count as sparse.
    """
    algorithm, name = choose(algorithm, name)
    dense = env is not None and has_dense_rewards(env, arguments or {})
    return ALGORITHMS[algorithm].presets[name](horizon=horizon, dense=dense)


def default_preset(algorithm: str) -> str:
    """The preset used if none is named: the first."""
    return next(iter(find(algorithm).presets))
