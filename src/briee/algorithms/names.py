"""Names in words and colours of algorithms: the same in every figure and report.

A *label* is what tables have: the algorithm, its preset unless that is `default`, and perhaps a variant, as
in `ppo-rnd paper half step`. Imports no JAX.
"""

from collections.abc import Sequence
from typing import NamedTuple

from briee.algorithms.registry import ALGORITHMS

LOOKS: dict[str, tuple[str, str]] = {
    "efficient": ("efficient (the default)", "#2f6fc1"),
    "general": ("general (finds K itself)", "#1d9fd8"),
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
