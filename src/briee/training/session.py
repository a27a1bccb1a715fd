"""Training runs in a run directory: start, record, checkpoint, stop, resume.

`briee.training.loop` computes; this module keeps the results on disk. A row of metrics.csv is written before
the checkpoint of its iteration, so a killed run can always be rewound to its checkpoint and continued.
"""

import contextlib
import dataclasses
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

import jax

from briee.compute import in_thread
from briee.configuration import flatten
from briee.diagnose.decoder_table import draw_decoder
from briee.errors import RunError
from briee.protocols import Algorithm, S
from briee.training.checkpoint import CheckpointError, Folder
from briee.training.directory import (
    Lock,
    LockLostError,
    MetricsFile,
    close_manifest,
    locked,
    make_manifest,
    os_errors,
    read_json,
    read_table,
    write_json,
)
from briee.training.loop import (
    Callback,
    DivergedError,
    Moment,
    Progress,
    check_finite,
    examine_decoder,
    finished,
    first_moment,
    how_it_ended,
    summarize,
    train,
)
from briee.training.progress import Display
from briee.training.spec import RunSpec, Wanted

R = TypeVar("R")

OUTCOMES = ("manifest.json", "metrics.csv", "summary.json", "decoder.png")
"""Files that --overwrite removes, besides the checkpoints."""

CHECKPOINT_SHARE = 0.02
"""Checkpoints take about this share of the time at most: the next one waits until the last is paid off."""


class RunInterrupted(KeyboardInterrupt):
    """Ctrl-C during a run, raised after its last complete iteration was saved."""


def run(
    algorithm: Algorithm[S],
    spec: RunSpec,
    run_dir: Path | str,
    *,
    resume: bool = False,
    overwrite: bool = False,
    command: str = "",
    display: Display | None = None,
    callbacks: Sequence[Callback] = (),
) -> dict[str, Any]:
    """Train `algorithm` until it is solved or its budget is used up; returns the contents of summary.json.

    With `resume` the run in `run_dir` continues from its newest checkpoint, or starts if it has no rows.
    Raises `RunError` or `CheckpointError`, both `ValueError`, with one sentence if the request cannot be
    carried out; `DivergedError` if training diverges and `RunInterrupted` after Ctrl-C, after the last
    complete iteration is saved.
    """
    run_dir = Path(run_dir)
    with claimed(run_dir, spec, resume=resume, overwrite=overwrite) as lock:
        with os_errors(run_dir):
            session = _Session(algorithm, spec, run_dir, lock, display or Display(), command)
        try:
            session.train(callbacks)
        except BaseException as error:
            ours = not isinstance(error, LockLostError)
            if ours and isinstance(error, Exception | RunInterrupted):  # a second Ctrl-C means now
                with contextlib.suppress(OSError, ValueError):
                    session.conclude()
            raise
        with os_errors(run_dir):
            session.save()
            session.draw()
            return session.conclude()


def load_moment(algorithm: Algorithm[S], spec: RunSpec, folder: Folder) -> Moment[S]:
    """A run at its newest checkpoint, or before its first iteration if it has none."""
    new = first_moment(algorithm, spec)
    if not folder.numbers():
        return new
    template = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), new.state)
    finite = new.finite
    del new  # before another state of that size is read
    loaded = folder.load(template, finite=finite)
    try:
        return Moment(loaded.state, Progress(**loaded.extra), finite)
    except TypeError:
        raise CheckpointError(f"the checkpoint in {folder.path} was not written by a training run") from None


