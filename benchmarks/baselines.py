"""Speed of the baselines: PPO and PPO+RND beside their matrix products alone and Stable-Baselines3's PPO, and
LSVI-UCB on the longest lock.

    python benchmarks/baselines.py [--only ppo|pair|lsvi-ucb] [--output results/speed.json]

All numbers are CPU time, which other work on the machine changes less than wall-clock time, without
compilation. A process uses one core; "pair" is the sum of two processes at a time, each bound to a core
of its own. Every PPO has 100 episodes of H = 30 steps for each policy update, ours the paper's gradient steps
(minibatch 160, 5 epochs), theirs the library's (64, 10).
"""

import argparse
import dataclasses
import json
import os
import resource
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from briee.compute import prepare_process
from briee.training.directory import make_manifest
from queries import record

HORIZON, ROUNDS = 30, 10


def steps_per_second(step: Callable[[], int], repeats: int) -> float:
    """Environment steps per second of CPU time: the best of several calls after a first one."""
    step()
    best = 0.0
    for _ in range(repeats):
        began = time.process_time()
        steps = step()
        best = max(best, steps / (time.process_time() - began))
    return best


def training(name: str, changes: dict[str, Any]) -> Callable[[], int]:
    """One iteration of an algorithm on the sparse lock with H = 30."""
    import jax

    from briee.algorithms import registry as algorithms
    from briee.training.spec import RunSpec, build

    config = dataclasses.replace(algorithms.preset(name, "paper", HORIZON), **changes)
    arguments = {"instance_seed": 2}
    spec = RunSpec("lock", name, "paper", HORIZON, seed=2, episodes=1, config=config, env_arguments=arguments)
    algorithm = build(spec)
    state = [algorithm.init(jax.random.key(2))]

    def step() -> int:
        before = int(state[0].env_steps)
        state[0] = jax.block_until_ready(algorithm.update(state[0]))
        return int(state[0].env_steps) - before

    return step


def products_alone(name: str) -> Callable[[], int]:
    """The matrix products of the networks in one iteration of PPO or PPO+RND, and nothing between them."""
    import jax

    from briee.algorithms import registry as algorithms

    config = algorithms.preset(name, "paper", HORIZON)
    width, m, E = config.hidden_size, config.minibatch, config.workers
    keys = jax.random.split(jax.random.key(0), 5)
    policy = tuple(
        jax.random.normal(k, (rows, width)) / 8 for k, rows in zip(keys, (width, width, 11), strict=False)
    )
    predictor = tuple(jax.random.normal(k, (width, width)) / 8 for k in keys[3:])
    trained = (policy, predictor) if config.rnd.coefficient > 0 else (policy,)
    asked = (policy, predictor, predictor) if config.rnd.coefficient > 0 else (policy,)
    steps = jax.random.normal(keys[0], (HORIZON, width, E))
    batches = jax.random.normal(keys[1], (HORIZON * E // m, width, m))

    def forward(weights, x):
        layers = [x]
        for W in weights:
            layers.append(W @ layers[-1])
        return layers

    def gradient_step(weights, x):
        *inputs, back = forward(weights, x)
        moved = []
        for W, x in zip(reversed(weights), reversed(inputs), strict=True):
            moved.append(W + 1e-9 * back @ x.T)
            back = W.T @ back
        return tuple(reversed(moved))

    def one_round(trained, _):
        answers = jax.lax.map(lambda x: [forward(weights, x)[-1] for weights in asked], steps)
        each = lambda trained, x: (tuple(gradient_step(weights, x) for weights in trained), None)  # noqa: E731
        epoch = lambda trained, _: jax.lax.scan(each, trained, batches)  # noqa: E731
        trained, _ = jax.lax.scan(epoch, trained, None, config.epochs)
        return trained, [answer.sum() for answer in answers]

    run = jax.jit(lambda trained: jax.lax.scan(one_round, trained, None, ROUNDS))

    def step() -> int:
        jax.block_until_ready(run(trained))
        return ROUNDS * HORIZON * E

    return step


def measure_ppo() -> dict[str, float]:
    """Environment steps per second of training on one core, and of the matrix products that it takes."""
    measured = {}
    for name in ("ppo", "ppo-rnd"):
        measured[name] = steps_per_second(training(name, {"rounds": ROUNDS}), repeats=20)
        measured[f"{name}_products_alone"] = steps_per_second(products_alone(name), repeats=20)
    measured["sb3:PPO"] = steps_per_second(training("sb3:PPO", {}), repeats=3)
    figures = {f"{name}_env_steps_per_second": value for name, value in measured.items()}
    return figures | {"ppo_over_sb3": measured["ppo"] / measured["sb3:PPO"]}


def measure_pair() -> dict[str, float]:
    """Environment steps per second of two processes at a time, each on its own core."""
    cores = sorted(os.sched_getaffinity(0))[:2]
    figures = {}
    for name in ("ppo", "ppo-rnd"):
        alone = [sys.executable, __file__, "--bound", name]
        running = [
            subprocess.Popen([*alone, "--core", str(core)], stdout=subprocess.PIPE, text=True)
            for core in cores
        ]
        rates = [float(process.communicate()[0]) for process in running]
        figures[f"{name}_pair_env_steps_per_second"] = sum(rates)
    return figures


def measure_bound(name: str, core: int) -> float:
    """Environment steps per second of this process, bound to a core before JAX counts them."""
    os.sched_setaffinity(0, {core})
    return steps_per_second(training(name, {"rounds": ROUNDS}), repeats=60)


def measure_lsvi() -> dict[str, float]:
    """CPU seconds and episodes until LSVI-UCB with true features solves the lock with H = 100."""
    arguments = "train lock --algo lsvi-ucb --horizon 100 --seed 1 --episodes 400000 --run-dir"
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with tempfile.TemporaryDirectory() as folder:
        program = [sys.executable, "-m", "briee", *arguments.split(), f"{folder}/run"]
        subprocess.run(program, check=True, stdout=subprocess.DEVNULL)
        summary = json.loads(Path(folder, "run", "summary.json").read_text())
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {
        "lsvi-ucb_h100_processor_seconds": after.ru_utime
        + after.ru_stime
        - before.ru_utime
        - before.ru_stime,
        "lsvi-ucb_h100_seconds": summary["seconds"]["total"],
        "lsvi-ucb_h100_episodes_to_solve": summary["episodes_to_solve"],
    }


def main() -> None:
    """Measure, print and write; figures that are not measured now are kept."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=("ppo", "pair", "lsvi-ucb"), help="measure nothing else")
    parser.add_argument("--bound", choices=("ppo", "ppo-rnd"), help="one process of the pair")
    parser.add_argument("--core", type=int, default=0, help="the core of that process")
    parser.add_argument("--output", type=Path, default=Path("results/speed.json"))
    args = parser.parse_args()
    prepare_process()
    if args.bound:
        print(measure_bound(args.bound, args.core))
        return
    known = json.loads(args.output.read_text())["baselines"] if args.output.exists() else {}
    parts = {"ppo": measure_ppo, "pair": measure_pair, "lsvi-ucb": measure_lsvi}
    for name, function in parts.items():
        if args.only in (None, name):
            manifest = {f"manifest_{name}": make_manifest(shlex.join(["python", *sys.argv]))}
            known |= {key: round(value, 2) for key, value in function().items()} | manifest
            record(args.output, "baselines", known)
    for name, value in known.items():
        if not name.startswith(("manifest", "before")):
            print(f"{name:40}{value:,}")


if __name__ == "__main__":
    main()
