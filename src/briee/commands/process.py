"""What several commands do first."""

import os
from pathlib import Path
from typing import Any

from briee.arguments import UsageError
from briee.rundir import RunSpec

ONE_THREAD = {
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}
"""Levels are learned in parallel by threads of our own; threads inside operations slow them down."""


def build(spec: RunSpec) -> Any:
    """The algorithm of a run; what it refuses is a `UsageError`."""
    from briee import algorithms

    try:
        return algorithms.build(spec)
    except ValueError as error:
        raise UsageError(str(error)) from error


def learned(algorithm: Any, spec: RunSpec, run_dir: Path) -> Any:
    """The state in the newest checkpoint of a run."""
    from briee.checkpoint import Folder
    from briee.runs import load_state

    folder = Folder(run_dir / "checkpoint")
    if not folder.numbers():
        raise UsageError(f"{run_dir} has no checkpoint yet")
    return load_state(algorithm, spec.seed, folder)[0]


def returns_in_words(outcome: dict[str, Any]) -> str:
    """Mean and range of the returns that were played."""
    mean = f"mean return {outcome['mean']:.4f} ± {outcome['standard_error']:.4f} (standard error)"
    spread = f"from {outcome['minimum']:.4f} to {outcome['maximum']:.4f}"
    return f"{mean}, {spread}, over {outcome['episodes']} episodes"


def prepare_process() -> None:
    """Threads and compilation cache, before JAX is imported; what the user has set stays."""
    for name, value in ONE_THREAD.items():
        os.environ.setdefault(name, value)
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "briee" / "jax"
        try:
            cache.mkdir(parents=True, exist_ok=True)
        except OSError:  # without a cache the start is slower, nothing else
            return
        os.environ["JAX_COMPILATION_CACHE_DIR"] = str(cache)
        os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.2")
