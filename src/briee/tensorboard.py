"""A run's metrics for TensorBoard, under the names of the CSV columns. Needs the extra `tensorboard`."""

import csv
import importlib
import time
from pathlib import Path
from typing import Any

from briee.rundir import RunError


class TensorBoard:
    """A callback that writes each row of metrics as scalars over training episodes; a context manager.

    The event file is a copy of metrics.csv, where there is one: a resumed run writes it anew from there, so
    that nothing appears twice or is missing. A row is in the file when the call returns.
    """

    def __init__(self, folder: Path | str, metrics: Path | str | None = None):
        """`folder` gets the event file; `metrics` is the metrics.csv that holds the rows from before."""
        self.folder, self.metrics = Path(folder), None if metrics is None else Path(metrics)
        self._open, self._event, self._summary = _protocol()
        self._file: Any = None

    def __enter__(self) -> "TensorBoard":
        return self

    def __exit__(self, *_: Any) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def __call__(self, row: dict[str, Any]) -> None:
        """Add one row; never stops a run."""
        rows = [row]
        if self._file is None:
            if self.metrics is not None:
                with open(self.metrics, newline="") as file:
                    rows = list(csv.DictReader(file))
            for old in self.folder.glob("events.out.tfevents.*"):
                old.unlink()
            self.folder.mkdir(parents=True, exist_ok=True)
            self._file = self._open(str(self.folder / "events"))
        for values in rows:
            known = {name: float(value) for name, value in values.items() if value not in (None, "")}
            scalars = [self._summary.Value(tag=name, simple_value=value) for name, value in known.items()]
            summary = self._summary(value=scalars)
            step = int(values["episodes"])
            self._file.write_event(self._event(wall_time=time.time(), step=step, summary=summary))
        self._file.flush()


def _protocol() -> tuple[Any, Any, Any]:
    """The classes of tensorboardX that write without a thread of their own: file, event, summary."""
    parts = (
        ("event_file_writer", "EventsWriter"),
        ("proto.event_pb2", "Event"),
        ("proto.summary_pb2", "Summary"),
    )
    try:
        importlib.import_module("tensorboardX")
        file, event, summary = (getattr(importlib.import_module(f"tensorboardX.{m}"), n) for m, n in parts)
    except ImportError:
        sentence = "TensorBoard's files need the package tensorboardX: pip install 'briee[tensorboard]'"
        raise RunError(sentence) from None
    return file, event, summary
