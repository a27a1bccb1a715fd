"""Figure 2(b): simplex lock, H = 30: returns against episodes (Section 5)."""

from functools import partial

from briee.experiments.plots import plot_curves
from briee.experiments.setting import SEEDS, Experiment, for_seeds

PRECISE = (("evaluation.episodes", 1_000),)
"""No run is stopped: even the best policy fails in a third of the episodes. Means of many show when it is
reached."""
FIGURE = Experiment(
    claim="BRIEE matches the return of LSVI-UCB with the true features; PPO+RND fails.",
    settings=(
        *for_seeds(SEEDS, "lsvi-ucb", "paper", "lock-simplex", 30, 50_000),
        *for_seeds(SEEDS, "ppo-rnd", "paper", "lock-simplex", 30, 200_000, changes=(("rounds", 10),)),
        *for_seeds(SEEDS, "efficient", "default", "lock-simplex", 30, 3_000, changes=PRECISE),
        *for_seeds(SEEDS, "briee", "practical", "lock-simplex", 30, 3_000, changes=PRECISE),
        *for_seeds(SEEDS, "briee", "paper", "lock-simplex", 30, 150_000),
    ),
    plot=partial(plot_curves, window=50),
)
