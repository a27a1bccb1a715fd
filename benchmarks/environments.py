"""BRIEE on environments of other projects: episodes until it solves them, five seeds each.

    python benchmarks/environments.py [--workers 2] [--seeds 1 12] [--only deep-sea] [--dir DIR]

Every run is a `briee train` in its own directory. The command can be repeated at any time: finished runs are
kept, interrupted ones continue. episodes.csv has all finished runs.
"""

import argparse
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from briee.experiments.finished import summaries
from briee.experiments.runner import trained
from briee.experiments.setting import SEEDS
from briee.training.directory import write_table

RUNS = {
    "frozen-lake": "FrozenLake-v1 --rich hadamard --horizon 12 --env.is_slippery False --num-latents 16",
    "deep-sea": "bsuite/deep_sea-v0 --env.size 10 --rich noise --num-latents 10",
}
"""Arguments of `briee train`, by environment."""
COMMON = "--preset efficient --episodes 20000 --workers 1"
COLUMNS = ("solved", "episodes_to_solve", "episodes", "env_steps", "final_return", "optimal_return")


def carry_out(folder: Path, name: str, seed: int) -> None:
    """Make one run, unless it is done."""
    summary = trained(f"{RUNS[name]} {COMMON} --seed {seed}", folder / f"{name}-s{seed}")
    print(f"{name}, seed {seed}: {summary['episodes_to_solve'] or 'not solved'}", flush=True)


def row(name: str, summary: dict[str, Any]) -> dict[str, Any]:
    """The outcome of one run."""
    outcome = {column: summary[column] for column in COLUMNS}
    seconds = f"{summary['seconds']['total']:.1f}"
    return {"environment": name, "seed": summary["seed"]} | outcome | {"seconds": seconds}


def main() -> None:
    """Run what is missing and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--workers", type=int, default=1, help="runs at the same time")
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    parser.add_argument("--only", choices=[*RUNS], help="one environment alone")
    parser.add_argument("--dir", type=Path, default=Path("results/environments"))
    args = parser.parse_args()
    wanted = [(args.dir, name, seed) for name in ([args.only] if args.only else RUNS) for seed in args.seeds]
    with ThreadPoolExecutor(args.workers) as pool:
        list(pool.map(lambda run: carry_out(*run), wanted))
    rows = [row(name, summary) for name in RUNS for summary in summaries(args.dir, f"{name}-s*")]
    write_table(args.dir / "episodes.csv", rows)


if __name__ == "__main__":
    main()
