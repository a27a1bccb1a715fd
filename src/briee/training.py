"""One training iteration and its judgement: time, evaluate, decide `solved`. No files, no display.

An algorithm's update is a pure function of its state, and evaluation draws from its own key stream, so how
often a run is stopped and continued changes nothing.
"""

import dataclasses
import math
import time
from collections.abc import Callable, Collection
from functools import lru_cache
from typing import Any, get_args, get_type_hints

import jax
import numpy as np

from briee import checkpoint, rollout
from briee.config import EvaluationConfig
from briee.randomness import stream
from briee.report.decoder import DecoderTable, decoder_accuracy, decoder_table, draw_observations
from briee.rundir import RunError, RunSpec

VERBS = ("collect", "represent", "plan")

POLICIES = get_args(get_type_hints(EvaluationConfig)["policy"])
"""Names of the policies that an algorithm may have."""

UNKNOWABLE = ("explore_return", "reached_level", "decoder_accuracy")
"""Columns in which NaN means that nobody can tell, as in environments that hide their latent states."""

Row = dict[str, Any]
"""One row of metrics.csv by column; None where a quantity does not exist."""


class DivergedError(RunError):
    """NaN or infinity in training; the message names quantity, level and iteration."""


@dataclasses.dataclass(frozen=True)
class Progress:
    """What the runner knows beside the algorithm's state; stored in every checkpoint."""

    streak: int = 0
    """Evaluations in a row, up to now, that reached the optimal return."""
    episodes_to_solve: int | None = None
    """Training episodes at the end of the first long enough streak."""
    eval_episodes: int = 0
    """Evaluation episodes so far; they are no training episodes."""
    final_return: float | None = None
    """Mean return of the last evaluation."""
    seconds: dict[str, float] = dataclasses.field(
        default_factory=lambda: dict.fromkeys((*VERBS, "evaluate", "total"), 0.0)
    )
    """Time spent, by activity."""

    @property
    def solved(self) -> bool:
        """Whether a streak was ever long enough."""
        return self.episodes_to_solve is not None

    def spend(self, **seconds: float) -> "Progress":
        """With these times added, by activity."""
        total = self.seconds | {name: self.seconds[name] + value for name, value in seconds.items()}
        return dataclasses.replace(self, seconds=total)


def reaches_optimum(returns: np.ndarray, optimal_return: float | None, tolerance: float | None) -> bool:
    """The paper's rule for one evaluation: every episode reaches the optimal return.

    Where even an optimal policy fails at times, give a `tolerance`: then the mean must come that close.
    """
    if optimal_return is None:
        return False
    rounding = 1e-5 * max(1.0, abs(optimal_return))
    if tolerance is None:
        return bool((returns >= optimal_return - rounding).all())
    return bool(returns.mean() >= optimal_return - tolerance - rounding)


def iterate(
    algorithm: Any,
    state: Any,
    progress: Progress,
    spec: RunSpec,
    phase: Callable[[str], Any] = lambda name: None,
) -> tuple[Any, Progress, Row]:
    """One iteration: update the algorithm, evaluate its policy, judge it. `phase` is told what begins."""
    seconds = {}
    for verb in VERBS:
        phase(verb)
        began = time.perf_counter()
        state = jax.block_until_ready(getattr(algorithm, verb)(state))
        seconds[verb] = time.perf_counter() - began
    phase("evaluate")
    began = time.perf_counter()
    returns, accuracy = evaluate(algorithm, state, spec)
    measured = algorithm.metrics(state)
    seconds["evaluate"] = time.perf_counter() - began
    rule = evaluation_config(spec)
    own, target = algorithm.sampler.optimal_return, rule.target_return
    optimum = reaches_optimum(returns, own if target is None else target, rule.tolerance)
    streak = progress.streak + 1 if optimum else 0
    solved_now = streak >= rule.streak and not progress.solved
    progress = dataclasses.replace(
        progress.spend(**seconds),
        streak=streak,
        episodes_to_solve=int(state.episodes) if solved_now else progress.episodes_to_solve,
        eval_episodes=progress.eval_episodes + len(returns),
        final_return=float(returns.mean()),
    )
    return state, progress, metrics_row(state, progress, measured | {"decoder_accuracy": accuracy}, seconds)


def metrics_row(state: Any, progress: Progress, measured: dict[str, Any], seconds: dict[str, float]) -> Row:
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


