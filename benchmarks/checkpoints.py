"""What keeping a run costs: size and time of a checkpoint, and its share of a real run.

    python benchmarks/checkpoints.py --horizon 100 --json results/agent/checkpoints.json

A state has the same arrays from the first iteration to the last, so a new one, its data filled with random
numbers, is written and read like that of a long run. The best of five, and processor seconds, say more
than the median where others use the machine too.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

from briee.commands.process import prepare_process

prepare_process()

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402

from briee import algorithms, checkpoint  # noqa: E402
from briee.manifest import make_manifest  # noqa: E402
from briee.rundir import RunSpec  # noqa: E402
from briee.runs import Silent, load_state, run  # noqa: E402

PRESETS = ("efficient", "paper")
REPEATS = 5


class SavingTime(Silent):
    """A display that adds up the seconds in which a run saves."""

    def __init__(self):
        self.seconds, self.count, self.since = 0.0, 0, None

    def phase(self, name: str) -> None:
        if self.since is not None:
            self.seconds, self.count = self.seconds + time.perf_counter() - self.since, self.count + 1
        self.since = time.perf_counter() if name == "save" else None


def filled(state: Any) -> Any:
    """The state with random numbers in its large arrays, so that no page of them is shared or zero."""
    rng = np.random.default_rng(0)

    def fill(leaf: Any) -> Any:
        if leaf.size < 2**16 or not jnp.issubdtype(leaf.dtype, jnp.floating):
            return leaf
        return jnp.asarray(rng.standard_normal(leaf.shape, np.float32))

    return jax.tree.map(fill, state)


def one_checkpoint(spec: RunSpec, folder: Path) -> dict[str, float]:
    """Megabytes of a checkpoint, and seconds to write it, to read it, and to search its state for NaN."""
    algorithm = algorithms.build(spec)
    state = jax.block_until_ready(filled(algorithm.init(jax.random.key(1))))
    place = checkpoint.Folder(folder)
    writing = [timed(lambda n=n: place.save(n, state, {})) for n in range(1, REPEATS + 1)]
    searching = timed(lambda: checkpoint.finite_names(state))
    size = place.file(REPEATS).stat().st_size
    template = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), state)
    reading = timed(lambda: place.load(template, finite=()))
    return {
        "megabytes": size / 1e6,
        "seconds_write": min(wall for wall, _ in writing),
        "seconds_write_median": float(np.median([wall for wall, _ in writing])),
        "seconds_write_processor": min(processor for _, processor in writing),
        "seconds_read": reading[0],
        "seconds_search": searching[0],
    }


def share_of_a_run(spec: RunSpec, folder: Path) -> dict[str, float]:
    """Checkpoints of a run with this budget, and the share of its time that they took."""
    display = SavingTime()
    began = time.perf_counter()
    summary = run(algorithms.build(spec), spec, folder, display=display)
    display.phase("end")
    load_state(algorithms.build(spec), spec.seed, checkpoint.Folder(folder / "checkpoint"))
    seconds = summary["seconds"]
    learning = sum(seconds[name] for name in ("collect", "represent", "plan", "evaluate"))
    return {
        "episodes": summary["episodes"],
        "checkpoints": display.count,
        "seconds_run": time.perf_counter() - began,
        "share_of_run": display.seconds / seconds["total"],
        "share_beside_learning": 1 - learning / seconds["total"],
    }


def timed(work: Any) -> tuple[float, float]:
    """Seconds that `work()` takes, and those of the processor."""
    began, used = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - began, time.process_time() - used


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--horizon", type=int, default=100)
    parser.add_argument("--episodes", type=int, default=2000, help="budget of the efficient run; 0: no run")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    args = parser.parse_args()
    figures: dict[str, Any] = {}
    for name in PRESETS:
        config = algorithms.preset("briee", name, args.horizon, "lock")
        spec = RunSpec("lock", "briee", name, args.horizon, 2, args.episodes, config, {})
        with tempfile.TemporaryDirectory(dir=".") as folder:
            figures[name] = one_checkpoint(spec, Path(folder))
        if args.episodes and name == "efficient":
            with tempfile.TemporaryDirectory(dir=".") as folder:
                figures[name] |= share_of_a_run(spec, Path(folder))
        print(name, {key: round(value, 3) for key, value in figures[name].items()}, flush=True)
    if args.json:
        command = f"python benchmarks/checkpoints.py --horizon {args.horizon} --episodes {args.episodes}"
        about = make_manifest(command)
        args.json.write_text(
            json.dumps({"horizon": args.horizon, **figures, "manifest": about}, indent=2) + "\n"
        )


if __name__ == "__main__":
    main()
