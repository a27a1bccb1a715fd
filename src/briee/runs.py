"""Training runs in a run directory: start, record, checkpoint, stop, resume.

What is computed is `briee.training`'s business; this module makes sure that nothing of it is lost. A row of
metrics.csv is on disk before the checkpoint that contains its iteration, so that a killed run can always be
rewound to its checkpoint and continued.
"""

import contextlib
import dataclasses
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import jax

from briee.checkpoint import CheckpointError, Folder, finite_names
from briee.manifest import close_manifest, make_manifest
from briee.report.decoder import draw_decoder
from briee.rundir import MetricsFile, RunDirectory, RunSpec, os_errors
from briee.training import (
    DivergedError,
    Progress,
    Row,
    check_finite,
    check_row,
    examine_decoder,
    finished,
    iterate,
    summarize,
)

CHECKPOINT_SHARE = 0.02
"""A checkpoint waits while the last one took more than this share of the time since then."""

ALWAYS_CHECKED = 2**20
"""Arrays of up to so many numbers are searched for NaN after each iteration, larger ones, which hold data,
before a checkpoint is written."""

Callback = Callable[[Row], Any]
"""Called after each iteration with its row of metrics; a true return value stops the run."""


class RunInterrupted(KeyboardInterrupt):
    """Ctrl-C during a run, raised after its last complete iteration was saved."""


@runtime_checkable
class Display(Protocol):
    """What shows a run while it goes on."""

    def start(self, spec: RunSpec, state: Any, progress: Progress) -> None:
        """The run begins, or goes on, from `state`."""

    def phase(self, name: str) -> None:
        """What the run does now: collect, represent, plan, evaluate or save."""

    def iteration(self, row: Row) -> None:
        """An iteration is complete."""

    def end(self, summary: dict[str, Any], run_dir: Path) -> None:
        """The run stops, for whichever reason."""


class Silent:
    """A display that shows nothing."""

    def start(self, spec: RunSpec, state: Any, progress: Progress) -> None: ...
    def phase(self, name: str) -> None: ...
    def iteration(self, row: Row) -> None: ...
    def end(self, summary: dict[str, Any], run_dir: Path) -> None: ...


def run(
    algorithm: Any,
    spec: RunSpec,
    run_dir: Path | str,
    *,
    resume: bool = False,
    overwrite: bool = False,
    command: str = "",
    display: Display | None = None,
    callbacks: Sequence[Callback] = (),
) -> dict[str, Any]:
    """Train `algorithm` until it is solved or its budget is used up; returns what summary.json holds.

    With `resume` the run in `run_dir` is continued from its newest checkpoint, or started if it has no rows.
    Raises `RunError` or `CheckpointError`, both `ValueError`, with one sentence when the request cannot be
    carried out; `DivergedError` when training diverges and `RunInterrupted` after Ctrl-C, with the last
    complete iteration saved.
    """
    run_dir = Path(run_dir)
    with RunDirectory.open(run_dir, spec, resume=resume, overwrite=overwrite) as directory:
        session = _Session(algorithm, spec, directory, display or Silent())
        with os_errors(run_dir):
            session.restore()
            session.open_manifest(command)
        try:
            session.train(callbacks)
        except BaseException as error:
            if isinstance(error, Exception | RunInterrupted):  # a second Ctrl-C means now
                with contextlib.suppress(OSError, ValueError):
                    session.conclude()
            raise
        with os_errors(run_dir):
            session.save()
            session.draw()
            return session.conclude()


def load_state(algorithm: Any, seed: int, folder: Folder) -> tuple[Any, Progress, frozenset[str]]:
    """State and progress of the newest checkpoint, or of a new run where there is none.

    The third part names the leaves that must stay finite: those that are so in a new state.
    """
    state = algorithm.init(jax.random.key(seed))
    names = finite_names(state)
    if not folder.numbers():
        return state, Progress(), names
    template = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), state)
    del state
    loaded = folder.load(template, finite=names)
    try:
        return loaded.state, Progress(**loaded.extra), names
    except TypeError:
        raise CheckpointError(f"the checkpoint in {folder.path} was not written by a training run") from None


