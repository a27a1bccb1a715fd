"""Figure 1(b): episodes to solve against the horizon, sparse lock (Section 5)."""

from pathlib import Path

from briee.experiments.plots import plot_episodes_to_solve
from briee.experiments.setting import SEEDS, Experiment, for_seeds
from briee.training.directory import Table, read_table

REFERENCES = {
    "MusIK": ({25: 73_000, 50: 320_000, 100: 1_210_000}, "its authors' tuned budgets"),
    "HOMER": (
        {6: 121_000, 12: 242_000, 25: 505_000, 50: 1_010_000, 100: 2_020_000},
        "20,000 samples a level",
    ),
}
"""Published budgets, not runs of this package."""
MEASURED = {"MusIK": "musik paper", "HOMER": "homer released"}
"""Their lines in the tables of the experiment `rivals`, as far as they were run."""

LSVI = tuple(
    s for H in (100, 50, 25, 12, 6) for s in for_seeds(SEEDS, "lsvi-ucb", "paper", "lock", H, 400_000)
)
EFFICIENT = tuple(
    s for H in (100, 50, 25, 12, 6) for s in for_seeds(SEEDS, "efficient", "default", "lock", H, 200_000)
)
HALF_STEP = (("rounds", 10), ("learning_rate", 5e-4))
PPO = tuple(
    s
    for algorithm, H, budget in (
        ("ppo", 6, 200_000),
        ("ppo", 12, 200_000),
        ("ppo-rnd", 6, 1_000_000),
        ("ppo-rnd", 12, 1_000_000),
        ("ppo-rnd", 50, 200_000),
        ("ppo-rnd", 25, 1_000_000),
        ("ppo", 25, 200_000),
    )
    for s in for_seeds(SEEDS, algorithm, "paper", "lock", H, budget, changes=(("rounds", 10),))
) + for_seeds(SEEDS, "ppo-rnd", "paper", "lock", 25, 1_000_000, changes=HALF_STEP, variant="half step")
"""With the paper's step size PPO + RND unlearns at H = 25 what it has found: there half of it, too."""
PRODUCT = (("reading", "product"),)
RFF = tuple(
    s
    for H, budget in ((6, 10_000), (12, 15_000), (25, 10_000))
    for s in for_seeds(SEEDS, "lsvi-ucb-rff", "paper", "lock", H, budget)
) + for_seeds(SEEDS, "lsvi-ucb-rff", "paper", "lock", 6, 10_000, changes=PRODUCT, variant="product")
"""The paper does not say what "on top of (s, a)" means: at H = 6 both readings."""
PRACTICAL = tuple(
    s
    for H, budget in ((6, 8_000), (12, 8_000), (25, 8_000), (50, 16_000), (100, 32_000))
    for s in for_seeds(SEEDS, "briee", "practical", "lock", H, budget)
)
CALIBRATED = tuple(
    s for H in (6, 12, 25, 50, 100) for s in for_seeds(SEEDS, "lsvi-ucb", "calibrated", "lock", H, 32_000)
)
"""LSVI-UCB with the true features and the bonus of `practical`: the line to match."""
BRIEE = tuple(
    s
    for H, budget in ((6, 100_000), (12, 100_000), (25, 200_000), (50, 400_000), (100, 800_000))
    for preset in ("paper", "released")
    for s in for_seeds(SEEDS, "briee", preset, "lock", H, budget)
)


def plot(runs: Table, curves: Table, path: Path, caption: str) -> None:
    """The runs of this experiment, and HOMER's and MusIK's: as measured, else their published budgets."""
    found = read_table(path.parents[1] / "rivals" / "runs.csv")
    shown = {f"lock, H = {H}" for H in REFERENCES["HOMER"][0]}
    sparse = [row for row in found if row["world"] in shown]
    rivals = [row for row in sparse if row["label"] in MEASURED.values()]
    run = {(row["label"], int(row["horizon"])) for row in rivals}
    references = {
        name: ({H: n for H, n in points.items() if (MEASURED[name], H) not in run}, source)
        for name, (points, source) in REFERENCES.items()
    }
    left = {name: reference for name, reference in references.items() if reference[0]}
    plot_episodes_to_solve([*runs, *rivals], curves, path, caption, left)


FIGURE = Experiment(
    claim="BRIEE solves every horizon up to 100 with fewer episodes than HOMER; PPO+RND solves up to 25 and "
    "LSVI-UCB with random Fourier features up to 12.",
    settings=(*LSVI, *CALIBRATED, *EFFICIENT, *PRACTICAL, *PPO, *RFF, *BRIEE),
    plot=plot,
)
