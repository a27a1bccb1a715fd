"""BRIEE on environments of other projects: episodes until it solves them, five seeds each.

    python benchmarks/environments.py [--workers 2] [--seeds 1 12] [--only deep-sea] [--dir DIR]

Every run is a `briee train` in a directory of its own. Finished runs are kept and interrupted ones continued,
so the command may be given again at any time; at the end it writes episodes.csv from the runs' summaries.
"""

import argparse
import csv
import json
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

RUNS = {
    "frozen-lake": "FrozenLake-v1 --rich hadamard --horizon 12 --env.is_slippery False --num-latents 16",
    "deep-sea": "bsuite/deep_sea-v0 --env.size 10 --rich noise --num-latents 10",
}
"""What `briee train` is told, by name of the environment."""
COMMON = "--preset efficient --episodes 20000 --workers 1"
SEEDS = (1, 12, 123, 1234, 12345)
COLUMNS = ("solved", "episodes_to_solve", "episodes", "env_steps", "final_return", "optimal_return")


def run_dir(root: Path, name: str, seed: int) -> Path:
    """Where a run goes."""
    return root / f"{name}-s{seed}"


def summary(path: Path) -> dict:
    """The outcome of a run, empty while there is none."""
    file = path / "summary.json"
    return json.loads(file.read_text()) if file.exists() else {}


def train(root: Path, name: str, seed: int) -> str:
    """Do one run, or what is left of it; returns a line that tells its outcome."""
    path = run_dir(root, name, seed)
    if not summary(path).get("finished"):
        how = f"{RUNS[name]} {COMMON} --seed {seed} --run-dir {shlex.quote(str(path))} --resume"
        command = [sys.executable, "-m", "briee", "train", *shlex.split(how)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            return f"{name}, seed {seed}: {done.stderr.strip()}"
    outcome = summary(path)
    solved = outcome["episodes_to_solve"]
    return f"{name}, seed {seed}: " + (f"solved after {solved} episodes" if solved else "not solved")


def write_table(root: Path, path: Path) -> None:
    """One row for each finished run."""
    with open(path, "w", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(["environment", "seed", *COLUMNS, "seconds"])
        for name in RUNS:
            for seed in SEEDS:
                outcome = summary(run_dir(root, name, seed))
                if outcome.get("finished"):
                    seconds = f"{outcome['seconds']['total']:.1f}"
                    table.writerow([name, seed, *(outcome[column] for column in COLUMNS), seconds])


def main() -> None:
    """Run what is missing and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--workers", type=int, default=1, help="runs at the same time")
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    parser.add_argument("--only", choices=[*RUNS], help="one environment alone")
    parser.add_argument("--dir", type=Path, default=Path("results/environments"))
    args = parser.parse_args()
    wanted = [(name, seed) for seed in args.seeds for name in ([args.only] if args.only else RUNS)]
    with ThreadPoolExecutor(args.workers) as pool:
        for line in pool.map(lambda run: train(args.dir, *run), wanted):
            print(line, flush=True)
    write_table(args.dir, args.dir / "episodes.csv")


if __name__ == "__main__":
    main()
