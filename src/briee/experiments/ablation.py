"""Each difference between the text and the released program, switched one at a time at H = 6 and 12."""

from pathlib import Path
from typing import Any

from briee.experiments.plots import plot_episodes_to_solve
from briee.experiments.setting import QUICK_BRIEE, SEEDS, Figure, Table, for_seeds

SWITCHES: dict[str, tuple[tuple[str, Any], ...]] = {
    "64 discriminator steps": (("replearn.discriminator_steps", 64),),
    "two hidden layers": (("replearn.hidden_sizes", (256, 256)),),
    "no termination": (("replearn.ell", None),),
    "features first": (("replearn.first_player", "features"),),
    "alternating ascent": (("replearn.ascent", "alternating"),),
    "do not wait for the rival": (("replearn.wait_for_rival", False),),
    "bonus from all data": (("bonus.covariance", "all"),),
    "bonus without cap": (("bonus.cap", None),),
    "optimistic policy evaluated": (("evaluation.policy", "optimistic"),),
}
"""Changes of the preset `paper`, each towards `released`."""


def plot(runs: Table, curves: Table, path: Path, caption: str) -> None:
    """Episodes to solve of every variant."""
    plot_episodes_to_solve(runs, path, caption, {})


FIGURE = Figure(
    claim="The paper makes none: which of the differences matter has not been published.",
    settings=tuple(
        setting
        for H in (6, 12)
        for variant, changes in (("", ()), *SWITCHES.items())
        for setting in for_seeds(SEEDS, "briee", "paper", "lock", H, 60_000, changes=changes, variant=variant)
    ),
    smoke=QUICK_BRIEE,
    plot=plot,
)
