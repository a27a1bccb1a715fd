"""`briee sweep`: carry out the runs of a sweep file, as far as they are not done, and collect the tables."""

import dataclasses
import os
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from briee.cli.main import Flag, parse, sentences
from briee.cli.train import parse_train
from briee.compute import available_cores, prepare_process
from briee.configuration import check_seed
from briee.errors import RunError, UsageError
from briee.experiments import FIGURES
from briee.training import sweep
from briee.training.directory import os_errors, read_json, write_atomically
from briee.training.launchers import CHILD, Board, Job
from briee.training.progress import clock
from briee.training.spec import RunSpec
from briee.training.sweep import Run, Where

COPY = "sweep.toml"


@dataclasses.dataclass(frozen=True)
class SweepArgs:
    """Carry out the runs of a sweep, as far as they are not done, and collect runs.csv and curves.csv.gz.

    The same command can be given again at any time: finished runs are skipped, killed ones go on.
    """

    file: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FILE.toml")]
    """The sweep file, in which every list is one factor of a product of runs; or the folder of a sweep that
    was started before; or an experiment of `briee reproduce`, such as fig1b."""
    out: Path | None = None
    """Folder of the run directories and tables; by default runs/FILE."""
    launcher: Literal["local", "ray", "slurm"] = "local"
    """Where the runs are carried out."""
    workers: int | None = None
    """Runs at the same time: by default one per core, and as many as SLURM allows."""
    cores: int | None = None
    """Cores of each run; by default those of this machine are shared out, and a cluster gives one."""
    memory: float | None = None
    """Limit of each run in GB."""
    dry_run: Flag = False
    """Only print the plan and, from finished runs, how long it will take."""
    retry: Flag = False
    """Try failed runs again."""
    status: Flag = False
    """Only tell where all runs are."""
    ray_address: str | None = None
    """An existing Ray cluster, for instance auto; without it one is started on this machine."""
    slurm_minutes: int = 240
    """Time limit of a job; a run that needs longer is queued again and continues."""
    slurm_options: tuple[str, ...] = ()
    """Further parameters of sbatch, as partition=NAME account=NAME."""
    slurm_cluster: Literal["slurm", "local"] = "slurm"
    """local: carry out the jobs on this machine without SLURM, to see that it works."""


def run(argv: Sequence[str]) -> int:
    """Run the command; returns the exit code."""
    args = parse(SweepArgs, argv, "briee sweep")
    for name in ("workers", "cores", "memory"):
        if (value := getattr(args, name)) is not None and value <= 0:
            raise UsageError(f"--{name} must be greater than 0, got {value}")
    if args.file.is_dir():
        args = dataclasses.replace(args, file=args.file / COPY, out=args.out or args.file)
    out = args.out or Path("runs") / args.file.stem
    text = experiment_text(str(args.file)) if not args.file.exists() else None
    runs = sweep.read_sweep(args.file, lambda argv: parse_train(argv)[1], text=text)
    states = states_of(runs, out)
    if args.dry_run or args.status:
        print_plan(runs, states, out, args)
        return 0
    with os_errors(out):
        out.mkdir(parents=True, exist_ok=True)
        if text is not None:
            write_atomically(out / COPY, text)
        elif args.file.resolve() != (out / COPY).resolve():
            shutil.copyfile(args.file, out / COPY)
    return carry_out_all(runs, out, args)


def experiment_text(name: str) -> str | None:
    """The sweep file of an experiment; `briee reproduce NAME --runs OUT` draws the figure of its runs."""
    if name not in FIGURES:
        return None
    from briee.experiments.runner import find_figure
    from briee.experiments.setting import sweep_file

    return sweep_file(find_figure(name).settings)


def run_seeds(argv: Sequence[str], seeds: Sequence[int], spec: RunSpec, out: Path | None) -> int:
    """`briee train ... --seeds 1 2 3`: a sweep over seeds alone, in a folder of its own."""
    point = read_point(argv)
    if wrong := {"seed", "overwrite"} & point.keys():
        raise UsageError(f"--{wrong.pop()} and --seeds exclude each other")
    point = {name: value for name, value in point.items() if name not in ("seeds", "run_dir", "resume")}
    with sentences():
        specs = [dataclasses.replace(spec, seed=check_seed(seed)) for seed in dict.fromkeys(seeds)]
        sweep.check_environment(spec)
    runs = [sweep.make_run(point | {"seed": own.seed}, own) for own in specs]
    out = out or Path("runs") / runs[0].name.rpartition("-")[0]
    return carry_out_all(runs, out, SweepArgs(Path(), retry=True))


def read_point(argv: Sequence[str]) -> dict[str, Any]:
    """Arguments of `briee train` as the fields of a sweep, True without a value."""
    given: dict[str, list[str]] = {"env": []}
    name = "env"
    for token in (t for word in argv for t in (word.split("=", 1) if word.startswith("--") else [word])):
        if token.startswith("--"):
            name = token.removeprefix("--").replace("-", "_")
            given[name] = []
        else:
            given[name].append(token)
    return {name: v if v[1:] else v[0] if v else True for name, v in given.items()}


