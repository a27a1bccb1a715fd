"""`briee train`: train an agent in a run directory."""

import contextlib
import shlex
from collections.abc import Sequence
from typing import Any

from briee.arguments import parse_train, sentences
from briee.commands.process import build, prepare_process
from briee.rundir import RunError, RunSpec


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
    if args.resume and not (args.directory / "config.json").exists():
        print(f"nothing to resume in {args.directory}: a new run begins", flush=True)
    if note := _never_sure(algorithm, spec):
        print(note, flush=True)
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


def _never_sure(algorithm: Any, spec: RunSpec) -> str:
    """A sentence where it is known that no policy reaches the optimal return in every episode."""
    from briee.foreign import sure_return
    from briee.training import evaluation_config

    sampler, rule = algorithm.sampler, evaluation_config(spec)
    pure, best = getattr(sampler, "pure", None), sampler.optimal_return
    other_rule = rule.tolerance is not None or rule.target_return is not None
    if best is None or other_rule or not getattr(algorithm, "stops_when_solved", True):
        return ""
    if pure is None:
        sure = sure_return(sampler.env, sampler.horizon)
    elif hasattr(pure, "latent_model") and not getattr(pure, "temperature", None):
        sure = pure.latent_model().sure_return()
    else:
        sure = None
    if sure is None or sure > best - 1e-3:
        return ""
    mean = f"no policy reaches the optimal return, {best:.3f} on average, in every episode"
    return f"{mean}: this run may never count as solved unless --evaluation.tolerance says how near is enough"
