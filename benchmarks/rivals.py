"""Speed of the rivals: seconds of whole attempts of MusIK and HOMER on the sparse lock.

    python benchmarks/rivals.py [--only musik-h25] [--seed 101] [--json FILE]

Prints wall-clock and CPU seconds, with compilation, beside the target. An attempt explores and plans once,
whether its policy opens the lock or not, and plays its check; the printed return is that of the check.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any, NamedTuple

from briee.compute import prepare_process


class Case(NamedTuple):
    """One attempt, and the seconds that it should take on two cores."""

    algorithm: str
    preset: str
    horizon: int
    target: float | None


CASES = {
    "musik-h25": Case("musik", "paper", 25, 60.0),
    "musik-h50": Case("musik", "paper", 50, None),
    "musik-h100": Case("musik", "paper", 100, 45 * 60.0),
    "homer-h25": Case("homer", "released", 25, 15 * 60.0),
    "homer-paper-h6": Case("homer", "paper", 6, None),
}


def attempt(case: Case, seed: int) -> dict[str, Any]:
    """The figures of one attempt."""
    import jax

    from briee.algorithms.registry import preset
    from briee.training.spec import RunSpec, build

    config = preset(case.algorithm, case.preset, case.horizon)
    named = (case.algorithm, case.preset, case.horizon, seed, 1)
    algorithm: Any = build(RunSpec("lock", *named, config, {"instance_seed": seed}))
    state = algorithm.init(jax.random.key(seed))
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(algorithm.explore_updates + algorithm.plan_updates + 1):
        state = jax.block_until_ready(algorithm.update(state))
    return {
        "episodes": int(state.episodes),
        "env_steps": int(state.env_steps),
        "return": float(state.explore_return),
        "seconds": time.perf_counter() - wall,
        "cpu_seconds": time.process_time() - cpu,
        "target_seconds": case.target,
    }


def main() -> None:
    """Run the cases that were asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=CASES, nargs="+", default=["musik-h25", "homer-h25"])
    parser.add_argument("--seed", type=int, default=101)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    prepare_process()
    found = {}
    for name in args.only:
        found[name] = row = attempt(CASES[name], args.seed)
        target = "" if row["target_seconds"] is None else f", target {row['target_seconds']:.0f} s"
        counted = f"{row['episodes']:,} episodes, return {row['return']:.2f}"
        print(
            f"{name}: {counted}: {row['seconds']:.0f} s ({row['cpu_seconds']:.0f} s of CPU){target}",
            flush=True,
        )
    if args.json:
        args.json.write_text(json.dumps({"seed": args.seed, "cases": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
