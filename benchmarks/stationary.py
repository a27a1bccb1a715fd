"""FrozenLake with rich observations, one representation for all levels against one per level.

    python benchmarks/stationary.py [--out results/stationary] [--horizons 10] [--seeds 1 12 123]

Both learners have the same parts and settings. They differ in what the levels share. Each run is a
`briee train`, skipped if it is finished; table.csv collects all finished runs.
"""

import argparse
from pathlib import Path

from briee.experiments.finished import summaries
from briee.experiments.runner import trained
from briee.experiments.setting import SEEDS
from briee.training.directory import write_table

LEARNERS = {"stationary": "--algo stationary", "per level": "--algo efficient"}
COMMON = "FrozenLake-v1 --rich hadamard --env.is_slippery False --num-latents 17 --episodes 3000"
COLUMNS = ("horizon", "seed", "solved", "episodes_to_solve", "episodes", "final_return")


def name(learner: str, horizon: int | str, seed: int | str) -> str:
    """Name of a run's directory."""
    return f"frozenlake-h{horizon}-{learner.replace(' ', '-')}-s{seed}"


def collect(folder: Path) -> None:
    """Write the table of all finished runs."""
    rows = [
        {"learner": learner} | {column: summary[column] for column in COLUMNS}
        for learner in LEARNERS
        for summary in summaries(folder, name(learner, "*", "*"))
    ]
    write_table(folder / "table.csv", sorted(rows, key=lambda row: row["horizon"]))


def main() -> None:
    """Run what is missing and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("results/stationary"))
    parser.add_argument("--horizons", type=int, nargs="*", default=[10])
    parser.add_argument("--seeds", type=int, nargs="*", default=SEEDS)
    args = parser.parse_args()
    for horizon in args.horizons:
        for learner, options in LEARNERS.items():
            for seed in args.seeds:
                run_dir = args.out / name(learner, horizon, seed)
                trained(f"{COMMON} {options} --horizon {horizon} --seed {seed}", run_dir)
                collect(args.out)


if __name__ == "__main__":
    main()
