"""Speed of the baselines: PPO and PPO+RND beside Stable-Baselines3's PPO, and LSVI-UCB on the longest lock.

    python benchmarks/baselines.py [--only ppo|lsvi-ucb] [--output results/baselines]

All numbers are processor time of one core, which other work on the machine changes less than the time of day;
compiled programs are warm. A process uses one core, so two runs at a time (`--workers 2`) make twice as many
steps a second on two. Every PPO has 100 episodes of H = 30 steps for each policy update, ours the paper's
gradient steps (minibatch 160, 5 epochs), theirs the library's (64, 10).
"""

import argparse
import dataclasses
import json
import resource
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from briee.commands.process import prepare_process
from briee.manifest import make_manifest

HORIZON, ROUNDS = 30, 10


def steps_per_second(step: Callable[[], int], repeats: int) -> float:
    """Environment steps per second of processor time: the best of several calls after a first one."""
    step()
    best = 0.0
    for _ in range(repeats):
        began = time.process_time()
        steps = step()
        best = max(best, steps / (time.process_time() - began))
    return best


def measure_ppo() -> dict[str, float]:
    """Environment steps per second of training, on the sparse lock with H = 30."""
    import jax

    from briee import algorithms
    from briee.rundir import RunSpec

    def training(name: str, changes: dict[str, Any]) -> Callable[[], int]:
        config = dataclasses.replace(algorithms.preset(name, "paper", HORIZON), **changes)
        arguments = {"instance_seed": 2}
        spec = RunSpec(
            "lock", name, "paper", HORIZON, seed=2, episodes=1, config=config, env_arguments=arguments
        )
        algorithm = algorithms.build(spec)
        state = [algorithm.init(jax.random.key(2))]

        def step() -> int:
            before = int(state[0].env_steps)
            state[0] = jax.block_until_ready(algorithm.update(state[0]))
            return int(state[0].env_steps) - before

        return step

    measured = {
        name: steps_per_second(training(name, {"rounds": ROUNDS}), repeats=5) for name in ("ppo", "ppo-rnd")
    }
    measured["sb3:PPO"] = steps_per_second(training("sb3:PPO", {}), repeats=3)
    figures = {f"{name}_env_steps_per_second": value for name, value in measured.items()}
    return figures | {"ppo_over_sb3": measured["ppo"] / measured["sb3:PPO"]}


def measure_lsvi(output: Path) -> dict[str, float]:
    """Processor seconds and episodes until LSVI-UCB with true features solves the lock with H = 100."""
    run_dir = output / "lock-h100-lsvi-ucb-s1"
    arguments = (
        f"train lock --algo lsvi-ucb --horizon 100 --seed 1 --episodes 400000 --run-dir {run_dir} --overwrite"
    )
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [sys.executable, "-m", "briee", *shlex.split(arguments)], check=True, stdout=subprocess.DEVNULL
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    summary = json.loads((run_dir / "summary.json").read_text())
    for file in (run_dir / "checkpoint").glob("*"):
        file.unlink()
    return {
        "lsvi-ucb_h100_processor_seconds": after.ru_utime
        + after.ru_stime
        - before.ru_utime
        - before.ru_stime,
        "lsvi-ucb_h100_seconds": summary["seconds"]["total"],
        "lsvi-ucb_h100_episodes_to_solve": summary["episodes_to_solve"],
    }


def main() -> None:
    """Measure, print and write speed.json; figures that are not measured now are kept."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=("ppo", "lsvi-ucb"), help="measure nothing else")
    parser.add_argument("--output", type=Path, default=Path("results/baselines"))
    args = parser.parse_args()
    prepare_process()
    args.output.mkdir(parents=True, exist_ok=True)
    file = args.output / "speed.json"
    known = json.loads(file.read_text()) if file.exists() else {}
    for name, function in (("ppo", measure_ppo), ("lsvi-ucb", lambda: measure_lsvi(args.output))):
        if args.only in (None, name):
            manifest = {f"manifest_{name}": make_manifest(shlex.join(["python", *sys.argv]))}
            known |= {key: round(value, 2) for key, value in function().items()} | manifest
            file.write_text(json.dumps(known, indent=2) + "\n")
    for name, value in known.items():
        if not name.startswith("manifest"):
            print(f"{name:40}{value:,}")


if __name__ == "__main__":
    main()
