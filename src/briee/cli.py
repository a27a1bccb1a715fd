"""The command line: `briee COMMAND ...`. JAX is imported only after the arguments were understood.

Exit codes: 0 done; 2 the request was wrong (one sentence on standard error); 130 after Ctrl-C.
"""

import dataclasses
import inspect
import json
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import briee
from briee.arguments import (
    BenchArgs,
    EnvsArgs,
    EvaluateArgs,
    RunsArgs,
    UsageError,
    load_spec,
    parse,
    parse_train,
)
from briee.rundir import Listed, RunError, RunSpec, list_runs, os_errors

ONE_THREAD = {
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}
"""Levels are learned in parallel by threads of our own; threads inside operations slow them down."""


def train(argv: Sequence[str]) -> int:
    """train an agent in a run directory"""
    args, spec = parse_train(argv)
    prepare_process()
    from briee.algorithms import has_instances
    from briee.display import make_display
    from briee.envs import EnvironmentStepError
    from briee.runs import RunInterrupted, run

    if has_instances(spec.env):
        spec = dataclasses.replace(spec, env_arguments={"instance_seed": spec.seed, **spec.env_arguments})
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


def evaluate(argv: Sequence[str]) -> int:
    """play episodes with the policy of a run"""
    args = parse(EvaluateArgs, argv, "briee evaluate")
    if args.episodes < 1:
        raise UsageError(f"episodes must be >= 1, got {args.episodes}")
    spec = load_spec(args.run_dir)
    prepare_process()
    import jax

    from briee import rollout
    from briee.checkpoint import Folder
    from briee.randomness import stream
    from briee.runs import load_state
    from briee.training import evaluation_config

    folder = Folder(args.run_dir / "checkpoint")
    if not folder.numbers():
        raise UsageError(f"{args.run_dir} has no checkpoint yet")
    algorithm = build(spec)
    state, *_ = load_state(algorithm, spec.seed, folder)
    policy = algorithm.policy(state, evaluation_config(spec).policy)
    key = stream(jax.random.key(args.seed), "evaluate command")
    returns = rollout.evaluate(algorithm.sampler, policy, key, args.episodes)
    optimal = algorithm.sampler.optimal_return
    outcome = {
        "run_dir": str(args.run_dir),
        "iteration": int(state.iteration),
        "episodes": args.episodes,
        "mean": float(returns.mean()),
        "standard_error": float(returns.std() / args.episodes**0.5),
        "minimum": float(returns.min()),
        "maximum": float(returns.max()),
        "optimal_return": None if optimal is None else float(optimal),
    }
    print(json.dumps(outcome) if args.json else evaluation_lines(outcome))
    return 0


def envs(argv: Sequence[str]) -> int:
    """list the environments and their arguments"""
    parse(EnvsArgs, argv, "briee envs")
    prepare_process()
    from briee.envs import ENVIRONMENTS, describe_all

    for about in describe_all():
        entry = ENVIRONMENTS[about.name]
        print(f"{about.name}  ({about.id})\n    {about.summary}")
        sizes = f"horizon {about.horizon}, {about.num_actions} actions, {about.num_latents} latent states"
        print(
            f"    {sizes}, observation {about.observation_shape}, optimal return {about.optimal_return:.4g}"
        )
        parameters = inspect.signature(entry.constructor).parameters
        defaults = {key: entry.defaults.get(key, parameter.default) for key, parameter in parameters.items()}
        shown = {key: "by horizon" if callable(value) else repr(value) for key, value in defaults.items()}
        print("    --env. " + ", ".join(f"{key}={value}" for key, value in shown.items() if key != "horizon"))
    print("Any other environment with discrete actions: its Gymnasium id, or module:id.")
    return 0


