"""Where a run was made: versions, machine, threads, command, times. Imports no JAX."""

import importlib.metadata
import os
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import briee

PACKAGES = ("jax", "jaxlib", "equinox", "optax", "numpy", "scipy", "gymnasium")
THREAD_VARIABLES = ("XLA_FLAGS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def make_manifest(command: str, previous: dict[str, Any] | None = None) -> dict[str, Any]:
    """What `manifest.json` holds when a process starts to work on a run.

    `previous` is the manifest of the process before, if any. `sessions` has one entry per process; `started`
    and `ended` are those of the first and the last one.
    """
    session = {"command": command, "started": now(), "ended": None}
    sessions = [*(previous or {}).get("sessions", []), session]
    return {
        "briee": briee.__version__,
        "commit": source_commit(),
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in PACKAGES},
        "platform": platform.platform(),
        "cpu": cpu_model(),
        "cores": available_cores(),
        "threads": {name: os.environ.get(name) for name in THREAD_VARIABLES},
        "command": sessions[0]["command"],
        "started": sessions[0]["started"],
        "ended": None,
        "sessions": sessions,
    }


def close_manifest(manifest: dict[str, Any]) -> dict[str, Any]:
    """The manifest with the end of the last session noted."""
    ended = now()
    *earlier, last = manifest["sessions"]
    return manifest | {"ended": ended, "sessions": [*earlier, last | {"ended": ended}]}


def now() -> str:
    """The time in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def available_cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cpu_model() -> str:
    """The processor's name, as far as the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown"
    )


def source_commit() -> str | None:
    """The commit of the source tree this package runs from, "+changes" if edited; None if there is none."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return None
    git = ["git", "-C", str(root)]
    try:
        commit = subprocess.run(
            [*git, "rev-parse", "HEAD"], capture_output=True, text=True, timeout=10, check=True
        )
        changes = subprocess.run(
            [*git, "status", "--porcelain", "--", "src"],
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return commit.stdout.strip() + ("+changes" if changes.stdout.strip() else "")


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
