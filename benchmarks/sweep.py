"""Cost of `briee sweep`: the launcher's overhead, and two workers against one.

    python benchmarks/sweep.py [--runs 6] [--output results/speed.json]

The runs are those of `--algo efficient` on locks of horizon 12, about ten seconds each. They are carried out
one after another by hand, by a launcher with one worker and by one with two, with one core each and a warm
compilation cache. The bounds are 3 % of overhead and a gain of 1.7.

On an idle machine `overhead` and `two_workers_over_one` are ratios of elapsed times. Other programs on the
same cores change them; the ratios of CPU times beside them hardly change: `launcher_cpu` is what the launcher
computes itself over what its runs compute, and `two_workers_over_one_cpu` is twice the CPU time of the runs
with one worker over that with two, the gain if both cores are free. `seconds_between_runs` is the time per
run in which a worker waits or starts a run. `load` is the number of other processes that wanted a core.
"""

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from queries import record

TOML = """
env = "lock"
horizon = 12
seed = {seeds}
episodes = 4000
evaluation.streak = 1000
"""
PROGRAM = """
import json, resource, sys, threading, time
from briee.cli.main import main
from briee.training import launchers
spans, attend = [], launchers._attend
def timed(*args):
    began = time.perf_counter()
    try:
        return attend(*args)
    finally:
        spans.append(time.perf_counter() - began)
launchers._attend = timed
code = main(sys.argv[2:])
own, runs = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
cpu = [use.ru_utime + use.ru_stime for use in (own, runs)]
note = {"own": cpu[0], "runs": cpu[1], "spans": sum(spans), "gigabytes": own.ru_maxrss / 2**20}
open(sys.argv[1], "w").write(json.dumps(note))
sys.exit(code)
"""
"""A command of briee that notes its CPU time and that of its children."""


class Times(NamedTuple):
    """Seconds of a command."""

    wall: float
    own: float
    """CPU time of the process itself."""
    runs: float
    """CPU time of its children."""
    spans: float
    """Sum of the elapsed times of its children."""
    gigabytes: float
    """Memory that the process used at most."""


def timed(*command: str) -> Times:
    """Carry out a command of briee."""
    with tempfile.NamedTemporaryFile() as note:
        began = time.perf_counter()
        subprocess.run(
            [sys.executable, "-c", PROGRAM, note.name, *command],
            check=True,
            stdout=subprocess.DEVNULL,
            env=os.environ | {"BRIEE_CORES": "1"},
        )
        wall = time.perf_counter() - began
        return Times(wall, **json.loads(Path(note.name).read_text()))


def thousand(folder: Path, done: Path) -> dict[str, float]:
    """CPU seconds that it takes to read a file of 1,000 runs, to find out where they are when all are done,
    and to collect their tables; all of them are copies of one run."""
    from briee.cli.sweep import states_of
    from briee.cli.train import parse_train
    from briee.training.sweep import collect, read_sweep

    def measure(work: Callable[[], Any]) -> tuple[float, Any]:
        began = time.process_time()
        result = work()
        return time.process_time() - began, result

    (folder / "many.toml").write_text(TOML.format(seeds=list(range(1_000))))
    read, runs = measure(lambda: read_sweep(folder / "many.toml", lambda argv: parse_train(argv)[1]))
    stored = json.loads((done / "config.json").read_text())
    for run in runs:
        own = folder / "many" / run.name
        own.mkdir(parents=True)
        for name in ("summary.json", "metrics.csv"):
            (own / name).write_bytes((done / name).read_bytes())
        arguments = {"instance_seed": run.spec.seed}
        text = json.dumps(stored | {"seed": run.spec.seed, "env_arguments": arguments})
        (own / "config.json").write_text(text)
    inspected, _ = measure(lambda: states_of(runs, folder / "many"))
    collected, rows = measure(lambda: collect(runs, folder / "many"))
    assert {row["state"] for row in rows} == {"finished"}
    return {"read_1000": read, "inspect_1000": inspected, "collect_1000": collected}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=6)
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    seeds, load = list(range(1, args.runs + 1)), os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "runs.toml").write_text(TOML.format(seeds=seeds))
        train = shlex.split("train lock --horizon 12 --episodes 4000 --evaluation.streak 1000 --run-dir")
        timed(*train, str(root / "warm"))
        by_hand = [timed(*train, str(root / f"s{seed}"), "--seed", str(seed)) for seed in seeds]
        sweep = ("sweep", str(root / "runs.toml"), "--cores", "1", "--out")
        one = timed(*sweep, str(root / "one"), "--workers", "1")
        two = timed(*sweep, str(root / "two"), "--workers", "2")
        idle = timed(*sweep, str(root / "two"), "--workers", "2")
        size = sum(path.stat().st_size for path in (root / "s1").rglob("*") if path.is_file())
        many = thousand(root, root / "s1")
    found = {
        "runs": args.runs,
        "load": load,
        "seconds_per_run": sum(run.wall for run in by_hand) / args.runs,
        "cpu_seconds_per_run": sum(run.own for run in by_hand) / args.runs,
        "overhead": one.wall / sum(run.wall for run in by_hand) - 1,
        "two_workers_over_one": one.wall / two.wall,
        "launcher_cpu": one.own / one.runs,
        "two_workers_over_one_cpu": 2 * one.runs / two.runs,
        "seconds_between_runs": (one.wall - one.spans) / args.runs,
        "seconds_nothing_to_do": idle.own,
        "gigabytes_per_run": max(run.gigabytes for run in by_hand),
        "disk_megabytes_per_run": size / 1e6,
        **many,
    }
    found = {name: round(value, 4) for name, value in found.items()}
    print(json.dumps(found, indent=2))
    if args.output:
        record(args.output, "sweeps", found)


if __name__ == "__main__":
    main()
