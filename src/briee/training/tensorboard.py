"""A run's metrics for TensorBoard, under the names of the CSV columns. Needs the extra `tensorboard`."""

from pathlib import Path
from typing import Any

from briee.errors import RunError
from briee.training.directory import read_metrics


class TensorBoard:
    """A callback that writes each row of metrics as scalars over training episodes; a context manager.

    The event file is a copy of metrics.csv, if there is one: a resumed run writes it again from there, so no
    row is missing or appears twice. A row reaches the file within a second, at the latest on exit.
    """

    def __init__(self, folder: Path | str, metrics: Path | str | None = None):
        """`folder` gets the event file; `metrics` is the metrics.csv that holds the earlier rows."""
        try:
            from tensorboardX import SummaryWriter
        except ImportError:
            sentence = "TensorBoard's files need the package tensorboardX: pip install 'briee[tensorboard]'"
            raise RunError(sentence) from None
        self.folder, self.metrics = Path(folder), None if metrics is None else Path(metrics)
        self._open = SummaryWriter
        self._writer: Any = None

    def __enter__(self) -> "TensorBoard":
        return self

    def __exit__(self, *_: Any) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def __call__(self, row: dict[str, Any]) -> None:
        """Add one row; never stops a run."""
        rows = [row]
        if self._writer is None:
            rows = rows if self.metrics is None else read_metrics(self.metrics)
            for old in self.folder.glob("events.out.tfevents.*"):
                old.unlink()
            self._writer = self._open(str(self.folder), flush_secs=1)
        for values in rows:
            for name, value in values.items():
                if value is not None:
                    self._writer.add_scalar(name, value, values["episodes"])
        self._writer.flush()