def carry_out_all(runs: Sequence[Run], out: Path, args: SweepArgs) -> int:
    """Run what is not done, collect the tables, and say what failed; returns the exit code."""
    states = states_of(runs, out)
    left = [run for run in runs if not states[run.name].done]
    todo = [run for run in left if args.retry or states[run.name].state != "failed"]
    skipped = f", {len(left) - len(todo)} failed before" if left[len(todo) :] else ""
    print(f"{len(runs)} runs, {len(runs) - len(left)} done before{skipped}", flush=True)
    with os_errors(out):
        (out / "logs").mkdir(parents=True, exist_ok=True)
    try:
        if todo and not launch(todo, out, args):
            return 0
    except KeyboardInterrupt:
        print(f"interrupted, nothing is lost: the same command continues the runs in {out}", flush=True)
        return 130
    finally:
        with os_errors(out):
            rows = sweep.collect(runs, out)
    missing = [row for row in rows if row["state"] not in ("solved", "finished")]
    for row in missing:
        print(": ".join(filter(None, (row["run"], row["state"], row["reason"]))))
    print(f"{out / 'runs.csv'}, {out / 'curves.csv.gz'}")
    if missing:
        retry = "; add --retry for those that failed" if any(r["state"] == "failed" for r in missing) else ""
        raise RunError(f"{len(missing)} of {len(runs)} runs are not done: the same command continues{retry}")
    return 0


def launch(todo: Sequence[Run], out: Path, args: SweepArgs) -> bool:
    """Hand the runs to the launcher; returns whether they are over."""
    prepare_process()
    workers = min(args.workers or (len(todo) if args.launcher == "slurm" else available_cores()), len(todo))
    cores = args.cores or (max(available_cores() // workers, 1) if args.launcher == "local" else 1)
    jobs = [make_job(run, out, cores, args.memory) for run in todo]
    if args.launcher == "slurm":
        from briee.training.launchers.slurm import submit

        parameters = slurm_parameters(args.slurm_options) | {"cpus_per_task": cores}
        parameters |= {"mem": f"{args.memory:g}G"} if args.memory else {}
        how: dict[str, Any] = {"cluster": args.slurm_cluster, "minutes": args.slurm_minutes}
        ids = submit(jobs, workers, parameters=parameters, **how)
        print(f"submitted {len(ids)} jobs, {ids[0]} to {ids[-1]}; where they are: briee sweep {out} --status")
        return False
    with Board(out, {run.name: run.spec.episodes for run in todo}) as board:
        if args.launcher == "ray":
            from briee.training.launchers.ray import launch

            launch(jobs, workers, board, address=args.ray_address, cores=cores, memory=args.memory)
        else:
            from briee.training.launchers.local import launch

            launch(jobs, workers, board)
    return True


def make_job(run: Run, out: Path, cores: int, memory: float | None = None) -> Job:
    """The job of a run: a child process with a limit of its own for cores and memory."""
    folder = out.resolve()
    command = (*CHILD, "train", *run.argv, "--run-dir", str(folder / run.name), "--resume")
    limits = {"BRIEE_CORES": str(cores)} | ({"BRIEE_MEMORY_GB": str(memory)} if memory else {})
    return Job(run.name, str(folder), command, run.spec.episodes, limits, os.getcwd())


def states_of(runs: Sequence[Run], out: Path) -> dict[str, Where]:
    """Where each run is."""
    return {run.name: sweep.inspect(run, out) for run in runs}


def slurm_parameters(options: Sequence[str]) -> dict[str, Any]:
    """The parameters given as NAME=VALUE."""
    pairs = [option.partition("=") for option in options]
    if wrong := [name for name, equals, _ in pairs if not equals]:
        raise UsageError(f"--slurm-options takes NAME=VALUE, got {wrong[0]!r}")
    return {name: value for name, _, value in pairs}


def print_plan(runs: Sequence[Run], states: Mapping[str, Where], out: Path, args: SweepArgs) -> None:
    """Every run with its state, and how long the rest takes."""
    width = max(len(run.name) for run in runs)
    for run in runs:
        where = states[run.name]
        queued = read_json(sweep.log_file(out, run.name, "queued")) if where.state == "waiting" else None
        about = f"{where.summary['episodes']:,} episodes" if "episodes" in where.summary else ""
        words = "; ".join(filter(None, (about, where.reason, f"job {queued['job']}" if queued else "")))
        print(f"{run.name:{width}}  {where.state:8}  {words}".rstrip())
    count = Counter(where.state for where in states.values())
    print(f"{len(runs)} runs in {out}: " + ", ".join(f"{number} {state}" for state, number in count.items()))
    if seconds := list(sweep.expected_seconds(runs, states)):
        workers = min(args.workers or available_cores(), len(seconds))
        print(f"about {clock(sum(seconds) / workers)} left with {workers} workers, as fast as those done")
