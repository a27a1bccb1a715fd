"""Runs that are done, also those of other experiments: none is repeated. Imports no JAX."""

from pathlib import Path
from typing import Any

from briee.experiments.setting import Setting
from briee.rundir import Wanted, flatten, read_json


class Finished:
    """The finished runs in the folders next to an experiment's own.

    A run of another folder stands for a setting if it could be continued as the setting's (`Wanted`), and if
    it was solved or had at least the setting's budget.
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
        wanted = Wanted(setting.spec())
        for path, values in self.runs:
            if wanted.difference(values) is None and self._is_enough(path, values["episodes"], setting):
                return path
        return own

    @staticmethod
    def _is_enough(path: Path, episodes: int, setting: Setting) -> bool:
        solved = bool((read_json(path / "summary.json") or {}).get("solved"))
        return solved or episodes >= setting.episodes


def summaries(folder: Path, pattern: str) -> list[dict[str, Any]]:
    """The summaries of all finished runs whose directories match, in order of horizon and seed."""
    found = [read_json(path) or {} for path in folder.glob(f"{pattern}/summary.json")]
    done = [summary for summary in found if summary.get("finished")]
    return sorted(done, key=lambda summary: (summary["horizon"], summary["seed"]))


def is_done(run_dir: Path) -> bool:
    """Whether a run has come to its end."""
    return bool((read_json(run_dir / "summary.json") or {}).get("finished"))
