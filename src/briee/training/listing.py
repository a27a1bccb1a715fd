"""The runs below a folder and the state of each. Imports no JAX."""

from pathlib import Path
from typing import Any, NamedTuple

from briee.errors import RunError
from briee.training.directory import is_locked, read_json


class Listed(NamedTuple):
    """One run in a listing; the summary is empty before the first checkpoint."""

    path: Path
    state: str
    config: dict[str, Any]
    summary: dict[str, Any]


def list_runs(root: Path) -> list[Listed]:
    """Run directories at or below `root`, sorted by path, each with its state.

    State: `running`, `solved`, `finished` (budget used up), `stopped` (can be resumed) or `unreadable`.
    """
    found = []
    for file in sorted(root.rglob("config.json")):
        try:
            config, summary = read_json(file) or {}, read_json(file.with_name("summary.json")) or {}
        except RunError:
            found.append(Listed(file.parent, "unreadable", {}, {}))
            continue
        if {"env", "algorithm", "seed"} <= config.keys():
            found.append(Listed(file.parent, _run_state(file.parent, summary), config, summary))
    return found


def _run_state(path: Path, summary: dict[str, Any]) -> str:
    if is_locked(path / "lock"):
        return "running"
    if summary.get("finished"):
        return "solved" if summary.get("solved") else "finished"
    return "stopped"
