"""Runs that are done, also those of other experiments: none is repeated. Imports no JAX."""

from pathlib import Path
from typing import Any

from briee.experiments.setting import Setting
from briee.rundir import FREE_FIELDS, flatten, read_json


class Finished:
    """The finished runs in the folders next to an experiment's own.

    A run of another folder stands for a setting if every value that both know is the same, apart from the
    number of processes, and if it was solved or had at least the setting's budget. A value that only one of
    them knows came or went with a version of the program.
    """

    def __init__(self, root: Path):
        self.runs: list[tuple[Path, dict[str, Any]]] = []
        for path in sorted(root.glob("*/*/config.json")):
            values = read_json(path)
            if is_done(path.parent) and isinstance(values, dict):
                self.runs.append((path.parent, flatten(values)))

    def directory(self, setting: Setting, own: Path) -> Path:
        """Where the run of a setting is: in its own directory, or in another where that is not done."""
        if is_done(own):
            return own
        wanted = flatten(setting.spec().to_json())
        for path, values in self.runs:
            common = (wanted.keys() & values.keys()) - set(FREE_FIELDS)
            if all(wanted[name] == values[name] for name in common) and self._is_enough(path, values, wanted):
                return path
        return own

    @staticmethod
    def _is_enough(path: Path, values: dict[str, Any], wanted: dict[str, Any]) -> bool:
        same_world = all(
            values.get(name) == wanted.get(name)
            for name in values.keys() | wanted.keys()
            if name.startswith(("env_arguments.", "rich."))
        )
        solved = bool((read_json(path / "summary.json") or {}).get("solved"))
        return same_world and (solved or values["episodes"] >= wanted["episodes"])


def is_done(run_dir: Path) -> bool:
    """Whether a run has come to its end."""
    return bool((read_json(run_dir / "summary.json") or {}).get("finished"))
