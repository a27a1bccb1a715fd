"""The training loop: update the algorithm, evaluate its policy, judge it; repeat until done.

An agent in memory and a run on disk use this one loop. An update is a pure function of the algorithm's state,
and evaluation draws from its own key stream. So stopping and resuming a run changes no number.
"""

import dataclasses
import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache, partial
from itertools import pairwise
from typing import Any, Generic, NamedTuple, get_args

import jax
import numpy as np
from jaxtyping import Array, Float

from briee.diagnose.decoder_table import DecoderTable, decoder_accuracy, decoder_table, draw_observations
from briee.errors import RunError
from briee.numerics.keys import stream
from briee.protocols import Algorithm, PhaseHook, Policy, PolicyKind, S, Sampler, State
from briee.rollout.samplers import evaluate
from briee.training.checkpoint import finite_names, nonfinite
from briee.training.progress import Display
from briee.training.spec import RunSpec

PHASES = ("collect", "represent", "plan")
"""Parts of an update whose time is measured."""

UNKNOWABLE = ("explore_return", "reached_level", "decoder_accuracy")
"""Columns in which NaN means unknown, as in environments that hide their latent states."""

ALWAYS_CHECKED = 2**20
"""Arrays of up to this many numbers are searched for NaN after each iteration. Larger arrays hold data; they
are searched only before they are saved."""

SETTLED = 50
"""Without a target, a run ends after this many evaluations in a row in which every episode has one and the
same return, above an earlier one or that of exploration, while nothing is left to discover: its policy will
not change any more."""
NOTHING_LEFT = 0.01
"""The chance that an exploring episode discovers something, at most, if nothing is left."""

Row = dict[str, Any]
"""One row of metrics.csv by column; None if a quantity is unknown."""

Callback = Callable[[Row], Any]
"""Called after each iteration with its row of metrics; a true return value stops the loop."""


class DivergedError(RunError):
    """Training produced NaN or infinity; the message names quantity, level and iteration."""


@dataclasses.dataclass(frozen=True)
class Progress:
    """Counters of the loop, stored in every checkpoint beside the algorithm's state."""

    streak: int = 0
    """Latest consecutive evaluations that reached the optimal return."""
    episodes_to_solve: int | None = None
    """Training episodes at the end of the first streak that was long enough."""
    eval_episodes: int = 0
    """Evaluation episodes so far; they do not count as training episodes."""
    final_return: float | None = None
    """Mean return of the last evaluation."""
    least_return: float | None = None
    """Smallest mean return of all evaluations."""
    settled: int = 0
    """Latest consecutive evaluations with one return in every episode while nothing is left to discover."""
    seconds: dict[str, float] = dataclasses.field(
        default_factory=lambda: dict.fromkeys((*PHASES, "evaluate", "total"), 0.0)
    )
    """Seconds spent, by activity."""

    @property
    def solved(self) -> bool:
        """Whether a streak was ever long enough."""
        return self.episodes_to_solve is not None


class Moment(NamedTuple, Generic[S]):
    """A run after a complete iteration, or before the first."""

    state: S
    progress: Progress
    finite: frozenset[str]
    """Names of the leaves of the state that must stay finite: those that are finite in the initial state."""
    row: Row | None = None
    """The metrics of the iteration."""


def train(
    algorithm: Algorithm[S],
    spec: RunSpec,
    now: Moment[S],
    *,
    done: Callable[[Moment[S]], bool],
    keep: Callable[[Moment[S]], None],
    display: Display,
    callbacks: Sequence[Callback] = (),
    call: Callable[[Callable[[], Any]], Any] = lambda step: step(),
) -> None:
    """Iterate until `done` or a callback returns true; `keep` stores every complete iteration.

    `call` calls a step, and may be interrupted meanwhile: an iteration counts only once it is complete.
    """
    display.start(spec, now.state)
    if not now.state.iteration and not done(now):
        display.phase("compile")
        call(partial(algorithm.compile, now.state))
    while not done(now):  # Alg. 1, l. 3
        now = call(partial(iterate, algorithm, spec, now, display.phase))
        keep(now)
        assert now.row is not None
        display.iteration(now.row)
        stops = [callback(now.row) for callback in callbacks]  # call all of them
        if any(stops):
            break


def first_moment(algorithm: Algorithm[S], spec: RunSpec) -> Moment[S]:
    """A run before its first iteration."""
    state = algorithm.init(jax.random.key(spec.seed))
    return Moment(state, Progress(), finite_names(state))


