"""What each change from the preset `paper` to `practical` brings, and where RepLearn's game matters.

`practical` with one change undone at a time, on sparse locks with H = 12 and 25 and fresh seeds; with and
without the game where clusters mislead; and `practical` in further worlds, with the reporting seeds.
"""

from functools import partial
from typing import Any

from briee.experiments.plots import plot_variants
from briee.experiments.setting import SEEDS as REPORTED
from briee.experiments.setting import Experiment, Setting, for_seeds

SEEDS = (101, 102, 103, 104, 105)
Changes = tuple[tuple[str, Any], ...]
NO_GAME: Changes = (("held_out.rounds", 0),)
VARIANTS = (
    "",
    "no game",
    "batch of the paper",
    "bonus of the paper",
    "deviations only",
    "no clusters",
)


def changes(variant: str, H: int) -> Changes:
    """The fields of `practical` that a variant sets, as in `paper` where `paper` has them."""
    return {
        "": (),
        "no game": NO_GAME,
        "batch of the paper": (("collect.rounds", 1), ("collect.episodes", 50 * H)),
        "bonus of the paper": (("bonus.alpha", H / 5), ("bonus.lam", 1.0), ("lsvi.lam", 1.0)),
        "deviations only": (
            ("replearn.rows", "deviations"),
            ("lsvi.rows", "deviations"),
            ("bonus.covariance", "on_policy"),
        ),
        "no clusters": (("held_out.clusters", False),),
    }[variant]


def budget(variant: str, H: int) -> int:
    """Episodes of a run: several times what `practical` needs. Large batches cost less time an episode."""
    return 1_000 * H if variant == "batch of the paper" else 3_000


def ablation(H: int) -> tuple[Setting, ...]:
    """All variants at one horizon."""
    return tuple(
        Setting("briee", "practical", "lock", H, budget(variant, H), seed, changes(variant, H), variant)
        for variant in VARIANTS
        for seed in SEEDS
    )


DISTRACTED = ("briee", "practical", "lock", 12, 3_000)
LOUD = (("distractors", 20),)
SLOW = (("exogenous", 17),)
WORLDS = (
    *for_seeds(REPORTED, *DISTRACTED, arguments=LOUD),
    *for_seeds(REPORTED, *DISTRACTED, arguments=LOUD, changes=NO_GAME, variant="no game"),
    *for_seeds(REPORTED, *DISTRACTED, arguments=SLOW),
    *for_seeds(REPORTED, *DISTRACTED, arguments=SLOW, changes=NO_GAME, variant="no game"),
    *for_seeds(REPORTED, "briee", "practical", "lock", 30, 8_000),
    *(
        setting
        for temperature, tolerance in ((0.5, 0.02), (1.0, 0.028))
        for setting in for_seeds(
            REPORTED, "briee", "practical", "lock-simplex", 30, 5_000,
            arguments=(("temperature", temperature),),
            changes=(("evaluation.episodes", 1_000), ("evaluation.tolerance", tolerance)),
        )
    ),
)  # fmt: skip
"""Twenty loud distractors and 17 slow exogenous processes, with and without the game; the sparse lock beside
the dense one of Figure 2(c); low-rank locks with softer features, solved if the mean return is within 3 % of
the optimum."""

FIGURE = Experiment(
    claim="The paper makes none: how many episodes each change of its protocol saves has not been published.",
    settings=(*ablation(12), *WORLDS, *ablation(25)),
    plot=partial(plot_variants, panel="world"),
)
