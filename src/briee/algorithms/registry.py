"""Algorithms and their presets by name. Imports no JAX before a class is loaded.

To add an algorithm, write its class and its configuration in a package of this one and add one entry to
`ALGORITHMS`. Figures and reports take its name in words and its colour from `LOOKS`. A *label* is what
tables have: the algorithm, its preset unless that is `default`, and perhaps a variant, as in `ppo-rnd paper
half step`.
"""

import importlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from briee.algorithms.baselines.config import (
    FlambeConfig,
    LsviRffConfig,
    LsviUcbConfig,
    MoffleConfig,
    PpoConfig,
    RepUcbConfig,
    Sb3Config,
    VoxConfig,
)
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
    "general": AlgorithmEntry(
        "latent states behind any observation, their number found: candidates judged by what they predict",
        "general.algorithm:General",
        {"default": GeneralConfig.general},
    ),
    "efficient": AlgorithmEntry(
        "a sibling of Algorithm 1 for few episodes: stratified data, level fits, discovery",
        "efficient.algorithm:Efficient",
        {"default": EfficientConfig.efficient},
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
DEFAULT_ALGORITHM = "general"
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


LOOKS: dict[str, tuple[str, str]] = {
    "efficient": ("efficient", "#2f6fc1"),
    "general": ("general (the default)", "#1d9fd8"),
    "briee": ("BRIEE, Algorithm 1", "#e0862a"),
    "reward-free": ("BRIEE, Algorithm 4 (reward-free)", "#8c6d46"),
    "theory": ("BRIEE with exact oracles", "#7a6fd0"),
    "stationary": ("stationary (one representation)", "#4aa3b8"),
    "lsvi-ucb": ("LSVI-UCB, true features", "#2f9e77"),
    "lsvi-ucb-rff": ("LSVI-UCB, random Fourier features", "#8a8f2a"),
    "ppo": ("PPO", "#b5529c"),
    "ppo-rnd": ("PPO + RND", "#c94f4f"),
    "boot-dqn": ("Bootstrapped DQN", "#5c6573"),
    "flambe": ("FLAMBE", "#d4a017"),
    "homer": ("HOMER", "#a8485f"),
    "moffle": ("MOFFLE", "#6b8e23"),
    "musik": ("MusIK", "#1f8a8a"),
    "olive": ("OLIVE", "#6d7d3c"),
    "pcid": ("PCID", "#d66fa0"),
    "ppe": ("PPE", "#9a6fb0"),
    "rep-ucb": ("Rep-UCB", "#3d9140"),
    "vox": ("VoX", "#b06a3b"),
    "sb3:PPO": ("PPO of Stable-Baselines3", "#d98cc0"),
    "sb3:A2C": ("A2C of Stable-Baselines3", "#8f9bb3"),
    "sb3:DQN": ("DQN of Stable-Baselines3", "#b3a28f"),
}
"""Name in words and colour; the colours are readable on a light and on a dark background."""
OTHER = "#888888"
PRESETS = {
    "paper": "as in the paper",
    "released": "as in the released code",
    "practical": "practical",
    "calibrated": "calibrated bonus",
}
VARIANTS = {"half step": "half the step size", "product": "features times actions"}
STYLES = (("o", "-"), ("s", "--"), ("D", ":"), ("^", "-."), ("v", "-"), ("P", "--"), ("*", ":"))


class Label(NamedTuple):
    """The parts of a label."""

    algorithm: str
    preset: str
    variant: str


def parse(label: str) -> Label:
    """The parts of a label, as tables have it or with a comma before the variant."""
    name, _, rest = label.replace(",", " ", 1).partition(" ")
    presets = ALGORITHMS[name].presets if name in ALGORITHMS else {}
    first, _, variant = rest.strip().partition(" ")
    return Label(name, first, variant.strip()) if first in presets else Label(name, "", rest.strip())


def in_words(label: str) -> str:
    """`PPO + RND, half the step size` of `ppo-rnd paper half step`.

    The preset is said only if the algorithm has several.
    """
    algorithm, preset, variant = parse(label)
    name = LOOKS.get(algorithm, (algorithm, ""))[0]
    if preset and len(ALGORITHMS[algorithm].presets) > 1:
        name += f" ({PRESETS.get(preset, preset)})"
    return f"{name}, {VARIANTS.get(variant, variant)}" if variant else name


def colour(label: str) -> str:
    """The colour of a label's algorithm, `#rrggbb`."""
    return LOOKS.get(parse(label).algorithm, ("", OTHER))[1]


def style(label: str, labels: Sequence[str]) -> tuple[str, str]:
    """Marker and line style, because presets and variants of one algorithm share its colour."""
    own = {other for other in labels if parse(other).algorithm == parse(label).algorithm}
    return STYLES[sorted(own, key=_plainness).index(label) % len(STYLES)]


def _plainness(label: str) -> tuple[bool, int, str]:
    """Labels without a variant first, presets in the order of the registry."""
    algorithm, preset, variant = parse(label)
    presets = list(ALGORITHMS[algorithm].presets) if preset else [preset]
    return bool(variant), presets.index(preset), variant