def evaluate(algorithm: Any, state: Any, spec: RunSpec) -> tuple[np.ndarray, float | None]:
    """Returns f64[episodes] of the policy in question, and the decoders' accuracy where latents are known.

    The keys depend on the seed and the iteration alone and are used for nothing else.
    """
    rule = evaluation_config(spec)
    key = stream(jax.random.key(spec.seed), "evaluation", int(state.iteration))
    policy = policy_of_kind(algorithm, state, rule.policy)
    returns = np.asarray(rollout.evaluate(algorithm.sampler, policy, key, rule.episodes))
    table = examine_decoder(algorithm, state, spec)
    return returns, None if table is None else decoder_accuracy(table)


def examine_decoder(algorithm: Any, state: Any, spec: RunSpec) -> DecoderTable | None:
    """Decoded states of observations of each latent state, or None where either is unknown."""
    pure = getattr(algorithm.sampler, "pure", None)
    if pure is None or not hasattr(pure, "latent_model"):
        return None
    try:
        return decoder_table(algorithm, state, _examples(algorithm.sampler, spec.seed))
    except NotImplementedError:
        return None


@lru_cache(maxsize=1)  # the same at every evaluation of a run
def _examples(sampler: Any, seed: int) -> Any:
    return draw_observations(sampler.pure, stream(jax.random.key(seed), "decoder"))


def policy_of_kind(algorithm: Any, state: Any, kind: str) -> Any:
    """The algorithm's policy, or `RunError` where it has none of that kind."""
    if kind not in POLICIES:
        raise RunError(f"unknown policy {kind!r}: known are {', '.join(POLICIES)}")
    if kind == "mixture" and not getattr(algorithm, "has_mixture", False):
        raise RunError(f"{algorithm.name} keeps no past policies, so it has no mixture of them")
    try:
        return algorithm.policy(state, kind)
    except ValueError as error:
        raise RunError(str(error)) from None


def evaluation_config(spec: RunSpec) -> EvaluationConfig:
    """How policies are judged: the configuration's own rule, or the paper's."""
    return getattr(spec.config, "evaluation", EvaluationConfig())


def check_finite(state: Any, names: Collection[str], horizon: int, largest: int | None = None) -> None:
    """Raise `DivergedError` when a leaf among `names` with up to `largest` numbers has NaN or infinity."""
    if bad := checkpoint.nonfinite(state, names, largest):
        level = f" at level {bad.index[0]}" if bad.shape[:1] == (horizon,) else ""
        where = f"{level} after iteration {int(state.iteration)}"
        raise DivergedError(f"training diverged: {bad.name} holds NaN or infinity{where}")


def check_row(row: Row) -> None:
    """Raise `DivergedError` when a value is NaN or infinite."""
    for name, value in row.items():
        if value is not None and not math.isfinite(value):
            raise DivergedError(f"training diverged: {name} is {value} after iteration {row['iteration']}")


def summarize(spec: RunSpec, algorithm: Any, state: Any, progress: Progress) -> dict[str, Any]:
    """The contents of summary.json."""
    collect = getattr(spec.config, "collect", None)
    return {
        "algorithm": spec.algorithm,
        "preset": spec.preset,
        "env": spec.env,
        "horizon": spec.horizon,
        "seed": spec.seed,
        "solved": progress.solved,
        "finished": finished(spec, algorithm, state, progress),
        "episodes": int(state.episodes),
        "episodes_to_solve": progress.episodes_to_solve,
        "warmup_episodes": int(getattr(collect, "warmup_episodes", 0)),
        "env_steps": int(state.env_steps),
        "eval_episodes": progress.eval_episodes,
        "final_return": progress.final_return,
        "optimal_return": _number(algorithm.sampler.optimal_return),
        "seconds": progress.seconds,
    }


def finished(spec: RunSpec, algorithm: Any, state: Any, progress: Progress) -> bool:
    """A run ends when it is solved or its budget of episodes is used up."""
    return solved_is_the_end(algorithm, progress) or int(state.episodes) >= spec.episodes


def solved_is_the_end(algorithm: Any, progress: Progress) -> bool:
    """Whether the run is solved, and its algorithm has nothing more to do then; reward-free ones have."""
    return progress.solved and getattr(algorithm, "stops_when_solved", True)


def _number(value: Any) -> int | float | None:
    return value if value is None or isinstance(value, int) else float(value)
