"""Episodes to solve, or returns, in many environments.

    python benchmarks/worlds.py [--only lock-h25] [--output results/worlds]

The algorithms `general` and `efficient` with the same settings on the sparse lock and on everything else they
should solve, `stationary` where the step does not matter, and Algorithm 1 with other decoders than the linear
one. Each run is the command a user would type, in its own process and directory. For the sparse lock the
compilation cache is empty and `process_seconds` is the time of the whole process on two cores, including
imports and compilation. If even the best policy reaches the optimum only on average, a run has a fixed
number of episodes and is judged by 2,000 further ones (`judged_return`). Runs that are in runs.csv or
finished are skipped, so the command can be repeated.
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

from briee.experiments.fingerprint import Fingerprints
from briee.experiments.tables import (
    Row,
    curve_of,
    origin_of,
    read_curves,
    read_origins,
    row_of,
    write_curves,
    write_runs,
)
from briee.training.directory import read_table

PAPER = (1, 12, 123, 1234, 12345)
OTHERS = tuple(range(31, 41))
INSTANCES = tuple(range(201, 221))
LAKE = "FrozenLake-v1 --rich hadamard"
SMALL_LAKE = f"{LAKE} --env.is-slippery False --num-latents 17 --horizon 10"
EXTRA = ("process_seconds", "judged_return")
"""Columns of runs.csv beside those of every experiment."""


class World(NamedTuple):
    """One environment and algorithm: a command for several seeds."""

    name: str
    command: str
    budget: int
    seeds: tuple[int, ...] = PAPER
    on_average: bool = False
    timed: bool = False

    @property
    def options(self) -> str:
        """The options of the command; worlds without an algorithm are those of `efficient`."""
        options = self.command.partition(" ")[2]
        named = "--algo" in options or self.name.startswith("general-")
        return options if named else f"--algo efficient {options}"


SMALL = "--horizon 8 --env.num-actions 5"
NEARLY = "--evaluation.episodes 100 --evaluation.tolerance 0.03"
"""The rule for observations that even the best decoder misreads now and then."""
EXOGENOUS = "--env.emission modes --env.modes 1 --env.exogenous 17"
EMISSIONS = {
    "modes": "--env.emission modes",
    "rings": "--env.emission rings",
    "network": "--env.emission network",
    "network-per-level": "--env.emission network --env.rotation per_level",
    "digits": "--env.emission digits",
    "shapes": "--env.emission shapes",
}
GENERAL = (
    *(World(f"general-lock-h{H}", f"lock --horizon {H}", 5_000, timed=True) for H in (6, 12, 25, 50, 100)),
    World("general-distractors-h12", "lock --horizon 12 --env.distractors 20", 5_000),
    World("general-noise-h25", "lock --horizon 25 --env.noise 0.2", 6_000),
    World("general-exogenous-h8", f"lock {SMALL} {EXOGENOUS}", 2_000),
    World("general-heavy-h8", f"lock {SMALL} {NEARLY} --env.degrees-of-freedom 2.5", 2_000),
    *(World(f"general-{name}-h8", f"lock {SMALL} {NEARLY} {how}", 1_500) for name, how in EMISSIONS.items()),
    World("general-dense-h30", "lock-dense --horizon 30", 5_000),
    World("general-rare-h12", "lock --horizon 12 --env.rare-probability 0.001", 5_000),
    World("general-failures-h12", "lock --horizon 12 --env.failure-probability 0.1", 3_000, on_average=True),
    World("general-simplex-h30", "lock-simplex --horizon 30", 3_000, PAPER[:3], on_average=True),
    *(
        World(
            f"general-random-{Z}",
            f"random-block --horizon 8 --env.num-latents {Z}",
            2_000,
            INSTANCES[Z - 3 :: 4],
            on_average=True,
        )
        for Z in (3, 4, 5, 6)
    ),
    World("general-image-h12", f"lock --horizon 12 {NEARLY} --env.emission image", 2_000, PAPER[:2]),
    *(
        World(f"general-{name}-h12", f"lock --horizon 12 {NEARLY} {how}", 2_000, PAPER[:2])
        for name, how in EMISSIONS.items()
    ),
)
"""The default algorithm, which is not told the number of latent states."""

WORLDS = (
    *GENERAL,
    *(World(f"lock-h{H}", f"lock --horizon {H}", 40_000, timed=True) for H in (6, 12, 25, 50, 100)),
    World("lock-h25-others", "lock --horizon 25", 40_000, OTHERS),
    World("distractors-h12", "lock --horizon 12 --env.distractors 20", 10_000),
    World("noise-h25", "lock --horizon 25 --env.noise 0.2", 20_000),
    World("k6-h12", "lock --horizon 12 --num-latents 6", 10_000),
    World("k6-h25", "lock --horizon 25 --num-latents 6", 10_000),
    World("dense-h30", "lock-dense --horizon 30", 10_000),
    World("rare-h12", "lock --horizon 12 --env.rare-probability 0.001", 10_000),
    World("never-h12", "lock --horizon 12 --env.rare-probability 0", 10_000),
    World(
        "failures-h12",
        "lock --horizon 12 --env.failure-probability 0.1",
        3_000,
        on_average=True,
    ),
    *(
        World(
            f"random-{Z}",
            f"random-block --horizon 8 --env.num-latents {Z} --num-latents 6",
            2_000,
            INSTANCES[Z - 3 :: 4],
            on_average=True,
        )
        for Z in (3, 4, 5, 6)
    ),
    World("k6-h50", "lock --horizon 50 --num-latents 6", 20_000, PAPER[:3]),
    World("noise-h50", "lock --horizon 50 --env.noise 0.2", 20_000, PAPER[:3]),
    World(
        "frozen-lake",
        f"{LAKE} --horizon 12 --env.is-slippery False --num-latents 16",
        5_000,
    ),
    World(
        "frozen-lake-slippery",
        f"{LAKE} --num-latents 16 --horizon 40",
        5_000,
        PAPER[:3],
        on_average=True,
    ),
    World(
        "frozen-lake-slippery-stationary",
        f"{LAKE} --num-latents 17 --horizon 40 --algo stationary",
        1_000,
        PAPER[:3],
        on_average=True,
    ),
    World("deep-sea-10", "bsuite/deep_sea-v0 --env.size 10 --num-latents 10", 10_000),
    World("deep-sea-20", "bsuite/deep_sea-v0 --env.size 20 --num-latents 20", 20_000, PAPER[:3]),
    World(
        "deep-sea-10-noise",
        "bsuite/deep_sea-v0 --env.size 10 --rich noise --num-latents 10",
        20_000,
    ),
    World("frozen-lake-h10-stationary", f"{SMALL_LAKE} --algo stationary", 3_000),
    World("frozen-lake-h10-per-level", f"{SMALL_LAKE}", 3_000),
    World(
        "image-lock-h5-cnn",  # images of 28 x 28, one for each latent state; linear discriminators
        "lock --algo briee --preset paper --decoder cnn --horizon 5 --env.emission image --env.num_actions 5 "
        "--env.templates 1 --features.first-temperature 1 --collect.episodes-per-level 100 "
        "--collect.buffer-size 4000 --replearn.rounds 15 --replearn.discriminator-steps 32 "
        "--replearn.feature-steps 32 --replearn.hidden-sizes",
        30_000,
    ),
    World(
        "minigrid-empty-5x5-mlp",  # the whole grid; solved: every episode finds the goal, with 0.91 or more
        "MiniGrid-Empty-5x5-v0 --algo briee --preset paper --decoder mlp --horizon 10 "
        "--evaluation.target-return 0.91 --features.num-latents 40 --features.standardize "
        "--features.first-temperature 1 --collect.episodes-per-level 10 --collect.warmup-episodes 500 "
        "--collect.buffer-size 2000 --lsvi.lam 0.1 --replearn.start previous --replearn.momentum 0.9 "
        "--replearn.rounds 3 --replearn.hidden-sizes 32 --replearn.discriminator-steps 16 "
        "--replearn.feature-steps 32 --replearn.feature-batch 128 --replearn.discriminator-batch 128",
        10_000,
    ),
)


def briee(arguments: str, **environment: str) -> str:
    """Run `briee` and return its output."""
    command = [sys.executable, "-m", "briee", *shlex.split(arguments)]
    done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"briee {arguments}\n{done.stderr[-2000:]}")
    return done.stdout


def carry_out(world: World, seed: int, run_dir: Path) -> None:
    """Make one run, unless it is done."""
    outcome = run_dir / "outcome.json"
    if outcome.exists():
        return
    env = world.command.partition(" ")[0]
    about = f"--seed {seed} --episodes {world.budget} --run-dir {run_dir} --overwrite"
    extra: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as cache:
        began = time.monotonic()
        environment = {"JAX_COMPILATION_CACHE_DIR": cache} if world.timed else {}
        briee(f"train {env} {about} {world.options}", **environment)
        extra |= {"process_seconds": round(time.monotonic() - began, 1)} if world.timed else {}
    if world.on_average:
        extra["judged_return"] = json.loads(briee(f"evaluate {run_dir} --episodes 2000 --json"))["mean"]
    shutil.rmtree(run_dir / "checkpoint")
    outcome.write_text(json.dumps(extra, indent=2) + "\n")


def own_row(world: World, run_dir: Path, fingerprints: Fingerprints) -> Row | None:
    """The row of a finished run directory."""
    row = row_of(run_dir) if (run_dir / "outcome.json").exists() else None
    if row is None:
        return None
    extra = json.loads((run_dir / "outcome.json").read_text())
    label = row["algorithm"] if row["preset"] == "default" else f"{row['algorithm']} {row['preset']}"
    names = {"label": label, "world": world.name, "numerics": fingerprints.find(row)}
    return row | names | {name: str(extra.get(name, "")) for name in EXTRA}


def collect(folder: Path) -> None:
    """Write the tables: a row of every run directory that is finished, and those known from runs.csv."""
    fingerprints, known = Fingerprints(folder.parent), {_key(r): r for r in read_table(folder / "runs.csv")}
    curves: dict[tuple[str, ...], list[Row]] = {}
    for point in read_curves(folder):
        curves.setdefault(_key(point), []).append(point)
    origins = read_origins(folder)
    for world in WORLDS:
        for seed in world.seeds:
            run_dir = folder / f"{world.name}-s{seed}"
            row = own_row(world, run_dir, fingerprints)
            if row is not None:
                known[_key(row)] = row
                about = {"label": row["label"], "world": world.name, "seed": row["seed"]}
                curves[_key(row)] = [about | point for point in curve_of(run_dir)]
                origins.append(origin_of(run_dir))
    keys = [(world.name, str(seed)) for world in WORLDS for seed in world.seeds]
    keys = [key for key in keys if key in known]
    write_runs(folder, [known[key] for key in keys], origins)
    write_curves(folder, [point for key in keys for point in curves.get(key, [])])


def _key(row: Row) -> tuple[str, ...]:
    return row["world"], row["seed"]


def main() -> None:
    """Run what is missing and write the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="worlds whose name begins so")
    parser.add_argument("--seeds", type=int, nargs="*", help="these seeds alone")
    parser.add_argument("--again", action="store_true", help="also runs that are in runs.csv")
    parser.add_argument("--output", type=Path, default=Path("results/worlds"))
    args = parser.parse_args()
    args.output.mkdir(parents=True, exist_ok=True)
    known = {_key(row) for row in read_table(args.output / "runs.csv")}
    for world in WORLDS:
        for seed in world.seeds if world.name.startswith(args.only) else ():
            wanted = args.seeds is None or seed in args.seeds
            if wanted and (args.again or (world.name, str(seed)) not in known):
                carry_out(world, seed, args.output / f"{world.name}-s{seed}")
                print(world.name, seed, flush=True)
                collect(args.output)
    collect(args.output)


if __name__ == "__main__":
    main()