class _Session:
    """One process's work on a run: the last complete iteration, and how much of it is on disk."""

    def __init__(self, algorithm: Any, spec: RunSpec, directory: RunDirectory, display: Display):
        self.algorithm, self.spec, self.directory, self.display = algorithm, spec, directory, display
        self.folder = Folder(directory.checkpoints)
        self.metrics = MetricsFile(directory.path / "metrics.csv")
        self.began = self.saved_at = time.perf_counter()
        self.cost = 0.0
        self.saved = True

    def restore(self) -> None:
        """Take up the newest checkpoint, and bring metrics.csv back to it."""
        self.folder.clean()
        self.state, self.progress, self.names = load_state(self.algorithm, self.spec.seed, self.folder)
        self.seconds_before = self.progress.seconds["total"]
        self.metrics.rewind(int(self.state.iteration))

    def open_manifest(self, command: str) -> None:
        """Note where and how this process runs."""
        self.manifest = make_manifest(command, self.directory.read("manifest.json"))
        self.directory.write("manifest.json", self.manifest)

    def train(self, callbacks: Sequence[Callback]) -> None:
        """Iterate until the run is finished, a callback stops it, or Ctrl-C does."""
        self.display.start(self.spec, self.state, self.progress)
        with _Interrupts() as interrupts:
            try:
                while not finished(self.spec, self.algorithm, self.state, self.progress):
                    with interrupts.allowed():
                        complete = self.iterate()
                    self.record(*complete)
                    stops = [callback(complete[2]) for callback in callbacks]
                    if any(stops):
                        break
            except KeyboardInterrupt:
                if interrupts.count > 1:
                    raise
                self.save()
                raise RunInterrupted from None

    def iterate(self) -> tuple[Any, Progress, Row]:
        """One iteration beyond the last complete one, checked."""
        state, progress, row = iterate(
            self.algorithm, self.state, self.progress, self.spec, self.display.phase
        )
        check_finite(state, self.names, self.spec.horizon, ALWAYS_CHECKED)
        check_row(row)
        return state, progress, row

    def record(self, state: Any, progress: Progress, row: Row) -> None:
        """An iteration is complete: put its row, and if it is time a checkpoint, on disk."""
        self.state, self.progress, self.saved = state, progress, False
        with os_errors(self.directory.path):
            self.metrics.append(row)
        self.display.iteration(row)
        if self.cost <= CHECKPOINT_SHARE * (time.perf_counter() - self.saved_at):
            self.save()

    def save(self) -> None:
        """Write a checkpoint of the last complete iteration and the summary that belongs to it."""
        if self.saved:
            return
        self.display.phase("save")
        began = time.perf_counter()
        total = self.seconds_before + began - self.began
        self.progress = dataclasses.replace(self.progress, seconds=self.progress.seconds | {"total": total})
        try:
            check_finite(self.state, self.names, self.spec.horizon)
        except DivergedError:
            self.saved = True  # no checkpoint ever holds it
            raise
        with os_errors(self.directory.path):
            self.metrics.sync()
            self.folder.save(int(self.state.iteration), self.state, dataclasses.asdict(self.progress))
            self.directory.write("summary.json", self.summary())
        self.saved, self.saved_at = True, time.perf_counter()
        self.cost = self.saved_at - began

    def summary(self) -> dict[str, Any]:
        """The outcome up to the last complete iteration."""
        return summarize(self.spec, self.algorithm, self.state, self.progress)

    def draw(self) -> None:
        """Save the picture of the decoders, where latent states are known."""
        self.display.phase("draw")
        spec = self.spec
        table = examine_decoder(self.algorithm, self.state, spec)
        if table is not None:
            title = f"{spec.algorithm} on {spec.env}, H = {spec.horizon}, seed {spec.seed}"
            draw_decoder(table, self.directory.path / "decoder.png", title)

    def conclude(self) -> dict[str, Any]:
        """Save what is not saved, note the end, and tell the display."""
        self.save()
        summary = self.summary()
        self.directory.write("summary.json", summary)
        self.directory.write("manifest.json", close_manifest(self.manifest))
        self.display.end(summary, self.directory.path)
        return summary


class _Interrupts:
    """Ctrl-C once: leave the iteration, or finish writing first; twice: leave at once, wherever that is.

    Every file is replaced atomically, so leaving at once loses at most the newest iterations.
    """

    def __init__(self):
        self.count = 0
        self._allowed = False
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

    @contextlib.contextmanager
    def allowed(self) -> Iterator[None]:
        """A stretch in which the first Ctrl-C takes effect at once; one from before takes effect here."""
        self._allowed = True
        try:
            if self.count:
                raise KeyboardInterrupt
            yield
        finally:
            self._allowed = False
