"""Ablations: of the paper's text against the released code, of `efficient`, and of the preset `practical`."""

from functools import partial
from math import log1p
from operator import attrgetter
from typing import Any

from briee.algorithms.general.config import CANDIDATES
from briee.algorithms.registry import preset
from briee.experiments.plots import plot_variants
from briee.experiments.setting import NEARLY, SEEDS, Experiment, Setting, for_seeds

# Each difference between the text and the released code, switched one at a time at H = 6 and 12. If both
# presets agree in a row of docs/deviations.md, the row is switched to its other reading. Rows without a
# variant make no difference here: the reward inside or outside the regression and the gradient through w
# are the same computation, the buffer of 10,000 transitions a level is never full at these horizons, the
# warm start begins at H = 50, and the coins of the start and of the last step are fair.

RELEASED: dict[str, tuple[str, ...]] = {
    "64 discriminator steps": ("replearn.discriminator_steps",),
    "no termination": ("replearn.ell",),
    "two hidden layers": ("replearn.hidden_sizes",),
    "features first": ("replearn.first_player",),
    "alternating ascent": ("replearn.ascent",),
    "do not wait for the rival": ("replearn.wait_for_rival",),
    "bonus from all data": ("bonus.covariance",),
    "Q clipped instead of the bonus": ("bonus.cap", "lsvi.clip"),
    "optimistic policy evaluated": ("evaluation.policy",),
}
"""Variants that set some fields of the preset `paper` as in `released`; together they set all that differ."""
OTHER: dict[str, tuple[tuple[str, Any], ...]] = {
    "first features of the last update": (("replearn.start", "previous"),),
    "0.01 on the mean loss": (("replearn.lam", 0.01),),
}
"""Variants with another reading of a row in which the presets agree."""
BUDGETS = {6: 12_000, 12: 60_000}


def switched(horizon: int) -> dict[str, tuple[tuple[str, Any], ...]]:
    """The changes of each variant to the preset `paper`."""
    released = preset("briee", "released", horizon, "lock")
    values = {name: attrgetter(name)(released) for fields in RELEASED.values() for name in fields}
    own = {variant: tuple((name, values[name]) for name in fields) for variant, fields in RELEASED.items()}
    return {"": ()} | own | OTHER


def variants(horizon: int, seed: int) -> list[Setting]:
    """All runs of a horizon and a seed; the last has all that `released` changes."""
    about = ("briee", "paper", "lock", horizon, BUDGETS[horizon], seed)
    runs = [Setting(*about, changes=changes, variant=name) for name, changes in switched(horizon).items()]
    noise = Setting(*about, variant="noise on H + 3 coordinates", arguments=(("noise_coordinates", "first"),))
    whole = Setting("briee", "released", "lock", horizon, BUDGETS[horizon], seed)
    return [*runs, noise, whole]


ABLATION = Experiment(
    claim="The paper makes none: which of the differences matter has not been published.",
    settings=tuple(setting for H in BUDGETS for seed in SEEDS for setting in variants(H, seed)),
    plot=plot_variants,
)

# Each ingredient of the algorithm `efficient` removed or replaced: on the sparse lock with H = 12 and 25,
# and with H = 12 and 20 loud distractors.

