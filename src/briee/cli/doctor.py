"""`briee doctor`: tell in a minute whether an environment looks like one that BRIEE can handle."""

import contextlib
import dataclasses
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from briee.cli.evaluate import load_agent
from briee.cli.main import parse, sentences, split_options
from briee.compute import prepare_process
from briee.errors import RunError, UsageError

if TYPE_CHECKING:
    from briee.agent.agent import Agent
    from briee.diagnose.run_verdict import Step
    from briee.protocols import Algorithm
    from briee.training.spec import RunSpec


@dataclasses.dataclass(frozen=True)
class DoctorArgs:
    """Play random episodes and say in plain words whether the environment suits BRIEE; or, of a run
    directory, whether its decoders merge latent states.

    Arguments of the environment are given as --env.NAME VALUE, for example --env.noise 0.2, and those of
    --rich as --rich.NAME VALUE.
    """

    env: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="ENV")]
    """Short name of an environment that `briee envs` lists, any Gymnasium id, or FILE.py:Class; or the
    directory of a run."""
    horizon: int | None = None
    """Steps per episode, H; the environment's own time limit if missing."""
    rich: Literal["hadamard", "random", "image", "noise"] | None = None
    """Show Discrete observations through noisy vectors or images, arrays through noise, as `briee train`
    does."""
    num_latents: int | None = None
    """Say, too, whether this many latent states are too few for what random play already shows."""
    episodes: int | None = None
    """Random episodes to play; by default 2,000 if they can be compiled, else 1,000."""
    seed: int = 0
    """Seed of these episodes."""


def run(argv: Sequence[str]) -> int:
    """Run the command; returns the exit code."""
    argv, arguments = split_options(argv, "--env.")
    argv, rich_arguments = split_options(argv, "--rich.")
    args = parse(DoctorArgs, argv, "briee doctor")
    if args.episodes is not None and args.episodes < 100:
        raise UsageError(f"episodes must be >= 100 to tell anything, got {args.episodes}")
    if args.num_latents is not None and args.num_latents < 1:
        raise UsageError(f"num_latents must be >= 1, got {args.num_latents}")
    if rich_arguments and args.rich is None:
        raise UsageError("--rich.NAME needs --rich: hadamard, random, image or noise")
    run_dir = Path(args.env)
    of_run = (run_dir / "config.json").is_file()
    unused = {"--horizon": args.horizon, "--rich": args.rich, "--num-latents": args.num_latents}
    given = [option for option, value in unused.items() if value is not None]
    given += [f"--env.{name}" for name in arguments]
    if of_run and given:
        raise UsageError(f"{args.env} is a run, whose environment is known: leave out {given[0]}")
    agent = load_agent(run_dir) if of_run else None
    prepare_process()
    from briee.diagnose import environment_verdict as doctor
    from briee.diagnose.run_verdict import examine_decoders
    from briee.envs.adapters.episodic import EnvironmentStepError
    from briee.rollout.samplers import adapt

    try:
        with sentences():
            if agent is not None:
                findings = examine_decoders(agent.algorithm, agent.state, args.episodes or 4000, args.seed)
            else:
                rich = rich_arguments | {"emission": args.rich} if args.rich else None
                adapted = adapt(args.env, args.horizon, arguments, rich)
                tell = lambda finding: print(*doctor.lines([finding]), flush=True)  # noqa: E731
                doctor.examine(adapted, None, args.episodes, args.seed, args.num_latents, tell)
                return 0
    except EnvironmentStepError as error:
        raise RunError(str(error)) from error
    print("\n".join(doctor.lines(findings)))
    if agent is not None and not agent.solved and agent.algorithm.capabilities.stops_when_solved:
        _say_what_to_try(agent, run_dir, args.seed)
    return 0


def say_what_next(algorithm: "Algorithm[Any]", spec: "RunSpec", run_dir: Path, argv: Sequence[str]) -> None:
    """Print why a run was not solved, as far as that can be measured, and one command to try."""
    from briee.diagnose.run_verdict import next_steps
    from briee.training.checkpoint import Folder
    from briee.training.loop import target_of
    from briee.training.session import load_moment

    target = target_of(spec, algorithm)
    if target is None:
        print("no target known: --evaluation.target-return R says which return counts as solved", flush=True)
    state = load_moment(algorithm, spec, Folder(run_dir / "checkpoint")).state
    with contextlib.suppress(RuntimeError, ValueError, NotImplementedError):  # advice must not fail a run
        step = next_steps(algorithm, state, target)[0]
        if target is not None or not step.budget:
            print(f"why: {step.cause}\ntry: {next_command(step, spec, run_dir, argv)}", flush=True)


def _say_what_to_try(agent: "Agent", run_dir: Path, seed: int) -> None:
    """Commands to try after a run that was not solved, best first."""
    from briee.diagnose.run_verdict import next_steps
    from briee.training.directory import read_json
    from briee.training.loop import target_of
    from briee.training.spec import load_spec

    command = shlex.split((read_json(run_dir / "manifest.json") or {}).get("command", ""))
    argv, spec = command[2:] if command[:2] == ["briee", "train"] else [agent.spec.env], load_spec(run_dir)
    target = target_of(spec, agent.algorithm)
    for number, step in enumerate(next_steps(agent.algorithm, agent.state, target, seed), start=1):
        print(f"{number}. {step.cause}; try: {next_command(step, spec, run_dir, argv)}")


def next_command(step: "Step", spec: "RunSpec", run_dir: Path, argv: Sequence[str]) -> str:
    """The command of a run with other options, or of the same run with twice the episodes."""
    if step.more:
        longer = ["--run-dir", str(run_dir), "--resume", "--episodes", str(2 * spec.episodes)]
        return shlex.join(["briee", "train", spec.env, *longer])
    kept, tokens = [], iter(argv)
    for token in tokens:
        if token.partition("=")[0] in ("--run-dir", "--run_dir", *step.options[::2]):
            if "=" not in token:
                next(tokens, None)
        elif token not in ("--resume", "--overwrite"):
            kept.append(token)
    return shlex.join(["briee", "train", *kept, *step.options])