def runs(argv: Sequence[str]) -> int:
    """list run directories with their state"""
    args = parse(RunsArgs, argv, "briee runs")
    listed = list_runs(args.root)
    if not listed:
        print(f"no runs in {args.root}")
        return 0
    table = [
        ("run", "state", "env", "horizon", "algorithm", "seed", "episodes", "return"),
        *map(run_cells, listed),
    ]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for line in table:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
    return 0


def bench(argv: Sequence[str]) -> int:
    """measure speed against the machine's own limit"""
    args = parse(BenchArgs, argv, "briee bench")
    prepare_process()
    from briee.bench import measure
    from briee.manifest import make_manifest

    figures = measure(lambda name: print(f"measuring {name} ...", file=sys.stderr, flush=True))
    for name, value in figures.items():
        print(f"{name:32}{value:,.4g}")
    if args.json is not None:
        machine = make_manifest(shlex.join(["briee", "bench", *argv]))
        with os_errors(args.json):
            args.json.write_text(json.dumps(figures | {"manifest": machine}, indent=2) + "\n")
    return 0


COMMANDS: dict[str, Callable[[Sequence[str]], int]] = {
    "train": train,
    "evaluate": evaluate,
    "runs": runs,
    "envs": envs,
    "bench": bench,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    command, *rest = [*(sys.argv[1:] if argv is None else argv)] or [""]
    if command in ("-h", "--help", "help", ""):
        print(usage(), file=sys.stdout if command else sys.stderr)
        return 0 if command else 2
    if command == "--version":
        print(f"briee {briee.__version__}")
        return 0
    try:
        if command not in COMMANDS:
            raise UsageError(f"no command {command!r}: commands are {', '.join(COMMANDS)}")
        return COMMANDS[command](rest)
    except (UsageError, RunError) as error:
        print(f"briee: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


def entry() -> None:
    """The program `briee`. After Ctrl-C it does not wait for threads that are still computing."""
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    if code == 130:
        os._exit(code)
    sys.exit(code)


def usage() -> str:
    """What `briee --help` prints."""
    lines = [f"  {name:10}{function.__doc__}" for name, function in COMMANDS.items()]
    about = "BRIEE: provable exploration with rich observations."
    return "\n".join(
        ["usage: briee COMMAND ...", "", about, "", *lines, "", "`briee COMMAND --help` says more."]
    )


def build(spec: RunSpec) -> Any:
    """The algorithm of a run; what it refuses is a `UsageError`."""
    from briee import algorithms

    try:
        return algorithms.build(spec)
    except ValueError as error:
        raise UsageError(str(error)) from error


def prepare_process() -> None:
    """Threads and compilation cache, before JAX is imported; what the user has set stays."""
    for name, value in ONE_THREAD.items():
        os.environ.setdefault(name, value)
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "briee" / "jax"
        try:
            cache.mkdir(parents=True, exist_ok=True)
        except OSError:  # without a cache the start is slower, nothing else
            return
        os.environ["JAX_COMPILATION_CACHE_DIR"] = str(cache)
        os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.2")


def evaluation_lines(outcome: dict[str, Any]) -> str:
    """The outcome of `briee evaluate` in words."""
    mean = f"mean return {outcome['mean']:.4f} ± {outcome['standard_error']:.4f} (standard error)"
    spread = f"from {outcome['minimum']:.4f} to {outcome['maximum']:.4f}"
    optimal = "" if outcome["optimal_return"] is None else f"; optimal {outcome['optimal_return']:.4f}"
    return f"{mean}, {spread}, over {outcome['episodes']} episodes{optimal}"


def run_cells(listed: Listed) -> tuple[str, ...]:
    """One line of `briee runs`."""
    config, summary = listed.config, listed.summary
    about = (str(config.get(name, "")) for name in ("env", "horizon", "algorithm", "seed"))
    episodes = f"{summary['episodes']:,}" if "episodes" in summary else ""
    final = summary.get("final_return")
    return (str(listed.path), listed.state, *about, episodes, "" if final is None else f"{final:.3f}")
