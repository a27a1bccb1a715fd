"""FrozenLake with rich observations, one representation for all levels against one per level.

    python benchmarks/stationary.py [--out results/stationary] [--horizons 10] [--seeds 1 12 123]

Both learners have the same parts and settings, those of the preset `efficient`; what is shared differs.
Each run is a `briee train`, skipped where it is finished; table.csv collects their summaries.
"""

import argparse
from pathlib import Path

from briee.experiments.runner import trained, write_table
from briee.experiments.setting import SEEDS

LEARNERS = {"stationary": "--algo stationary", "per level": "--algo briee --preset efficient"}
COMMON = "FrozenLake-v1 --rich hadamard --env.is_slippery False --num-latents 17 --episodes 3000"
COLUMNS = ("horizon", "seed", "solved", "episodes_to_solve", "episodes", "final_return")


def main() -> None:
    """Run what is missing and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("results/stationary"))
    parser.add_argument("--horizons", type=int, nargs="*", default=[10])
    parser.add_argument("--seeds", type=int, nargs="*", default=SEEDS)
    args = parser.parse_args()
    rows = []
    for horizon in args.horizons:
        for learner, options in LEARNERS.items():
            for seed in args.seeds:
                run_dir = args.out / f"frozenlake-h{horizon}-{learner.replace(' ', '-')}-s{seed}"
                summary = trained(f"{COMMON} {options} --horizon {horizon} --seed {seed}", run_dir)
                rows.append({"learner": learner} | {name: summary[name] for name in COLUMNS})
                write_table(args.out / "table.csv", rows)


if __name__ == "__main__":
    main()
