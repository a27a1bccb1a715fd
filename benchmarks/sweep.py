"""What `briee sweep` costs: the launcher's overhead, and two workers against one.

    python benchmarks/sweep.py [--runs 6] [--output FILE.json]

The runs are those of `--algo efficient` on locks of horizon 12, about ten seconds each. They are carried out
one after another by hand, by a launcher with one worker and by one with two, with one core each and a warm
compilation cache. Overhead is the launcher's time beyond the time by hand; the bounds are 3 % and 1.7 times.
"""

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TOML = """
env = "lock"
horizon = 12
seed = {seeds}
episodes = 4000
evaluation.streak = 1000
"""


def timed(*command: str) -> float:
    """Seconds that a command takes."""
    began = time.perf_counter()
    variables = os.environ | {"BRIEE_CORES": "1"}
    subprocess.run(
        [sys.executable, "-m", "briee", *command], check=True, stdout=subprocess.DEVNULL, env=variables
    )
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=6)
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    seeds = list(range(1, args.runs + 1))
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "runs.toml").write_text(TOML.format(seeds=seeds))
        train = shlex.split("train lock --horizon 12 --episodes 4000 --evaluation.streak 1000 --run-dir")
        timed(*train, str(root / "warm"))
        by_hand = [timed(*train, str(root / f"s{seed}"), "--seed", str(seed)) for seed in seeds]
        sweep = ("sweep", str(root / "runs.toml"), "--cores", "1", "--out")
        one = timed(*sweep, str(root / "one"), "--workers", "1")
        two = timed(*sweep, str(root / "two"), "--workers", "2")
        idle = timed(*sweep, str(root / "two"), "--workers", "2")
    found = {
        "runs": args.runs,
        "seconds_per_run": sum(by_hand) / len(by_hand),
        "overhead": one / sum(by_hand) - 1,
        "two_workers_over_one": one / two,
        "seconds_nothing_to_do": idle,
    }
    print(json.dumps(found, indent=2))
    if args.output:
        args.output.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
