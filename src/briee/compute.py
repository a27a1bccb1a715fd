"""Cores, threads and compilation: its cache, and quick compilation. Importing this module imports no JAX."""

import atexit
import contextlib
import functools
import os
import sys
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

_left_behind: list[threading.Event] = []

ONE_THREAD = {
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}
"""The package runs levels in parallel threads; further threads inside each operation would slow them down."""

CACHED_SECONDS = "0.2"
"""Programs that take at least this long to compile are kept on disk."""

OPTIONS = {"xla_backend_optimization_level": 1, "xla_cpu_use_fusion_emitters": False}
"""On CPUs these halve the compilation time; on small arrays the result is about as fast."""


def prepare_process() -> None:
    """Set threads and compilation cache, as far as the user has not set them.

    JAX reads the threads when it first computes and the variables of its cache when it is imported. Once it
    computes, its threads stay as they are; the cache can be set at any time.
    """
    # A process that was killed leaves half an entry in the cache; JAX then compiles again.
    warnings.filterwarnings("ignore", "Error reading persistent compilation cache entry")
    if not jax_computes():
        for name, value in ONE_THREAD.items():
            os.environ.setdefault(name, value)
    _limit_blas()
    if "JAX_COMPILATION_CACHE_DIR" in os.environ:
        return
    folder = cache_folder() / "briee" / "jax"
    with contextlib.suppress(OSError):  # without a cache only the start is slower
        folder.mkdir(parents=True, exist_ok=True)
        os.environ["JAX_COMPILATION_CACHE_DIR"] = str(folder)
        os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", CACHED_SECONDS)
        if "jax" in sys.modules:
            _set_cache(str(folder), float(os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"]))


def _limit_blas() -> None:
    """Give NumPy's BLAS, which is loaded already and no longer reads variables, as many threads as they say.

    Idle threads of OpenBLAS spin: on small matrices they cost several times the CPU time of the work itself.
    """
    threads = os.environ.get("OPENBLAS_NUM_THREADS", "")
    if "numpy" in sys.modules and threads.isdigit():
        from threadpoolctl import threadpool_limits

        threadpool_limits(max(int(threads), 1), "blas")


def available_cores() -> int:
    """Number of cores this process may use: BRIEE_CORES if that is set, else those the system assigns to it;
    all cores where the system has no affinity, as on macOS."""
    if os.environ.get("BRIEE_CORES", "").isdigit():
        return max(int(os.environ["BRIEE_CORES"]), 1)
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def memory_gigabytes() -> float | None:
    """Memory of this machine; None where the system does not tell."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    except (AttributeError, ValueError, OSError):
        return None


def cache_folder() -> Path:
    """The user's folder for caches on this system."""
    if given := os.environ.get("XDG_CACHE_HOME"):
        return Path(given)
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    return Path.home() / ("Library/Caches" if sys.platform == "darwin" else ".cache")


def jax_computes() -> bool:
    """Whether JAX has read its flags already, because something was computed or its devices were listed."""
    bridge = sys.modules.get("jax._src.xla_bridge")
    return bool(getattr(bridge, "backends_are_initialized", lambda: False)())


def _set_cache(folder: str, seconds: float) -> None:
    """Give JAX, which is imported already, the folder of its cache unless it has one."""
    import jax
    from jax.experimental.compilation_cache.compilation_cache import reset_cache

    if jax.config.jax_compilation_cache_dir is None:  # pyright: ignore[reportAttributeAccessIssue]
        jax.config.update("jax_compilation_cache_dir", folder)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", seconds)
        reset_cache()  # whether there is a cache is asked once, at the first compilation


def in_thread(function: Callable[[], R]) -> R:
    """The result of `function`, computed in a thread that Ctrl-C leaves behind.

    The compiler notices no signal, and it may take half a minute. A thread left behind would abort the
    process if it were cut off while the interpreter shuts down, so the interpreter waits for it then.
    """
    outcome: Future[R] = Future()
    ended = threading.Event()

    def work() -> None:
        try:
            outcome.set_result(function())
        except BaseException as error:
            outcome.set_exception(error)
        finally:
            ended.set()

    threading.Thread(target=work, daemon=True).start()
    try:
        while not ended.wait(0.1):  # Windows notices Ctrl-C only between waits
            pass
    except KeyboardInterrupt:
        _left_behind.append(ended)
        atexit.register(ended.wait)
        raise
    return outcome.result()


def still_computing() -> bool:
    """Whether a thread that Ctrl-C left behind is at work."""
    return not all(ended.is_set() for ended in _left_behind)


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
    """Those of `OPTIONS` that the compiler knows; none if the device is not a CPU."""
    import jax

    if jax.default_backend() != "cpu":
        return {}
    known = {}
    for name, value in OPTIONS.items():
        with contextlib.suppress(jax.errors.JaxRuntimeError):
            jax.jit(lambda x: x).lower(0.0).compile(compiler_options={name: value})
            known[name] = value
    return known
