"""`briee doctor`: in a minute, whether an environment looks like one that BRIEE can handle."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from briee.arguments import UsageError, load_spec, parse, split_options
from briee.commands.process import build, learned, prepare_process


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
    """Say, too, whether so many latent states are too few for what random play already shows."""
    episodes: int | None = None
    """Random episodes to play; by default 2,000 where they can be compiled, else 1,000."""
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
    of_run = (Path(args.env) / "config.json").is_file()
    if of_run and (given := _of_environments(args, arguments)):
        raise UsageError(f"{args.env} is a run, whose environment is known: leave out {given}")
    prepare_process()
    if of_run:
        return _examine_run(Path(args.env), args)
    from briee import doctor
    from briee.adapt import adapt
    from briee.envs import EnvironmentStepError

    rich = rich_arguments | {"emission": args.rich} if args.rich else None
    try:
        adapted = adapt(args.env, args.horizon, arguments, rich)
        findings = doctor.examine(adapted, None, args.episodes, args.seed, args.num_latents)
    except (ValueError, EnvironmentStepError) as error:
        raise UsageError(str(error)) from error
    print("\n".join(doctor.lines(findings)))
    return 0


def _of_environments(args: DoctorArgs, arguments: dict[str, Any]) -> str | None:
    """The first option given that a run directory has no use for."""
    named = {"--horizon": args.horizon, "--rich": args.rich, "--num-latents": args.num_latents}
    named |= {f"--env.{name}": name for name in arguments}
    return next((option for option, value in named.items() if value is not None), None)


def _examine_run(run_dir: Path, args: DoctorArgs) -> int:
    from briee.checkup import examine_decoders
    from briee.doctor import lines

    spec = load_spec(run_dir)
    algorithm = build(spec)
    try:
        findings = examine_decoders(
            algorithm, learned(algorithm, spec, run_dir), args.episodes or 4000, args.seed
        )
    except ValueError as error:
        raise UsageError(str(error)) from error
    print("\n".join(lines(findings)))
    return 0