def iterate(algorithm: Algorithm[S], spec: RunSpec, now: Moment[S], phase: PhaseHook) -> Moment[S]:
    """One iteration: update the algorithm, evaluate its policy, judge it; `phase` hears what begins."""
    clock = PhaseClock(phase)
    state = jax.block_until_ready(algorithm.update(now.state, clock))
    clock("evaluate")
    returns, accuracy = evaluate_policy(algorithm, state, spec)
    measured = algorithm.metrics(state)
    seconds = clock.seconds()
    progress = count_settled(now.progress, returns, measured)
    progress = judge(progress, returns, algorithm.sampler.optimal_return, spec, int(state.episodes))
    spent = {**seconds, "total": sum(seconds.values())}
    spent = {name: value + progress.seconds[name] for name, value in spent.items()}
    progress = dataclasses.replace(progress, seconds=spent)
    row = metrics_row(state, progress, measured | {"decoder_accuracy": accuracy}, seconds)
    check_finite(state, now.finite, spec.horizon, ALWAYS_CHECKED)
    check_row(row)
    return Moment(state, progress, now.finite, row)


class PhaseClock:
    """A `PhaseHook` that notes when each phase begins, and calls another hook."""

    def __init__(self, hook: PhaseHook):
        self.hook = hook
        self.began: list[tuple[str, float]] = []

    def __call__(self, name: str) -> None:
        self.began.append((name, time.perf_counter()))
        self.hook(name)

    def seconds(self) -> dict[str, float]:
        """The seconds of every phase until now."""
        seconds: dict[str, float] = dict.fromkeys((*PHASES, "evaluate"), 0.0)
        for (name, start), (_, end) in pairwise([*self.began, ("", time.perf_counter())]):
            seconds[name] += end - start
        return seconds


def judge(
    progress: Progress, returns: np.ndarray, optimal: float | None, spec: RunSpec, episodes: int
) -> Progress:
    """The progress after another evaluation."""
    rule = spec.config.evaluation
    target = optimal if rule.target_return is None else rule.target_return
    streak = progress.streak + 1 if reaches_optimum(returns, target, rule.tolerance) else 0
    solved_now = streak >= rule.streak and not progress.solved
    return dataclasses.replace(
        progress,
        streak=streak,
        episodes_to_solve=episodes if solved_now else progress.episodes_to_solve,
        eval_episodes=progress.eval_episodes + len(returns),
        final_return=float(returns.mean()),
    )


def count_settled(progress: Progress, returns: np.ndarray, measured: Mapping[str, float]) -> Progress:
    """The progress, with the number of evaluations since which the return has been constant."""
    mean, least = float(returns.mean()), progress.least_return
    least = np.nanmin([mean, np.inf if least is None else least, measured.get("explore_return", np.inf)])
    constant = np.ptp(returns) == 0 and measured.get("discovery_chance", np.inf) <= NOTHING_LEFT
    count = progress.settled + 1 if mean == progress.final_return else 1
    settled = count if constant and mean > least else 0
    return dataclasses.replace(progress, least_return=float(least), settled=settled)


def reaches_optimum(returns: np.ndarray, optimal_return: float | None, tolerance: float | None) -> bool:
    """The paper's rule for one evaluation: every episode reaches the optimal return.

    If even an optimal policy sometimes fails, give a `tolerance`: the mean must come that close.
    """
    if optimal_return is None:
        return False
    rounding = 1e-5 * max(1.0, abs(optimal_return))
    if tolerance is None:
        return bool((returns >= optimal_return - rounding).all())
    return bool(returns.mean() >= optimal_return - tolerance - rounding)


def metrics_row(state: State, progress: Progress, measured: dict[str, Any], seconds: dict[str, float]) -> Row:
    """One row of metrics.csv: counters, the documented columns, the algorithm's further ones, times."""
    documented = (*UNKNOWABLE, "replearn_gap", "levels_refit")
    further = sorted(measured.keys() - set(documented))
    unknown = {name for name in UNKNOWABLE if math.isnan(measured.get(name) or 0.0)}
    measured = measured | dict.fromkeys(unknown)
    return {
        "iteration": int(state.iteration),
        "episodes": int(state.episodes),
        "env_steps": int(state.env_steps),
        "eval_return": progress.final_return,
        **{name: _number(measured.get(name)) for name in (*documented, *further)},
        "solved_streak": progress.streak,
        **{f"seconds_{name}": value for name, value in seconds.items()},
    }


