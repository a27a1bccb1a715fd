"""Each difference between the text and the released code, switched one at a time at H = 6 and 12.

If both presets agree in a row of docs/deviations.md, the row is switched to its other reading. Rows without a
variant make no difference here: the reward inside or outside the regression and the gradient through w are
the same computation, the buffer of 10,000 transitions a level is never full at these horizons, the warm start
begins at H = 50, and the coins of the start and of the last step are fair.
"""

from operator import attrgetter
from typing import Any

from briee.algorithms.registry import preset
from briee.experiments.plots import plot_variants
from briee.experiments.setting import SEEDS, Experiment, Setting

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


FIGURE = Experiment(
    claim="The paper makes none: which of the differences matter has not been published.",
    settings=tuple(setting for H in BUDGETS for seed in SEEDS for setting in variants(H, seed)),
    plot=plot_variants,
)
