"""Progress of a run: live in a terminal, plain lines elsewhere, then a short summary. Imports no JAX."""

import dataclasses
import sys
import threading
import time
from importlib.util import find_spec
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from briee.configuration import flatten
from briee.envs.registry import registered
from briee.training.spec import RunSpec, run_title

if TYPE_CHECKING:
    from briee.protocols import State

PHASES = {
    "compile": "compiling",
    "collect": "collecting episodes",
    "represent": "learning features",
    "plan": "planning",
    "evaluate": "evaluating",
    "save": "writing a checkpoint",
    "draw": "drawing the decoders",
}

PATIENCE = 10.0
"""Seconds without a line after which plain output says what is being done."""
REPRESENTATIONS = ("per level", "exact", "exact, with the step", "pooled")
"""Whose states the algorithm `general` uses, by the number in metrics.csv."""

KEEPS_FINDING = 0.2
"""Share of exploring episodes with a discovery from which on a run ends with a word about it."""


class Display:
    """A display of a run that shows nothing; a context manager. Other displays inherit from it."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None: ...

    def start(self, spec: RunSpec, state: "State") -> None:
        """The run starts, or continues, from `state`."""

    def phase(self, name: str) -> None:
        """A phase begins; `PHASES` lists the names."""

    def iteration(self, row: dict[str, Any]) -> None:
        """An iteration is complete; `row` holds its metrics."""

    def end(self, summary: dict[str, Any], run_dir: Path) -> None:
        """The run stops, for whatever reason."""


class PlainDisplay(Display):
    """One line per iteration, but at most one a second, and the summary; while an iteration takes long, a
    line about what it does."""

    def __init__(
        self, stream: IO[str] | None = None, seconds_between: float = 1.0, patience: float = PATIENCE
    ):
        self.stream, self.seconds_between, self.patience = stream or sys.stdout, seconds_between, patience
        self._env, self.horizon, self._last = "", 0, -float("inf")
        self._skipped: dict[str, Any] | None = None
        self._row: dict[str, Any] = {}
        self._doing, self._phase_began, self._said = "starting", time.monotonic(), time.monotonic()
        self._over = threading.Event()

    def __enter__(self) -> Self:
        threading.Thread(target=self._watch, daemon=True).start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._over.set()

    def _watch(self) -> None:
        """Say what is being done whenever nothing was said for a while."""
        while not self._over.wait(self.patience / 10):
            now = time.monotonic()
            if now - self._said >= self.patience:
                doing = _waiting(self._env, self.patience / 2) or self._doing
                self._print(f"{doing} ({now - self._phase_began:.0f} s so far)")

    def phase(self, name: str) -> None:
        self._doing, self._phase_began = PHASES.get(name, name), time.monotonic()

    def start(self, spec: RunSpec, state: "State") -> None:
        self._env, self.horizon = spec.env, spec.horizon
        self._print(headline(spec) + (f", from iteration {state.iteration}" if int(state.iteration) else ""))

    def iteration(self, row: dict[str, Any]) -> None:
        self._skipped = self._row = row
        if time.monotonic() - self._last >= self.seconds_between:
            self._flush()

    def end(self, summary: dict[str, Any], run_dir: Path) -> None:
        self._over.set()
        self._flush()
        for line in [*summary_lines(summary, run_dir), *states_lines(self._row, summary["solved"])]:
            self._print(line)

    def _flush(self) -> None:
        if self._skipped is not None:
            self._print("  ".join(f"{name} {value}" for name, value in cells(self._skipped, self.horizon)))
            self._skipped, self._last = None, time.monotonic()

    def _print(self, line: str) -> None:
        self._said = time.monotonic()
        print(line, file=self.stream, flush=True)


class LiveDisplay(Display):
    """A panel that is redrawn in place; leaving the context restores the terminal."""

    def __init__(self, console: Console | None = None):
        self.console = console or Console()
        self.doing, self.phase_began, self.began = "starting", time.monotonic(), time.monotonic()
        self.spec: RunSpec | None = None
        self.row: dict[str, Any] | None = None
        self.episodes = 0
        self.live = Live(get_renderable=self.render, console=self.console, refresh_per_second=4)

    def __enter__(self) -> Self:
        self.live.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self.live.stop()

    def start(self, spec: RunSpec, state: "State") -> None:
        self.spec, self.episodes = spec, int(state.episodes)

    def phase(self, name: str) -> None:
        self.doing, self.phase_began = PHASES.get(name, name), time.monotonic()

    def iteration(self, row: dict[str, Any]) -> None:
        self.row, self.episodes = row, row["episodes"]

    def end(self, summary: dict[str, Any], run_dir: Path) -> None:
        self.doing = ""
        self.live.stop()
        for line in [*summary_lines(summary, run_dir), *states_lines(self.row or {}, summary["solved"])]:
            self.console.print(line, highlight=False, soft_wrap=True)

    def render(self) -> Group:
        """The panel as it is now."""
        if self.spec is None:
            return Group(Text(f"{self.doing} ..."))
        bar = Table.grid(padding=(0, 1))
        budget = self.spec.episodes
        share = ProgressBar(total=max(budget, 1), completed=min(self.episodes, budget), width=40)
        bar.add_row("episodes", share, f"{self.episodes:,} of at most {budget:,}")
        now = time.monotonic()
        parts = [f"{name} {value}" for name, value in cells(self.row, self.spec.horizon)] if self.row else []
        what = _waiting(self.spec.env, PATIENCE / 2) or self.doing
        doing = f"{clock(now - self.began)}  {what} ({now - self.phase_began:.0f} s)"
        row, activity = Text("  ".join(parts)), Text(doing if self.doing else "", style="dim")
        return Group(Text(headline(self.spec), style="bold"), bar, row, activity)


def _waiting(env: str, seconds: float) -> str:
    """The call of an environment on the host that has lasted longer than this, in words."""
    if not env or registered(env):
        return ""
    from briee.envs.adapters.episodic import waiting  # a display alone needs no Gymnasium

    return waiting(seconds)


def make_display() -> PlainDisplay | LiveDisplay:
    """The live display in a terminal, and in a notebook that has ipywidgets; else plain lines."""
    console = Console()
    notebook = console.is_jupyter and find_spec("ipywidgets") is not None
    return LiveDisplay(console) if console.is_terminal or notebook else PlainDisplay()


def headline(spec: RunSpec) -> str:
    """One line about the run."""
    title = run_title(spec.algorithm, spec.preset, spec.env)
    values = flatten(dataclasses.asdict(spec.config)) if dataclasses.is_dataclass(spec.config) else {}
    latents = [value for name, value in values.items() if name.rpartition(".")[2] == "num_latents"]
    most = "at most " if spec.config.finds_states else ""
    states = f", {most}{latents[0]} latent states a level" if latents else ""
    side = spec.env_arguments.get("downsample")
    images = f", images averaged over {side} x {side} pixels" if side else ""
    return f"{title}, horizon {spec.horizon}{images}{states}, seed {spec.seed}"


def cells(row: dict[str, Any], horizon: int) -> list[tuple[str, str]]:
    """The main numbers of an iteration, as (name, text)."""
    shown = [("iteration", f"{row['iteration']}"), ("episodes", f"{row['episodes']:,}")]
    if row.get("reached_level") is not None:
        shown.append(("level", f"{row['reached_level']:.0f}/{horizon}"))
    for name, column in (("return", "eval_return"), ("exploring", "explore_return")):
        if row.get(column) is not None:
            shown.append((name, f"{row[column]:.3f}"))
    if row.get("decoder_accuracy") is not None:
        shown.append(("decoded", f"{row['decoder_accuracy']:.0%}"))
    if row.get("representation"):
        kind = REPRESENTATIONS[row["representation"]]
        shown.append(("states", f"{row['states_most']} ({kind})"))
    seconds = sum(value for name, value in row.items() if name.startswith("seconds_"))
    return [*shown, ("took", f"{seconds:.1f} s")]


def states_lines(row: dict[str, Any], solved: bool) -> list[str]:
    """Which states the algorithm `general` chose, and whether it keeps finding further ones."""
    if row.get("representation") is None:
        return []
    kind, chance = int(row["representation"]), row["discovery_chance"]
    found = f"{row['states_most']:,} in all" if kind else f"{row['states_mean']:.3g} a level"
    lines = [f"states: {REPRESENTATIONS[kind]}, {found}"]
    if not solved and chance > KEEPS_FINDING:
        meaning = "either more episodes are needed, or observations are continuous and have no states to find"
        lines.append(f"states keep being found, by {chance:.0%} of exploring episodes: {meaning}")
    return lines


def clock(seconds: float) -> str:
    """Minutes and seconds, and hours if there are any."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def summary_lines(summary: dict[str, Any], run_dir: Path) -> list[str]:
    """The outcome in three lines."""
    if summary["finished"] and summary.get("algorithm") == "reward-free":
        outcome = f"explored for {summary['episodes']:,} episodes"
    elif summary["solved"] and summary["episodes_to_solve"] < summary["episodes"]:
        outcome = f"{summary['episodes']:,} episodes, solved after {summary['episodes_to_solve']:,}"
    elif summary["solved"]:
        outcome = f"solved after {summary['episodes_to_solve']:,} episodes"
    elif summary["finished"] and summary.get("target_return", summary["optimal_return"]) is None:
        constant = "nothing is left to discover, and the return stays the same"
        why = constant if summary.get("settled") else "no target known"
        outcome = f"{summary['episodes']:,} episodes, {why}"
    elif summary["finished"]:
        outcome = f"not solved within {summary['episodes']:,} episodes"
    else:
        outcome = f"stopped after {summary['episodes']:,} episodes"
    optimal, final = summary["optimal_return"], summary["final_return"]
    value = "no evaluation yet" if final is None else f"last return {final:.3f}"
    best = "" if optimal is None else f", optimal {optimal:.3f}"
    seconds = summary["seconds"]
    parts = {name: seconds[name] for name in ("collect", "represent", "plan", "evaluate")}
    parts["compiling and files"] = max(seconds["total"] - sum(parts.values()), 0.0)
    spent = ", ".join(f"{name} {value:.1f}" for name, value in parts.items() if value >= 0.05)
    took = f"{seconds['total']:.1f} s" + (f" ({spent})" if spent else "")
    return [f"{outcome}; {value}{best}", took, f"files: {run_dir}"]