EFFICIENT_SEEDS = (21, 22, 23)
EFFICIENT_CHANGES: dict[str, tuple[tuple[str, Any], ...]] = {
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
"""Variants; refit all and K = 6 change the cost and the knowledge rather than an ingredient."""
EFFICIENT_BUDGET = 3_000

EFFICIENT = Experiment(
    claim="Without strata or novel states some locks stay shut, without the forward term one with "
    "distractors does; small updates save about two thirds of the episodes, rounds and the discovery rule "
    "up to two fifths.",
    settings=tuple(
        Setting("efficient", "default", "lock", H, EFFICIENT_BUDGET, seed, changes, variant, arguments)
        for H, arguments in ((12, ()), (25, ()), (12, (("distractors", 20),)))
        for variant, changes in EFFICIENT_CHANGES.items()
        for seed in EFFICIENT_SEEDS
    ),
    plot=partial(plot_variants, panel="world"),
)

# Each candidate of the algorithm `general` left out, and three of its rules: on the sparse lock, on rings, on
# images of moving shapes, and behind networks that differ from level to level, where no level can learn from
# another. A variant that could change nothing in a world has no runs there.


def without(name: str) -> tuple[tuple[str, Any], ...]:
    """The change that leaves out a candidate."""
    return (("fit.candidates", tuple(one for one in CANDIDATES if one != name)),)


GENERAL_SEEDS = (51, 52, 53)
GENERAL_CHANGES: dict[str, tuple[tuple[str, Any], ...]] = {
    "": (),
    **{f"no {name}": without(name) for name in CANDIDATES},
    "no joins": (("fit.joins", False),),
    "no fresh test": (("fit.fresh_test", False),),
    "no blind tries": (("explore.blind_hope", 0.0), ("explore.blind_tries", 0.01)),
}
OF_IMAGES, OF_VECTORS = ("no patches", "no both"), ("no quadratic", "no products")
PER_LEVEL = (("emission", "network"), ("rotation", "per_level"), ("num_actions", 4))
GENERAL_WORLDS = (
    (6, 400, (), (), OF_IMAGES),
    (5, 400, (("emission", "rings"), ("num_actions", 4)), NEARLY, OF_IMAGES),
    (5, 400, (("emission", "shapes"), ("num_actions", 4)), NEARLY, OF_VECTORS),
    (5, 1_000, PER_LEVEL, NEARLY, OF_IMAGES),
)
"""Horizon, budget, arguments, rule, and the variants that would change nothing."""

GENERAL = Experiment(
    claim="The paper makes none: the algorithm is not the paper's.",
    settings=tuple(
        Setting("general", "default", "lock", H, budget, seed, (*rule, *changes), variant, arguments)
        for H, budget, arguments, rule, same in GENERAL_WORLDS
        for variant, changes in GENERAL_CHANGES.items()
        for seed in GENERAL_SEEDS
        if variant not in same
    ),
    plot=partial(plot_variants, panel="world"),
)

# What each change from the preset `paper` to `practical` brings, and where RepLearn's game matters.
# `practical` with one change undone at a time, on sparse locks with H = 12 and 25 and fresh seeds; with and
# without the game where clusters mislead; and `practical` in further worlds, with the reporting seeds.

PROTOCOL_SEEDS = (101, 102, 103, 104, 105)
Changes = tuple[tuple[str, Any], ...]
NO_GAME: Changes = (("held_out.rounds", 0),)
PROTOCOL_VARIANTS = (
    "",
    "no game",
    "batch of the paper",
    "bonus of the paper",
    "ridge of the paper",
    "bonus and ridge of the paper",
    "temperature of the paper",
    "deviations only",
    "no clusters",
)


def undone(variant: str, H: int) -> Changes:
    """The fields of `practical` that a variant sets, as in `paper` where `paper` has them."""
    bonus = (("bonus.alpha", H / 5), ("bonus.lam", 1.0), ("lsvi.lam", 1.0))
    ridge = (("lsvi.prior", "zero"),)
    return {
        "": (),
        "no game": NO_GAME,
        "batch of the paper": (("collect.rounds", 1), ("collect.episodes", 50 * H)),
        "bonus of the paper": bonus,
        "ridge of the paper": ridge,
        "bonus and ridge of the paper": (*bonus, *ridge),
        "temperature of the paper": (("held_out.temperatures", (1.0,)),),
        "deviations only": (
            ("replearn.rows", "deviations"),
            ("lsvi.rows", "deviations"),
            ("bonus.covariance", "on_policy"),
        ),
        "no clusters": (("held_out.clusters", False),),
    }[variant]


def rule(c: float, H: int) -> Changes:
    """The bonus rule of `practical` with alpha = c / H."""
    lam = (c / H / 2) ** 2
    return (("bonus.alpha", c / H), ("bonus.lam", lam), ("lsvi.lam", lam))


CHOICES: dict[str, Changes] = {
    "alpha = 2/H": rule(2, 25),
    "alpha = 10/H": rule(10, 25),
    "20 episodes an update": (("collect.episodes", 20),),
    "five rounds": (("collect.rounds", 5),),
    "half of the episodes deviate": (("collect.deviating", 0.5),),
    "no episode deviates": (("collect.deviating", 0.0),),
    "learned after one new cell": (("replearn.growth", 0.8 * log1p(100)),),  # lam = 0.01
}
"""Other values of what `practical` chooses, at H = 25."""


def protocol_budget(variant: str, H: int) -> int:
    """Episodes of a run: several times what `practical` needs. Large batches cost less time an episode."""
    return 1_000 * H if variant == "batch of the paper" else 3_000


def protocol(H: int) -> tuple[Setting, ...]:
    """All variants at one horizon."""
    return tuple(
        Setting(
            "briee", "practical", "lock", H, protocol_budget(variant, H), seed, undone(variant, H), variant
        )
        for variant in PROTOCOL_VARIANTS
        for seed in PROTOCOL_SEEDS
    )


DISTRACTED = ("briee", "practical", "lock", 12, 3_000)
LOUD = (("distractors", 20),)
SLOW = (("exogenous", 17),)
BENT = (("emission", "network"), ("num_actions", 5))
PROTOCOL_WORLDS = (
    *for_seeds(SEEDS, *DISTRACTED, arguments=LOUD),
    *for_seeds(SEEDS, *DISTRACTED, arguments=LOUD, changes=NO_GAME, variant="no game"),
    *for_seeds(SEEDS, *DISTRACTED, arguments=SLOW),
    *for_seeds(SEEDS, *DISTRACTED, arguments=SLOW, changes=NO_GAME, variant="no game"),
    *(
        setting
        for variant, changes in (("", NEARLY), ("no game", (*NEARLY, *NO_GAME)))
        for setting in for_seeds(
            SEEDS, "briee", "practical", "lock", 8, 3_000, arguments=BENT, changes=changes, variant=variant
        )
    ),
    *for_seeds(SEEDS, "briee", "practical", "lock", 30, 8_000),
    *(
        setting
        for temperature, tolerance in ((0.5, 0.02), (1.0, 0.028))
        for setting in for_seeds(
            SEEDS, "briee", "practical", "lock-simplex", 30, 5_000,
            arguments=(("temperature", temperature),),
            changes=(("evaluation.episodes", 1_000), ("evaluation.tolerance", tolerance)),
        )
    ),
)  # fmt: skip
"""Twenty loud distractors, 17 slow exogenous processes and observations behind a nonlinear network, with and
without the game (behind the network with linear decoders, because the game on held-out rows has no others);
the sparse lock beside the dense one of Figure 2(c); low-rank locks with softer features, solved if the mean
return is within 3 % of the optimum."""

PROTOCOL = Experiment(
    claim="The paper makes none: how many episodes each change of its protocol saves has not been published.",
    settings=(
        *protocol(12),
        *PROTOCOL_WORLDS,
        *protocol(25),
        *(
            Setting("briee", "practical", "lock", 25, 3_000, seed, changes, variant)
            for variant, changes in CHOICES.items()
            for seed in PROTOCOL_SEEDS
        ),
    ),
    plot=partial(plot_variants, panel="world", scale="log"),
)
