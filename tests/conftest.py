"""Settings of the whole suite: compilation, threads, caches, plots without a screen, bounded hypothesis."""

import contextlib
import ctypes
import gc
import os
import signal
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from hypothesis import settings

# Programs run for milliseconds here, less time than optimising them takes. XLA reads flags up to the first
# word without dashes, so these come first.
QUICK = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
if [int(part) for part in version("jaxlib").split(".")[:2]] < [0, 11]:  # XLA exits at a flag it does not know
    QUICK += " --xla_cpu_use_fusion_emitters=false"
THREADS = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
flags = os.environ.get("XLA_FLAGS", THREADS)
os.environ["XLA_FLAGS"] = flags if flags.startswith(QUICK) else f"{QUICK} {flags}"
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("MPLBACKEND", "Agg")
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in a background job: Ctrl-C is under test
    signal.signal(signal.SIGINT, signal.default_int_handler)
# Compiled programs are shared by workers, by processes that tests start, and by the next run of the tests.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(__file__).parents[1] / ".pytest_cache" / "jax"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.3")

# Compilation makes the first example slow, so there is no deadline; derandomised, so that a failure repeats.
settings.register_profile("suite", max_examples=30, deadline=None, derandomize=True)
settings.load_profile("suite")


FULL = 1.5e9
"""Bytes. A worker that holds more forgets its compiled functions after the test, not after the module."""


@pytest.fixture(autouse=True, scope="module")
def forget_programs():
    """Release the compiled functions of a module at its end; otherwise a worker grows to gigabytes."""
    yield
    _forget()


@pytest.fixture(autouse=True)
def forget_many_programs():
    """Release compiled functions early if there are very many."""
    yield
    if sys.platform == "linux" and _resident() > FULL:
        _forget()


def _resident() -> int:
    """Bytes of memory this process holds; Linux only."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _forget() -> None:
    if "jax" in sys.modules:
        import jax

        gc.collect()
        jax.clear_caches()
        gc.collect()
        if sys.platform == "linux":
            with contextlib.suppress(OSError, AttributeError):  # another C library has no such function
                ctypes.CDLL(None).malloc_trim(0)
