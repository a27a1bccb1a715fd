"""manifest.json: versions, machine, threads, command and times of a run. Imports no JAX."""

import importlib.metadata
import os
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import briee
from briee.compute import available_cores

PACKAGES = ("jax", "jaxlib", "equinox", "optax", "numpy", "scipy", "gymnasium")
THREAD_VARIABLES = ("XLA_FLAGS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def make_manifest(command: str, previous: dict[str, Any] | None = None) -> dict[str, Any]:
    """The contents of manifest.json as a process starts to work on a run.

    `previous` is the manifest of the process before it, if any. `sessions` has one entry per process;
    `started` is the start of the first, `ended` the end of the last.
    """
    session = {"command": command, "started": now(), "ended": None}
    sessions = [*(previous or {}).get("sessions", []), session]
    return {
        "briee": briee.__version__,
        "commit": source_commit(),
        "python": platform.python_version(),
        "packages": {name: importlib.metadata.version(name) for name in PACKAGES},
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
    """The manifest with the end of its last session."""
    ended = now()
    *earlier, last = manifest["sessions"]
    return manifest | {"ended": ended, "sessions": [*earlier, last | {"ended": ended}]}


def now() -> str:
    """The time in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def cpu_model() -> str:
    """The name of the CPU, if the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "unknown")


def source_commit() -> str | None:
    """The commit of the source tree this package runs from, "+changes" if edited; None if there is none."""
    root = Path(__file__).resolve().parents[3]
    if not (root / ".git").exists():
        return None
    try:
        commit, changes = _git(root, "rev-parse", "HEAD"), _git(root, "status", "--porcelain", "--", "src")
    except (OSError, subprocess.SubprocessError):
        return None
    return commit + ("+changes" if changes else "")


def _git(root: Path, *arguments: str) -> str:
    command = ["git", "-C", str(root), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
