"""Figure 2(c): dense lock, H = 30: returns against episodes, logarithmic (Section 5)."""

from pathlib import Path

from briee.experiments.plots import optimum, plot_curves
from briee.experiments.setting import SEEDS, Figure, Table, for_seeds, small


def plot(runs: Table, curves: Table, path: Path, caption: str) -> None:
    """Returns on a logarithmic axis of episodes; the optimum is 29 x 0.1 + 1 = 3.9."""
    plot_curves(curves, path, caption, window=5, optimum=optimum(runs), log=True)


PPO = ("ppo", "paper", "lock-dense", 30, 1_000_000)
HALF_STEP = (("rounds", 5), ("learning_rate", 5e-4))
"""With the paper's step size, which nothing anneals, PPO comes near the optimum and wavers there."""
SETTINGS = (
    *for_seeds(SEEDS, *PPO, changes=(("rounds", 5),)),
    *for_seeds(SEEDS, *PPO, changes=HALF_STEP, variant="half step"),
    *for_seeds(SEEDS, "briee", "efficient", "lock-dense", 30, 100_000),
    *for_seeds(SEEDS, "lsvi-ucb", "paper", "lock-dense", 30, 50_000),
    *for_seeds(SEEDS, "briee", "paper", "lock-dense", 30, 100_000),
)
FIGURE = Figure(
    claim="BRIEE reaches the optimal return 3.9 with orders of magnitude fewer episodes than PPO.",
    settings=SETTINGS,
    smoke=small(SETTINGS),
    plot=plot,
)