class _Session(Generic[S]):
    """The work of one process on a run: the last complete iteration, and whether it is on disk."""

    def __init__(
        self,
        algorithm: Algorithm[S],
        spec: RunSpec,
        run_dir: Path,
        lock: Lock,
        display: Display,
        command: str,
    ):
        """Load the newest checkpoint, rewind metrics.csv to it, and record how this process runs."""
        self.algorithm, self.spec, self.run_dir, self.lock = algorithm, spec, run_dir, lock
        self.display = display
        self.folder, self.metrics = Folder(run_dir / "checkpoint"), MetricsFile(run_dir / "metrics.csv")
        self.began = self.saved_at = time.perf_counter()
        self.saved, self.cost = True, 0.0
        self.now = load_moment(algorithm, spec, self.folder)
        self.seconds_before = self.now.progress.seconds["total"]
        self.metrics.rewind(int(self.now.state.iteration))
        self.manifest = make_manifest(command, read_json(run_dir / "manifest.json"))
        write_json(run_dir / "manifest.json", self.manifest)

    def train(self, callbacks: Sequence[Callback]) -> None:
        """Iterate until the run is finished, or a callback or Ctrl-C stops it."""
        with _Interrupts() as interrupts:
            try:
                train(
                    self.algorithm,
                    self.spec,
                    self.now,
                    done=lambda moment: finished(self.spec, self.algorithm, moment),
                    keep=self.keep,
                    display=self.display,
                    callbacks=callbacks,
                    call=interrupts.call,
                )
            except KeyboardInterrupt:
                if interrupts.count > 1:
                    raise
                self.save()
                raise RunInterrupted from None

    def keep(self, moment: Moment[S]) -> None:
        """Write the row of a complete iteration and, if it is time, a checkpoint."""
        assert moment.row is not None
        self.lock.check()
        self.now, self.saved = moment, False
        with os_errors(self.run_dir):
            self.metrics.append(moment.row)
        if self.cost <= CHECKPOINT_SHARE * (time.perf_counter() - self.saved_at):
            self.save()

    def save(self) -> None:
        """Write a checkpoint of the last complete iteration, and its summary."""
        if self.saved:
            return
        self.display.phase("save")
        began = time.perf_counter()
        seconds = self.now.progress.seconds | {"total": self.seconds_before + began - self.began}
        self.now = self.now._replace(progress=dataclasses.replace(self.now.progress, seconds=seconds))
        state, progress = self.now.state, self.now.progress
        try:
            check_finite(state, self.now.finite, self.spec.horizon)
        except DivergedError:
            self.saved = True  # never save this state
            raise
        with os_errors(self.run_dir):
            self.metrics.sync()
            self.folder.save(int(state.iteration), state, dataclasses.asdict(progress))
            write_json(self.run_dir / "summary.json", summarize(self.spec, self.algorithm, self.now))
        self.saved, self.saved_at = True, time.perf_counter()
        self.cost = self.saved_at - began

    def draw(self) -> None:
        """Save the image of the decoders, if latent states are known."""
        self.display.phase("draw")
        spec = self.spec
        table = examine_decoder(self.algorithm, self.now.state, spec)
        if table is not None:
            title = f"{spec.algorithm} on {spec.env}, H = {spec.horizon}, seed {spec.seed}"
            draw_decoder(table, self.run_dir / "decoder.png", title)

    def conclude(self) -> dict[str, Any]:
        """Save the last iteration, record the end of this process, and close the display."""
        self.save()
        total = self.seconds_before + time.perf_counter() - self.began
        summary = summarize(self.spec, self.algorithm, self.now)
        summary["seconds"] = summary["seconds"] | {"total": total}
        write_json(self.run_dir / "summary.json", summary)
        write_json(self.run_dir / "manifest.json", close_manifest(self.manifest))
        self.display.end(summary | how_it_ended(self.spec, self.algorithm, self.now), self.run_dir)
        return summary


class _Interrupts:
    """Ctrl-C once leaves the iteration, after files are written; Ctrl-C twice leaves at once.

    Every file is replaced atomically, so leaving at once loses at most the newest iterations.
    """

    def __init__(self):
        self.count, self._allowed = 0, False
        self._main = threading.current_thread() is threading.main_thread()

    def __enter__(self) -> "_Interrupts":
        if self._main:
            self._previous = signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(self, *_: Any) -> None:
        if self._main:
            signal.signal(signal.SIGINT, self._previous)

    def _handle(self, *_: Any) -> None:
        self.count += 1
        if self._allowed or self.count > 1:
            raise KeyboardInterrupt

    def call(self, step: Callable[[], R]) -> R:
        """The result of `step`. The first Ctrl-C takes effect at once; one before the call, on entry."""
        self._allowed = True
        try:
            if self.count:
                raise KeyboardInterrupt
            return in_thread(step)
        finally:
            self._allowed = False


@contextlib.contextmanager
def claimed(path: Path, spec: RunSpec, *, resume: bool, overwrite: bool) -> Iterator[Lock]:
    """Lock the directory, check that it may be used for `spec`, and write config.json; else `RunError`.

    A directory with a run needs `resume` (same values) or `overwrite` (the files of the run are removed). A
    directory with foreign files needs `overwrite` (they stay).
    """
    with contextlib.ExitStack() as stack:
        with os_errors(path):
            path.mkdir(parents=True, exist_ok=True)
            lock = stack.enter_context(locked(path / "lock"))
            for leftover in (*path.glob(".*.partial"), *path.glob("checkpoint/.*.partial")):
                leftover.unlink()  # incomplete files of a killed process
            if overwrite:
                _remove_run(path)
            else:
                _check(path, spec, resume)
            write_json(path / "config.json", spec.to_json())
        yield lock


def _check(path: Path, spec: RunSpec, resume: bool) -> None:
    """Raise `RunError` unless the directory is empty or holds the run `spec`, to be resumed."""
    known = read_json(path / "config.json")
    if known is None:
        if any(file.name != "lock" for file in path.iterdir()):
            raise RunError(f"{path} is not empty and not a run directory: choose another or add --overwrite")
        return
    if not resume:
        state = "a finished" if (read_json(path / "summary.json") or {}).get("finished") else "an unfinished"
        advice = "add --resume to continue it, --overwrite to replace it, or choose another --run-dir"
        raise RunError(f"{path} holds {state} run: {advice}")
    if difference := Wanted(spec).difference(flatten(known)):
        change = "{} = {!r}, not {!r}".format(*difference)
        raise RunError(f"{path} was started with {change}: resume with the same value")
    # a process killed between its first row and its first checkpoint leaves one row and no summary.json
    rows = len(read_table(path / "metrics.csv"))
    begun = rows > 1 or (rows == 1 and (path / "summary.json").exists())
    if begun and not any(path.glob("checkpoint/*.npz")):
        state = f"{path} has rows in metrics.csv but no checkpoint to continue from"
        raise RunError(f"{state}: start anew with --overwrite, or remove the folder")


def _remove_run(path: Path) -> None:
    """Remove the checkpoints first: a process killed halfway leaves a run directory, not a foreign one."""
    for file in (*path.glob("checkpoint/*.npz"), *(path / name for name in OUTCOMES)):
        file.unlink(missing_ok=True)
