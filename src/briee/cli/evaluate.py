"""`briee evaluate`: play episodes with the policy of a run. `briee plan` shares the arguments."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from briee.cli.main import Flag, parse, sentences
from briee.compute import prepare_process
from briee.configuration import check_seed
from briee.errors import UsageError

if TYPE_CHECKING:
    from briee.agent.agent import Agent


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlayArgs:
    """Play episodes with the agent of a run."""

    run_dir: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="DIR")]
    """Directory of the run, or the file of a saved agent."""
    episodes: int = 100
    """Episodes to play."""
    seed: int = 0
    """Seed of these episodes; the environment is the run's."""
    env: str | None = None
    """The environment of a saved agent, unless it is one that `briee envs` lists: a Gymnasium id, module:id
    or FILE.py:Class."""
    json: Flag = False
    """Print JSON."""

    def load(self) -> "Agent":
        """The agent of the run, after all arguments were checked."""
        if self.episodes < 1:
            raise UsageError(f"episodes must be >= 1, got {self.episodes}")
        with sentences():
            check_seed(self.seed)
        return load_agent(self.run_dir, self.env)


def load_agent(run_dir: Path, env: str | None = None) -> "Agent":
    """The agent of a run, or a saved one; whatever prevents it is a `UsageError`."""
    prepare_process()
    from briee.agent.files import load, load_run, stored_horizon
    from briee.rollout.samplers import adapt

    with sentences():
        if run_dir.is_file():
            return load(run_dir, env and adapt(env, stored_horizon(run_dir)))
        if env is not None:
            raise UsageError(f"{run_dir} is no saved agent but a run, whose environment is known: no --env")
        return load_run(run_dir)


def returns_in_words(outcome: dict[str, Any]) -> str:
    """Mean and range of the returns that were played."""
    mean = f"mean return {outcome['mean']:.4f} ± {outcome['standard_error']:.4f} (standard error)"
    spread = f"from {outcome['minimum']:.4f} to {outcome['maximum']:.4f}"
    return f"{mean}, {spread}, over {outcome['episodes']} episodes"


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
