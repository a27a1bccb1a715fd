"""`briee evaluate`: play episodes with the policy of a run."""

import dataclasses
import json
from collections.abc import Sequence
from typing import Literal

from briee.cli.main import parse
from briee.cli.play import PlayArgs, returns_in_words


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluateArgs(PlayArgs):
    """Play episodes with the policy of a run."""

    policy: Literal["greedy", "optimistic", "mixture"] | None = None
    """The plan without bonus, with it, or the uniform mixture of the past policies that the run kept
    (--mixture-size); by default the one that the run itself evaluates."""


def run(argv: Sequence[str]) -> int:
    """Run the command; returns the exit code."""
    args = parse(EvaluateArgs, argv, "briee evaluate")
    agent = args.load()
    played = agent.evaluate(args.episodes, args.seed, args.policy)
    outcome = {
        "run_dir": str(args.run_dir),
        "iteration": agent.iterations,
        "episodes": args.episodes,
        **played.numbers(),
        "optimal_return": played.optimal_return,
    }
    optimal = "" if played.optimal_return is None else f"; optimal {played.optimal_return:.4f}"
    print(json.dumps(outcome) if args.json else returns_in_words(outcome) + optimal)
    return 0