def evaluate_policy(algorithm: Algorithm[S], state: S, spec: RunSpec) -> tuple[np.ndarray, float | None]:
    """Returns f64[episodes] of the policy that the settings name, and the decoders' accuracy if it is known.

    The keys depend only on the seed and the iteration, and nothing else uses them.
    """
    rule = spec.config.evaluation
    key = stream(jax.random.key(spec.seed), "evaluation", int(state.iteration))
    policy = policy_of_kind(algorithm, state, rule.policy)
    returns = evaluate(algorithm.sampler, policy, key, rule.episodes)
    table = examine_decoder(algorithm, state, spec)
    return returns, None if table is None else decoder_accuracy(table)


def examine_decoder(algorithm: Algorithm[S], state: S, spec: RunSpec) -> DecoderTable | None:
    """Decoded states of observations of each latent state, or None if either is unknown."""
    if algorithm.sampler.knowledge.latent_model is None or not algorithm.capabilities.decodes:
        return None
    return decoder_table(algorithm, state, _examples(algorithm.sampler, spec.seed))


@lru_cache(maxsize=1)  # every evaluation of a run uses the same
def _examples(sampler: Sampler, seed: int) -> Float[Array, "H Z n ..."]:
    return draw_observations(
        sampler.knowledge.held_out or sampler.pure, stream(jax.random.key(seed), "decoder")
    )


def policy_of_kind(algorithm: Algorithm[S], state: S, kind: PolicyKind) -> Policy:
    """The algorithm's policy, or `RunError` if it has none of that kind."""
    if kind not in get_args(PolicyKind):
        raise RunError(f"unknown policy {kind!r}: known are {', '.join(get_args(PolicyKind))}")
    if kind == "mixture" and not algorithm.capabilities.mixture:
        raise RunError(f"{algorithm.name} keeps no past policies, so it has no mixture of them")
    try:
        return algorithm.policy(state, kind)
    except ValueError as error:
        raise RunError(str(error)) from None


def check_finite(state: State, names: Collection[str], horizon: int, largest: int | None = None) -> None:
    """Raise `DivergedError` if a leaf among `names` with up to `largest` numbers has NaN or infinity."""
    if bad := nonfinite(state, names, largest):
        level = f" at level {bad.index[0]}" if bad.shape[:1] == (horizon,) else ""
        where = f"{level} after iteration {int(state.iteration)}"
        raise DivergedError(f"training diverged: {bad.name} holds NaN or infinity{where}")


def check_row(row: Row) -> None:
    """Raise `DivergedError` if a value is NaN or infinite."""
    for name, value in row.items():
        if value is not None and not math.isfinite(value):
            raise DivergedError(f"training diverged: {name} is {value} after iteration {row['iteration']}")


def summarize(spec: RunSpec, algorithm: Algorithm[S], moment: Moment[S]) -> dict[str, Any]:
    """The contents of summary.json."""
    state, progress = moment.state, moment.progress
    return {
        "algorithm": spec.algorithm,
        "preset": spec.preset,
        "env": spec.env,
        "horizon": spec.horizon,
        "seed": spec.seed,
        "solved": progress.solved,
        "finished": finished(spec, algorithm, moment),
        "episodes": int(state.episodes),
        "episodes_to_solve": progress.episodes_to_solve,
        "warmup_episodes": spec.config.warmup_episodes,
        "env_steps": int(state.env_steps),
        "eval_episodes": progress.eval_episodes,
        "final_return": progress.final_return,
        "optimal_return": _number(algorithm.sampler.optimal_return),
        "seconds": progress.seconds,
    }


def target_of(spec: RunSpec, algorithm: Algorithm[Any]) -> float | None:
    """The return that counts as optimal, if one is known or given."""
    given = spec.config.evaluation.target_return
    return algorithm.sampler.optimal_return if given is None else given


def how_it_ended(spec: RunSpec, algorithm: Algorithm[S], moment: Moment[S]) -> dict[str, Any]:
    """Facts for `summary_lines` that are not in summary.json: the target, and whether the run settled."""
    return {"target_return": target_of(spec, algorithm), "settled": moment.progress.settled >= SETTLED}


def finished(spec: RunSpec, algorithm: Algorithm[S], moment: Moment[S]) -> bool:
    """Whether a run is solved, settled, or has used up its budget of episodes."""
    return ends_early(spec, algorithm, moment.progress) or int(moment.state.episodes) >= spec.episodes


def ends_early(spec: RunSpec, algorithm: Algorithm[Any], progress: Progress) -> bool:
    """Whether a run ends before its budget: solved, or settled without a target; never if reward-free."""
    settled = progress.settled >= SETTLED and target_of(spec, algorithm) is None
    return (progress.solved or settled) and algorithm.capabilities.stops_when_solved


def _number(value: Any) -> int | float | None:
    return value if value is None or isinstance(value, int) else float(value)
