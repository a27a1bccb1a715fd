"""FrozenLake with rich observations, one representation for all levels against one per level.

    python benchmarks/stationary.py [--out results/stationary] [--horizons 10] [--seeds 1 12 123]

Both learners have the same parts and settings, those of the preset `efficient`; what is shared differs.
Each run is a `briee train`, skipped where it is finished; table.csv collects their summaries.
"""

import argparse
import csv
import json
import subprocess
import sys
from pathlib import Path

LEARNERS = {
    "stationary": ["--algo", "stationary"],
    "per level": ["--algo", "briee", "--preset", "efficient"],
}
COLUMNS = ("learner", "horizon", "seed", "solved", "episodes_to_solve", "episodes", "final_return")


def train(learner: str, horizon: int, seed: int, out: Path) -> dict:
    """The summary of a run, which is made where it is missing."""
    run_dir = out / f"frozenlake-h{horizon}-{learner.replace(' ', '-')}-s{seed}"
    summary = run_dir / "summary.json"
    if not summary.exists() or not json.loads(summary.read_text())["finished"]:
        options = ["--rich", "hadamard", "--env.is_slippery", "False", "--num-latents", "17"]
        options += ["--horizon", str(horizon), "--seed", str(seed), "--episodes", "3000", "--resume"]
        command = ["train", "FrozenLake-v1", *LEARNERS[learner], *options, "--run-dir", str(run_dir)]
        subprocess.run([sys.executable, "-m", "briee", *command], check=True)
    return json.loads(summary.read_text())


def main() -> None:
    """Run what is missing and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("results/stationary"))
    parser.add_argument("--horizons", type=int, nargs="*", default=[10])
    parser.add_argument("--seeds", type=int, nargs="*", default=[1, 12, 123, 1234, 12345])
    args = parser.parse_args()
    rows = []
    for horizon in args.horizons:
        for learner in LEARNERS:
            for seed in args.seeds:
                summary = train(learner, horizon, seed, args.out)
                rows.append({"learner": learner} | {name: summary[name] for name in COLUMNS[1:]})
                with (args.out / "table.csv").open("w", newline="") as file:
                    writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
                    writer.writeheader()
                    writer.writerows(rows)


if __name__ == "__main__":
    main()
