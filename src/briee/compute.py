"""Cores, threads and compilation: its cache, and quick compilation. Importing this module imports no JAX."""

import functools
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

ONE_THREAD = {
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}
"""The package runs levels in parallel threads; further threads inside each operation would slow them down."""

OPTIONS = {"xla_backend_optimization_level": 1, "xla_cpu_use_fusion_emitters": False}
"""On CPUs these halve the compilation time; on small arrays the result is about as fast."""


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


def quick_jit(function: Callable[P, R]) -> Callable[P, R]:
    """`equinox.filter_jit` with `OPTIONS`, if the compiler knows them; inside a trace, `function` itself.

    For functions that run for milliseconds, less time than compiling them takes.
    """
    lock, compiled = threading.Lock(), []

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        with lock:  # two jitted functions would compile the same thing twice
            if not compiled:
                import equinox

                jit: Any = equinox.filter_jit
                compiled.append(jit(function, compiler_options=known_options()))
        try:
            return compiled[0](*args, **kwargs)
        except ValueError:  # JAX refuses compiler options inside a traced function
            from jax import core, numpy

            if not isinstance(numpy.zeros(()), core.Tracer):
                raise
            return function(*args, **kwargs)

    return call


@functools.cache
def known_options() -> dict[str, Any]:
    """`OPTIONS`, or none if the compiler refuses them or the device is not a CPU."""
    import jax

    if jax.default_backend() != "cpu":
        return {}
    try:
        jax.jit(lambda x: x).lower(0.0).compile(compiler_options=OPTIONS)
    except jax.errors.JaxRuntimeError:
        return {}
    return OPTIONS
