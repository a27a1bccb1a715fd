"""Figure 2(b): simplex lock, H = 30: returns against episodes (Section 5)."""

from pathlib import Path

from briee.experiments.plots import optimum, plot_curves
from briee.experiments.setting import SEEDS, Figure, Table, for_seeds, small


def plot(runs: Table, curves: Table, path: Path, caption: str) -> None:
    """Moving averages over 50 evaluations, and the optimum by dynamic programming."""
    plot_curves(curves, path, caption, window=50, optimum=optimum(runs))


SETTINGS = (
    *for_seeds(SEEDS, "lsvi-ucb", "paper", "lock-simplex", 30, 50_000),
    *for_seeds(SEEDS, "ppo-rnd", "paper", "lock-simplex", 30, 200_000, changes=(("rounds", 10),)),
    *for_seeds(SEEDS, "briee", "paper", "lock-simplex", 30, 150_000),
)
FIGURE = Figure(
    claim="BRIEE matches the return of LSVI-UCB with the true features; PPO+RND fails.",
    settings=SETTINGS,
    smoke=small(SETTINGS),
    plot=plot,
)
