"""Cost of one update of Algorithm 1 against the horizon, and memory at H = 100 with full buffers; or of an
update of several algorithms against horizon, dimension and number of latent states; or time and memory of the
preset `practical` against the horizon.

    python benchmarks/scaling.py results/core/scaling.csv
    python benchmarks/scaling.py results/core/updates.csv --updates
    python benchmarks/scaling.py results/core/practical.csv --practical

CPU seconds of a second update (nothing is compiled), every level playing the same number of rounds; the
last row fills the buffers of H = 100 with 10,000 transitions per level. Each horizon runs in its own process.
"""

import csv
import os
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any

COLUMNS = (
    "horizon",
    "rows_per_level",
    "collect",
    "represent",
    "plan",
    "represent_per_level",
    "peak_gigabytes",
)


def measure(horizon: int, warmup: int) -> list[str]:
    """One row of the table."""
    import jax

    from briee.algorithms.paper.briee import BrieeAlgorithm
    from briee.algorithms.paper.config import BrieeConfig
    from briee.envs.lock import CombinationLock
    from briee.rollout.samplers import ScanSampler

    config = BrieeConfig.paper(horizon)
    config = replace(
        config,
        collect=replace(config.collect, warmup_episodes=warmup),
        replearn=replace(config.replearn, rounds=3, ell=None),
    )
    algorithm = BrieeAlgorithm(ScanSampler(CombinationLock(horizon=horizon)), config)
    state = algorithm.update(algorithm.init(jax.random.key(0)))
    seconds = []
    plan = lambda state: algorithm.plan(state, algorithm.bonus(state))  # noqa: E731
    for verb in (algorithm.collect, algorithm.learn_features, plan):
        start = time.process_time()
        state = jax.block_until_ready(verb(state))
        seconds.append(time.process_time() - start)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    rows = int(state.buffers.rows.size[1])
    return [str(horizon), str(rows), *(f"{s:.2f}" for s in (*seconds, seconds[1] / horizon)), f"{peak:.2f}"]


WORLDS = {
    "h6": ("lock", 6, {}, 3),
    "h25": ("lock", 25, {}, 3),
    "h100": ("lock", 100, {}, 3),
    "d256": ("lock", 6, {"distractors": 240}, 3),
    "k12": ("random-block", 10, {"num_latents": 12}, 12),
    "k32": ("random-block", 10, {"num_latents": 32}, 32),
}
"""Name, horizon, arguments and latent states a level."""
ALGORITHMS = {"general": tuple(WORLDS), "efficient": tuple(WORLDS), "briee": ("h6", "h25")}
"""The worlds of each; Algorithm 1 takes many seconds in the others."""
UPDATES, SKIPPED = 15, 5


def learned(
    algo: str, env: str, horizon: int, arguments: dict, updates: int = UPDATES, **told
) -> tuple[Any, float]:
    """An agent after a few updates, and the CPU seconds of one: the mean of all but the first five,
    evaluations included, most compilation not."""
    from briee import Agent
    from briee.rollout.samplers import adapt

    agent = Agent(adapt(env, horizon, arguments), algo=algo, seed=1, **told)
    times: list[float] = []
    agent.learn(
        iterations=updates,
        until_solved=False,
        progress=False,
        callbacks=lambda row: times.append(time.process_time()),
    )
    return agent, (times[-1] - times[SKIPPED - 1]) / (updates - SKIPPED)


def measure_updates(algo: str, world: str) -> list[str]:
    """One row of the table of updates."""
    env, horizon, arguments, latents = WORLDS[world]
    told = {} if algo == "general" else {"num_latents": latents}
    agent, seconds = learned(algo, env, horizon, arguments, **told)
    shape = agent.algorithm.sampler.observation_shape
    sizes = (horizon, prod(shape), latents, agent.episodes // UPDATES)
    return [f"{algo}-{world}", *map(str, sizes), f"{seconds:.3f}"]


def measure_practical(horizon: int) -> list[str]:
    """One row of the table of the preset `practical`: its buffers have their size from the beginning; games
    are played after 4 H episodes, at H = 100 after 40 updates."""
    _, seconds = learned("briee", "lock", horizon, {}, updates=60)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return [f"h{horizon}", f"{seconds:.3f}", f"{seconds / horizon:.4f}", f"{peak:.2f}"]


def write_practical(path: str) -> None:
    """Measure the preset `practical` at every horizon, and write the table."""
    columns = ("setting", "cpu_seconds", "cpu_seconds_per_level", "peak_gigabytes")
    write(path, columns, [("--practical-one", str(horizon)) for horizon in (6, 12, 25, 50, 100)])


def write_updates(path: str) -> None:
    """Measure every algorithm in every world, and write the table."""
    columns = ("setting", "horizon", "dimension", "num_latents", "episodes", "cpu_seconds")
    write(path, columns, [("--update", algo, world) for algo, own in ALGORITHMS.items() for world in own])


def main(path: str) -> None:
    """Measure every horizon and write the table."""
    sizes = [(6, 0), (12, 0), (25, 0), (50, 0), (100, 10_000)]
    write(path, COLUMNS, [("--one", str(horizon), str(warmup)) for horizon, warmup in sizes])


def write(path: str, columns: Sequence[str], settings: Sequence[Sequence[str]]) -> None:
    """Write a table: a row of every setting, each measured by this program in a process of its own."""
    with open(path, "w", newline="") as file:
        table = csv.writer(file)
        table.writerow(columns)
        for arguments in settings:
            command = [sys.executable, __file__, *arguments]
            row = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
            table.writerow(row)
            print(*row, flush=True)


if __name__ == "__main__":
    os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")
    if sys.argv[1:2] == ["--one"]:
        print(*measure(int(sys.argv[2]), int(sys.argv[3])))
    elif sys.argv[1:2] == ["--update"]:
        print(*measure_updates(*sys.argv[2:]))
    elif sys.argv[1:2] == ["--practical-one"]:
        print(*measure_practical(int(sys.argv[2])))
    elif sys.argv[2:] == ["--practical"]:
        write_practical(sys.argv[1])
    elif sys.argv[2:] == ["--updates"]:
        write_updates(sys.argv[1])
    else:
        main(sys.argv[1] if len(sys.argv) > 1 else "scaling.csv")
