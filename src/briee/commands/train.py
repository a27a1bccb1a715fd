"""`briee train`: train an agent in a run directory."""

import contextlib
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
    from briee.tensorboard import TensorBoard

    with sentences():
        spec = with_instance(spec)
    folder, metrics = args.directory / "tensorboard", args.directory / "metrics.csv"
    callbacks = [TensorBoard(folder, metrics)] if args.tensorboard else []
    algorithm = build(spec)
    how = {
        "resume": args.resume,
        "overwrite": args.overwrite,
        "command": shlex.join(["briee", "train", *argv]),
    }
    try:
        with make_display() as display, contextlib.ExitStack() as stack:
            for callback in callbacks:
                stack.enter_context(callback)
            run(algorithm, spec, args.directory, display=display, callbacks=callbacks, **how)
    except EnvironmentStepError as error:
        raise RunError(str(error)) from error
    except RunInterrupted:
        again = shlex.join(["briee", "train", spec.env, "--run-dir", str(args.directory), "--resume"])
        print(f"interrupted, nothing is lost; to continue: {again}", flush=True)
        return 130
    return 0
