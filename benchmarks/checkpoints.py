"""Cost of checkpoints: size, time, and share of a real run.

    python benchmarks/checkpoints.py --horizon 100 --json results/speed.json

A state has the same arrays from the first iteration to the last. So a new state, filled with random numbers,
is written and read like that of a long run. If others use the machine, too, the best of five and the CPU
seconds are more reliable than the median.
"""

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

from briee.compute import prepare_process

prepare_process()

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402

from briee.algorithms import registry as algorithms  # noqa: E402
from briee.protocols import S  # noqa: E402
from briee.training import checkpoint  # noqa: E402
from briee.training.checkpoint import finite_names  # noqa: E402
from briee.training.directory import make_manifest  # noqa: E402
from briee.training.progress import Display  # noqa: E402
from briee.training.session import load_moment, run  # noqa: E402
from briee.training.spec import RunSpec, build  # noqa: E402
from queries import record  # noqa: E402

PRESETS = ("efficient", "paper")
REPEATS = 5


class SavingTime(Display):
    """A display that adds up the seconds a run spends on saving."""

    def __init__(self):
        self.seconds, self.count, self.since = 0.0, 0, None

    def phase(self, name: str) -> None:
        if self.since is not None:
            self.seconds, self.count = self.seconds + time.perf_counter() - self.since, self.count + 1
        self.since = time.perf_counter() if name == "save" else None


def filled(state: S) -> S:
    """The state with random numbers in its large arrays, so no memory page is shared or zero."""
    rng = np.random.default_rng(0)

    def fill(leaf: Any) -> Any:
        if leaf.size < 2**16 or not jnp.issubdtype(leaf.dtype, jnp.floating):
            return leaf
        return jnp.asarray(rng.standard_normal(leaf.shape, np.float32))

    return jax.tree.map(fill, state)


def one_checkpoint(spec: RunSpec, folder: Path) -> dict[str, float]:
    """Megabytes of a checkpoint, and seconds to write it, to read it, and to search its state for NaN."""
    algorithm = build(spec)
    state = jax.block_until_ready(filled(algorithm.init(jax.random.key(1))))
    place = checkpoint.Folder(folder)
    writing = [timed(lambda n=n: place.save(n, state, {})) for n in range(1, REPEATS + 1)]
    searching = timed(lambda: finite_names(state))
    size = place.file(REPEATS).stat().st_size
    template = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), state)
    reading = timed(lambda: place.load(template, finite=()))
    return {
        "megabytes": size / 1e6,
        "seconds_write": min(wall for wall, _ in writing),
        "seconds_write_median": float(np.median([wall for wall, _ in writing])),
        "seconds_write_processor": min(cpu for _, cpu in writing),
        "seconds_read": reading[0],
        "seconds_search": searching[0],
    }


def share_of_a_run(spec: RunSpec, folder: Path) -> dict[str, float]:
    """The number of checkpoints of a run, and their share of its time."""
    display = SavingTime()
    began = time.perf_counter()
    summary = run(build(spec), spec, folder, display=display)
    display.phase("end")
    load_moment(build(spec), spec, checkpoint.Folder(folder / "checkpoint"))
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
    """Wall-clock and CPU seconds of `work()`."""
    began, used = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - began, time.process_time() - used


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--horizon", type=int, default=100)
    parser.add_argument("--episodes", type=int, default=2000, help="budget of the efficient run; 0: no run")
    parser.add_argument("--json", type=Path, help="write the figures into this file, too")
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
        record(args.json, "checkpoints", {"horizon": args.horizon, **figures, "manifest": about})


if __name__ == "__main__":
    main()
