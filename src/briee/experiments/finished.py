"""Finished runs, also those of other experiments, so that none is repeated. Imports no JAX."""

from pathlib import Path
from typing import Any

from briee.configuration import flatten
from briee.experiments.setting import Setting
from briee.training.directory import read_json
from briee.training.spec import Wanted


class Finished:
    """The finished runs in an experiment's folder and in those next to it.

    A run in another directory stands for a setting if it could be continued as the setting's (`Wanted`), and
    if it was solved or had at least the setting's budget.
    """

    def __init__(self, root: Path):
        self.runs: list[tuple[Path, dict[str, Any]]] = []
        for path in sorted(root.glob("*/*/config.json")):
            values = read_json(path)
            if values is not None and is_done(path.parent):
                self.runs.append((path.parent, flatten(values)))

    def directory(self, setting: Setting, own: Path) -> Path:
        """The directory of a finished run of this setting, in its own folder if there is one; else `own`."""
        if is_done(own):
            return own
        wanted = Wanted(setting.spec())
        for path, values in sorted(self.runs, key=lambda run: run[0].parent != own.parent):
            if wanted.difference(values) is None and (
                values["episodes"] >= setting.episodes or is_done(path, "solved")
            ):
                return path
        return own


def summaries(folder: Path, pattern: str) -> list[dict[str, Any]]:
    """The summaries of all finished runs whose directories match, in order of horizon and seed."""
    found = [read_json(path) or {} for path in folder.glob(f"{pattern}/summary.json")]
    done = [summary for summary in found if summary.get("finished")]
    return sorted(done, key=lambda summary: (summary["horizon"], summary["seed"]))


def is_done(run_dir: Path, how: str = "finished") -> bool:
    """Whether a run is finished, or solved."""
    return bool((read_json(run_dir / "summary.json") or {}).get(how))
