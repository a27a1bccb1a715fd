"""Each ingredient of the efficient preset removed or replaced: sparse lock, H = 12 and 25, and the lock of
horizon 12 with 20 loud distractors."""

from pathlib import Path
from typing import Any

from briee.experiments.plots import plot_variants
from briee.experiments.setting import Figure, Table, for_seeds, small

SEEDS = (21, 22, 23)
CHANGES: dict[str, tuple[tuple[str, Any], ...]] = {
    "": (),
    "no strata": (("strata.stratified", False),),
    "no forward term": (("fit.forward", 0.0),),
    "no compact term": (("fit.compact", 0.0),),
    "no novel states": (("fit.radius", 1e9),),
    "no merged parts": (("fit.apart", 0.0),),
    "two tries": (("explore.rule", "tries"),),
    "bonus": (("explore.rule", "bonus"),),
    "refit all": (("refit.growth", 0.0), ("refit.max_levels", 26)),
    "one round": (("explore.rounds", 1),),
    "100 episodes an update": (("explore.episodes", 100), ("explore.rounds", 1)),
    "K = 6": (("num_latents", 6),),
}
"""Variants of the preset; refit all and K = 6 change its cost and its knowledge rather than a part."""
BUDGET = 3_000


def plot(runs: Table, curves: Table, path: Path, caption: str) -> None:
    """Episodes to solve of every variant, a panel for each environment."""
    plot_variants(runs, path, caption)


SETTINGS = tuple(
    setting
    for H, arguments in ((12, ()), (25, ()), (12, (("distractors", 20),)))
    for variant, changes in CHANGES.items()
    for setting in for_seeds(
        SEEDS, "briee", "efficient", "lock", H, BUDGET, changes=changes, variant=variant, arguments=arguments
    )
)
FIGURE = Figure(
    claim="Without strata or novel states some locks stay shut, without the forward term one with "
    "distractors does; small updates save about two thirds of the episodes, rounds and the discovery rule "
    "up to two fifths.",
    settings=SETTINGS,
    smoke=small(SETTINGS),
    plot=plot,
)
