"""`briee plan`: plan for another reward, after a reward-free run."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import tyro

from briee.cli.evaluate import PlayArgs, returns_in_words
from briee.cli.main import Flag, parse, sentences
from briee.errors import UsageError


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlanArgs(PlayArgs):
    """Plan for a reward on the data of a reward-free run, without a new training episode, and play it.

    The reward is a function in a Python file of yours, written with jax.numpy. It takes (step, observation,
    action) and returns a number, or (step, observation) and returns one number per action; when its second
    parameter is named latent, it gets the decoded latent state, a vector of probabilities.
    """

    run_dir: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="DIR")]
    """Directory of the run, made by `briee train ENV --reward-free`."""
    reward: Annotated[str, tyro.conf.arg(metavar="FILE.py:function")]
    """The reward. Its file is run as it is, with all your rights: name only a file whose code you trust."""
    bonus: Flag = False
    """Plan with the exploration bonus added, as Algorithm 4 is printed."""


def run(argv: Sequence[str]) -> int:
    """Run the command; returns the exit code."""
    args = parse(PlanArgs, argv, "briee plan")
    agent = args.load()
    from briee.envs.adapters.third_party import load_from_file

    if not agent.algorithm.capabilities.plans_any_reward:
        kind = f"a run of {agent.algorithm.name}, not a reward-free one"
        raise UsageError(f"{args.run_dir} is {kind}: train one with --reward-free")
    with sentences():
        function = load_from_file(args.reward, "function")
        first, planned = (agent.plan(function, bonus=args.bonus) for _ in range(2))
    outcome = {
        "run_dir": str(args.run_dir),
        "reward": args.reward,
        "training_episodes": agent.episodes,
        "planned_value": planned.value,
        "plan_seconds": planned.seconds,
        "compile_seconds": first.seconds - planned.seconds,
        "episodes": args.episodes,
        **planned.evaluate(args.episodes, args.seed).numbers(),
    }
    print(json.dumps(outcome) if args.json else plan_lines(outcome))
    return 0


def plan_lines(outcome: dict[str, Any]) -> str:
    """The outcome of `briee plan` in words."""
    times = f"{outcome['plan_seconds']:.3f} s, after {max(outcome['compile_seconds'], 0):.1f} s of compiling"
    return (
        f"planned value {outcome['planned_value']:.4f}, in {times}, on {outcome['training_episodes']:,} "
        f"episodes of exploration\n"
        f"{returns_in_words(outcome)} of the planned policy"
    )
