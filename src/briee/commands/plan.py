"""`briee plan`: plan for another reward, after a reward-free run."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import tyro

from briee.arguments import Flag, UsageError, load_spec, parse, sentences
from briee.choose import check_seed
from briee.commands.process import build, learned, prepare_process, returns_in_words


@dataclasses.dataclass(frozen=True)
class PlanArgs:
    """Plan for a reward on the data of a reward-free run, without a new training episode, and play it.

    The reward is a function in a Python file of yours, written with jax.numpy. It takes (step, observation,
    action) and returns a number, or (step, observation) and returns one number per action; when its second
    parameter is named latent, it gets the decoded latent state, a vector of probabilities.
    """

    run_dir: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="DIR")]
    """Directory of the run, made by `briee train ENV --reward-free`."""
    reward: Annotated[str, tyro.conf.arg(metavar="FILE.py:function")]
    """The reward. Its file is run as it is, with all your rights: name only a file whose code you trust."""
    episodes: int = 100
    """Episodes to play with the planned policy."""
    seed: int = 0
    """Seed of these episodes; the environment is the run's."""
    bonus: Flag = False
    """Plan with the exploration bonus added, as Algorithm 4 is printed."""
    json: Flag = False
    """Print JSON."""


def run(argv: Sequence[str]) -> int:
    """Run the command; returns the exit code."""
    args = parse(PlanArgs, argv, "briee plan")
    if args.episodes < 1:
        raise UsageError(f"episodes must be >= 1, got {args.episodes}")
    with sentences():
        check_seed(args.seed)
    spec = load_spec(args.run_dir)
    prepare_process()
    import jax

    from briee.acting import Evaluation
    from briee.planned import plan, returns
    from briee.randomness import stream
    from briee.rewards import load_function

    algorithm = build(spec)
    if not hasattr(algorithm, "plan_for"):
        advice = "train one with --reward-free"
        raise UsageError(f"{args.run_dir} is a run of {spec.algorithm}, not a reward-free one: {advice}")
    state = learned(algorithm, spec, args.run_dir)
    try:
        function = load_function(args.reward)
        kind = "optimistic" if args.bonus else "greedy"
        first, planned = plan(algorithm, state, function, kind), plan(algorithm, state, function, kind)
    except ValueError as error:
        raise UsageError(str(error)) from None
    key = stream(jax.random.key(args.seed), "plan command")
    played = Evaluation.of(returns(algorithm.sampler, planned, key, args.episodes), None)
    outcome = {
        "run_dir": str(args.run_dir),
        "reward": args.reward,
        "training_episodes": int(state.episodes),
        "planned_value": planned.value,
        "plan_seconds": planned.seconds,
        "compile_seconds": first.seconds - planned.seconds,
        "episodes": args.episodes,
        **played.numbers(),
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
