"""`briee evaluate`: play episodes with the policy of a run."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from briee.arguments import Flag, UsageError, load_spec, parse, sentences
from briee.choose import check_seed
from briee.commands.process import build, learned, prepare_process, returns_in_words


@dataclasses.dataclass(frozen=True)
class EvaluateArgs:
    """Play episodes with the policy of a run."""

    run_dir: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="DIR")]
    """Directory of the run."""
    episodes: int = 100
    """Episodes to play."""
    seed: int = 0
    """Seed of these episodes; the environment is the run's."""
    policy: Literal["greedy", "optimistic", "mixture"] | None = None
    """The plan without bonus, with it, or the uniform mixture of the past policies that the run kept
    (--mixture-size); by default the one that the run itself evaluates."""
    json: Flag = False
    """Print JSON."""


def run(argv: Sequence[str]) -> int:
    """Run the command; returns the exit code."""
    args = parse(EvaluateArgs, argv, "briee evaluate")
    if args.episodes < 1:
        raise UsageError(f"episodes must be >= 1, got {args.episodes}")
    with sentences():
        check_seed(args.seed)
    spec = load_spec(args.run_dir)
    prepare_process()
    import jax

    from briee import rollout
    from briee.acting import Evaluation
    from briee.randomness import stream
    from briee.training import evaluation_config, policy_of_kind

    algorithm = build(spec)
    state = learned(algorithm, spec, args.run_dir)
    policy = policy_of_kind(algorithm, state, args.policy or evaluation_config(spec).policy)
    key = stream(jax.random.key(args.seed), "evaluate command")
    returns = rollout.evaluate(algorithm.sampler, policy, key, args.episodes)
    played = Evaluation.of(returns, algorithm.sampler.optimal_return)
    outcome = {
        "run_dir": str(args.run_dir),
        "iteration": int(state.iteration),
        "episodes": args.episodes,
        **played.numbers(),
        "optimal_return": played.optimal_return,
    }
    print(json.dumps(outcome) if args.json else evaluation_lines(outcome))
    return 0


def evaluation_lines(outcome: dict[str, Any]) -> str:
    """The outcome of `briee evaluate` in words."""
    optimal = "" if outcome["optimal_return"] is None else f"; optimal {outcome['optimal_return']:.4f}"
    return returns_in_words(outcome) + optimal
