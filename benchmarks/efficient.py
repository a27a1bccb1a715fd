"""The efficient algorithm with the same settings on the sparse lock and on everything else it should solve.

    python benchmarks/efficient.py [--only lock-h25] [--output results/efficient]

Each run is the command a user would type, in its own process. For the sparse lock the compilation cache is
empty and `seconds` is the time of the whole process on two cores, including imports and compilation. Finished
runs are skipped, so the command can be repeated; checkpoints are not kept. If even the best policy reaches
the optimum only on average, a run has a fixed number of episodes and is judged by 2,000 further ones.
"""

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from briee.training.directory import make_manifest, write_table

PAPER = (1, 12, 123, 1234, 12345)
OTHERS = tuple(range(31, 41))
INSTANCES = tuple(range(201, 221))
LAKE = "FrozenLake-v1 --rich hadamard"


class Row(NamedTuple):
    """One row of the table: a command for several seeds."""

    name: str
    command: str
    budget: int
    seeds: tuple[int, ...] = PAPER
    on_average: bool = False
    timed: bool = False


ROWS = (
    *(Row(f"lock-h{H}", f"lock --horizon {H}", 40_000, timed=True) for H in (6, 12, 25, 50, 100)),
    Row("lock-h25-others", "lock --horizon 25", 40_000, OTHERS),
    Row("distractors-h12", "lock --horizon 12 --env.distractors 20", 10_000),
    Row("noise-h25", "lock --horizon 25 --env.noise 0.2", 20_000),
    Row("k6-h12", "lock --horizon 12 --num-latents 6", 10_000),
    Row("k6-h25", "lock --horizon 25 --num-latents 6", 10_000),
    Row("dense-h30", "lock-dense --horizon 30", 10_000),
    Row("rare-h12", "lock --horizon 12 --env.rare-probability 0.001", 10_000),
    Row("never-h12", "lock --horizon 12 --env.rare-probability 0", 10_000),
    Row("failures-h12", "lock --horizon 12 --env.failure-probability 0.1", 3_000, on_average=True),
    *(
        Row(
            f"random-{Z}",
            f"random-block --horizon 8 --env.num-latents {Z} --num-latents 6",
            2_000,
            INSTANCES[Z - 3 :: 4],
            on_average=True,
        )
        for Z in (3, 4, 5, 6)
    ),
    Row("k6-h50", "lock --horizon 50 --num-latents 6", 20_000, PAPER[:3]),
    Row("noise-h50", "lock --horizon 50 --env.noise 0.2", 20_000, PAPER[:3]),
    Row(
        "frozen-lake",
        f"{LAKE} --horizon 12 --env.is-slippery False --num-latents 16",
        5_000,
    ),
    Row(
        "frozen-lake-slippery",
        f"{LAKE} --num-latents 16 --horizon 40",
        5_000,
        PAPER[:3],
        on_average=True,
    ),
    Row(
        "frozen-lake-slippery-stationary",
        f"{LAKE} --num-latents 17 --horizon 40 --algo stationary",
        1_000,
        PAPER[:3],
        on_average=True,
    ),
    Row("deep-sea-10", "bsuite/deep_sea-v0 --env.size 10 --num-latents 10", 10_000),
    Row("deep-sea-20", "bsuite/deep_sea-v0 --env.size 20 --num-latents 20", 20_000, PAPER[:3]),
)


def briee(arguments: str, **environment: str) -> str:
    """Run `briee` and return its output."""
    command = [sys.executable, "-m", "briee", *shlex.split(arguments)]
    done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"briee {arguments}\n{done.stderr[-2000:]}")
    return done.stdout


def carry_out(row: Row, seed: int, folder: Path) -> dict[str, object]:
    """The outcome of one run, which is skipped if it is done."""
    run_dir = folder / f"{row.name}-s{seed}"
    outcome = run_dir / "outcome.json"
    if outcome.exists():
        return json.loads(outcome.read_text())
    arguments = f"train {row.command} --seed {seed} --episodes {row.budget}"
    with tempfile.TemporaryDirectory() as cache:
        began = time.monotonic()
        environment = {"JAX_COMPILATION_CACHE_DIR": cache} if row.timed else {}
        briee(f"{arguments} --run-dir {run_dir} --overwrite", **environment)
        seconds = time.monotonic() - began
    summary = json.loads((run_dir / "summary.json").read_text())
    result: dict[str, object] = {
        "row": row.name,
        "seed": seed,
        "solved": summary["solved"],
        "episodes": summary["episodes_to_solve"] or summary["episodes"],
        "final_return": summary["final_return"],
        "optimal_return": summary["optimal_return"],
        "seconds": round(seconds, 1) if row.timed else "",
        "command": f"briee {arguments}",
    }
    if row.on_average:
        judged = json.loads(briee(f"evaluate {run_dir} --episodes 2000 --json"))
        result |= {"solved": "", "final_return": judged["mean"]}
    shutil.rmtree(run_dir / "checkpoint")
    outcome.write_text(json.dumps(result, indent=2) + "\n")
    return result


def main() -> None:
    """Run every row and write table.csv with its manifest."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="rows whose name begins so")
    parser.add_argument("--output", type=Path, default=Path("results/efficient"))
    args = parser.parse_args()
    args.output.mkdir(parents=True, exist_ok=True)
    for row in ROWS:
        for seed in row.seeds if row.name.startswith(args.only) else ():
            print(carry_out(row, seed, args.output), flush=True)
    known = [args.output / f"{row.name}-s{seed}" / "outcome.json" for row in ROWS for seed in row.seeds]
    results = [json.loads(path.read_text()) for path in known if path.exists()]
    write_table(args.output / "table.csv", results)
    manifest = make_manifest(shlex.join(["python", *sys.argv]))
    (args.output / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n")


if __name__ == "__main__":
    main()
