"""Cores, threads and the compilation cache. Imports no JAX."""

import os
from pathlib import Path

ONE_THREAD = {
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}
"""The package runs levels in parallel threads; further threads inside each operation would slow them down."""


def prepare_process() -> None:
    """Set threads and compilation cache, before JAX is imported; values set by the user are kept."""
    for name, value in ONE_THREAD.items():
        os.environ.setdefault(name, value)
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "briee" / "jax"
        try:
            cache.mkdir(parents=True, exist_ok=True)
        except OSError:  # without a cache only the start is slower
            return
        os.environ["JAX_COMPILATION_CACHE_DIR"] = str(cache)
        os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.2")


def available_cores() -> int:
    """Number of cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
