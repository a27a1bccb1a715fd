"""Every algorithm on every kind of world, under one counter: where each one's assumptions hold and fail.

On locks a run is solved or not. Where even the best policy sometimes fails, a tolerance says how near is
enough.
"""

from functools import partial
from typing import Any

from briee.experiments.plots import plot_variants
from briee.experiments.setting import Experiment, Setting

SEEDS = (1, 12, 123)
"""The first three of the reporting seeds."""
World = tuple[str, int, tuple[tuple[str, Any], ...]]
LOCK: World = ("lock", 6, ())
UNEVEN: World = ("lock", 6, (("switch_probability", 0.1),))
ONE_LANE: World = ("lock", 6, (("num_good", 1), ("distractors", 8)))
RARE: World = ("lock", 6, (("rare_probability", 0.001),))
FINITE: World = ("finite-lock", 3, (("num_actions", 3),))
LONGER: World = ("lock", 12, ())
RUNS: tuple[tuple[str, str, int, tuple[World, ...]], ...] = (
    ("efficient", "default", 20_000, (LOCK, UNEVEN, ONE_LANE, RARE, LONGER)),
    ("rep-ucb", "paper", 20_000, (LOCK, UNEVEN, ONE_LANE, RARE, LONGER)),
    ("pcid", "paper", 30_000, (LOCK, UNEVEN, ONE_LANE, RARE)),
    ("musik", "paper", 100_000, (LOCK, UNEVEN, ONE_LANE, RARE, LONGER)),
    ("flambe", "paper", 50_000, (LOCK, UNEVEN, ONE_LANE, RARE, LONGER)),
    ("homer", "released", 250_000, (LOCK, UNEVEN, ONE_LANE, RARE, LONGER)),
    ("homer", "paper", 250_000, (LOCK, UNEVEN, ONE_LANE, RARE)),
    ("ppe", "paper", 100_000, (LOCK, UNEVEN, ONE_LANE, RARE)),
    ("vox", "paper", 150_000, (LOCK, UNEVEN, ONE_LANE, RARE)),
    ("moffle", "paper", 100_000, (LOCK, UNEVEN, ONE_LANE, RARE)),
    ("boot-dqn", "bsuite", 10_000, (LOCK,)),
    ("olive", "paper", 5_000_000, (FINITE,)),
)
"""Algorithm, preset, budget and worlds."""

FIGURE = Experiment(
    claim="Where their assumptions hold, all rivals but bootstrapped DQN open the lock; PCID fails where "
    "lanes mix evenly, PPE where the latent state is random.",
    settings=tuple(
        Setting(algorithm, preset, env, horizon, budget, seed, arguments=arguments)
        for seed in SEEDS
        for algorithm, preset, budget, worlds in RUNS
        for env, horizon, arguments in worlds
    ),
    plot=partial(plot_variants, panel="world"),
)
