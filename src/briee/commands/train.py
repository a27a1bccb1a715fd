"""`briee train`: train an agent in a run directory."""

import shlex
from collections.abc import Sequence

from briee.arguments import parse_train, sentences
from briee.commands.process import build, prepare_process
from briee.rundir import RunError


def run(argv: Sequence[str]) -> int:
    """Run the command; returns the exit code."""
    args, spec = parse_train(argv)
    prepare_process()
    from briee.algorithms import with_instance
    from briee.display import make_display
    from briee.envs import EnvironmentStepError
    from briee.runs import RunInterrupted, run

    with sentences():
        spec = with_instance(spec)
    algorithm = build(spec)
    how = {
        "resume": args.resume,
        "overwrite": args.overwrite,
        "command": shlex.join(["briee", "train", *argv]),
    }
    try:
        with make_display() as display:
            run(algorithm, spec, args.directory, display=display, **how)
    except EnvironmentStepError as error:
        raise RunError(str(error)) from error
    except RunInterrupted:
        again = shlex.join(["briee", "train", spec.env, "--run-dir", str(args.directory), "--resume"])
        print(f"interrupted, nothing is lost; to continue: {again}", flush=True)
        return 130
    return 0
