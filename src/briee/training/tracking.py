"""A run's metrics in TensorBoard or Weights & Biases, under the names of the CSV columns.

Needs the extra `tensorboard` or `wandb`.
"""

import hashlib
from pathlib import Path
from typing import Any

from briee.errors import RunError
from briee.lazy import import_extra
from briee.training.directory import read_json, read_metrics
from briee.training.spec import RunSpec


class WeightsAndBiases:
    """A callback that logs each row of metrics; a context manager. A resumed run continues its record.

    The project is WANDB_PROJECT, `briee` by default. WANDB_MODE=offline needs neither account nor network.
    """

    def __init__(self, run_dir: Path, spec: RunSpec):
        self.wandb, self.run_dir, self.spec = import_extra("wandb", "wandb"), run_dir, spec
        self.record: Any = None

    def __enter__(self) -> "WeightsAndBiases":
        return self

    def __exit__(self, *_: Any) -> None:
        if self.record is not None:
            self.record.finish()

    def __call__(self, row: dict[str, Any]) -> None:
        """Add one row; never stops a run."""
        rows = [row] if self.record is not None else read_metrics(self.run_dir / "metrics.csv")
        if self.record is None:
            self.record = self._open()
        for values in rows:
            known = {name: value for name, value in values.items() if value is not None}
            self.record.log(known, step=values["iteration"])

    def _open(self) -> Any:
        """The record of this run, new or continued."""
        started = (read_json(self.run_dir / "manifest.json") or {}).get("started")
        identity = hashlib.sha256(f"{self.run_dir.resolve()} {started}".encode()).hexdigest()[:16]
        settings = self.wandb.Settings(silent=True)
        about: dict[str, Any] = {"name": self.run_dir.name, "id": identity, "dir": str(self.run_dir)}
        if settings.project is None:
            about["project"] = "briee"
        record = self.wandb.init(config=self.spec.to_json(), resume="allow", settings=settings, **about)
        record.define_metric("*", step_metric="episodes")
        return record


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
