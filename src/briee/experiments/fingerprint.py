"""Fingerprints of the numerics: whether two versions of an algorithm compute the same numbers.

    python -m briee.experiments.fingerprint [--only "briee paper"] [--commits 9061971 32cea15]

A fingerprint is the hash of what a run of seconds measures on a lock with three levels, with sizes so
small that buffers overflow and every part of an algorithm takes effect. Runs whose algorithms have equal
fingerprints may stand in one line of a figure. The command writes results/fingerprints.json: the
fingerprints of the present source, and those of commits, each checked out for the purpose. All of them
have to come from one machine, which the file names, because CPUs with other vector instructions add
numbers in another order. Imports no JAX.
"""

import argparse
import hashlib
import importlib.metadata
import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from briee.algorithms.registry import ALGORITHMS, RENAMED
from briee.errors import RunError
from briee.training.directory import cpu_model, read_json, read_table, source_commit, write_json

SOURCE = Path(__file__).resolve().parents[3]
"""The repository, if the package runs from one."""
FILE = "fingerprints.json"
WORLD = "lock --horizon 3 --seed 7 --evaluation.streak 1000"
"""The streak keeps a run from ending when it is solved."""
_GAME = "--episodes 450 --replearn.rounds 4 --collect.buffer-size 300 --workers 1"
_FIT = "--episodes 400 --strata.rows 200 --strata.fit-rows 128 --workers 1"
_LSVI = "--episodes 600 --episodes-per-update 20 --buffer-size 500"
_PPO = "--episodes 400 --workers 20 --minibatch 20 --rounds 2"
TINY = {
    "efficient": _FIT,
    "stationary": f"{_FIT} --num-latents 9",
    "briee": _GAME,
    "reward-free": _GAME,
    "lsvi-ucb": _LSVI,
    "lsvi-ucb-rff": f"{_LSVI} --dimension 20",
    "ppo": _PPO,
    "ppo-rnd": _PPO,
}
"""Options of the short run, by algorithm. Others are not fingerprinted: `theory` is exact, and the numbers of
Stable-Baselines3 are its own."""
PAIRS = tuple(f"{algorithm} {preset}" for algorithm in TINY for preset in ALGORITHMS[algorithm].presets)
"""Algorithms and presets that have a fingerprint."""
COLUMNS = (
    *("iteration", "episodes", "env_steps", "eval_return", "explore_return", "reached_level"),
    *("decoder_accuracy", "replearn_gap"),
)
ONE_THREAD = {
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}


def measure(pair: str, source: Path = SOURCE) -> str:
    """The fingerprint of an algorithm and preset, such as "briee paper", in a source tree."""
    algorithm, preset = pair.split()
    names = [(algorithm, preset), *(old for old, now in RENAMED.items() if now == (algorithm, preset))]
    environment = os.environ | ONE_THREAD
    if (source / "src").exists():
        environment |= {"PYTHONPATH": str(source / "src")}
    error = ""
    with tempfile.TemporaryDirectory() as folder:
        for name, its_preset in names:
            options = (
                f"{WORLD} --algo {name} --preset {its_preset} {TINY[algorithm]} --run-dir run --overwrite"
            )
            command = [sys.executable, "-m", "briee", "train", *shlex.split(options)]
            made = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=folder)
            if made.returncode == 0:
                rows = read_table(Path(folder) / "run" / "metrics.csv")
                text = json.dumps([[row.get(column, "") for column in COLUMNS] for row in rows])
                return hashlib.sha256(text.encode()).hexdigest()[:12]
            error = error or made.stderr.strip()
    raise RunError(f"no fingerprint of {pair}: {error}")


@contextmanager
def checked_out(commit: str) -> Iterator[Path]:
    """The source tree of a commit, in a folder that is gone afterwards."""
    git = ["git", "-C", str(SOURCE)]
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        made = subprocess.run([*git, "worktree", "add", "--detach", str(tree), commit], capture_output=True)
        if made.returncode:
            raise RunError(f"cannot check out commit {commit}: {made.stderr.decode().strip()}")
        try:
            yield tree
        finally:
            subprocess.run(
                [*git, "worktree", "remove", "--force", str(tree)], capture_output=True, check=True
            )


def _measure_at(commit: str, pair: str) -> str:
    """The fingerprint of an algorithm and preset at a commit, on this machine."""
    if commit == source_commit():
        return measure(pair)
    with checked_out(commit) as tree:
        return measure(pair, tree)


class Fingerprints:
    """results/fingerprints.json: the fingerprints of the present source, and those of commits."""

    def __init__(self, root: Path):
        self.path = root / FILE
        stored = read_json(self.path) or {}
        self.machine: dict[str, Any] = stored.get("machine", {})
        self.present: dict[str, str] = stored.get("present", {})
        self.commits: dict[str, dict[str, str]] = stored.get("commits", {})

    def of(self, row: Mapping[str, str]) -> str:
        """The fingerprint that a row's algorithm had at its commit, as far as it is known; else ""."""
        return self.commits.get(row["commit"], {}).get(f"{row['algorithm']} {row['preset']}", "")

    def find(self, row: Mapping[str, str]) -> str:
        """The fingerprint that a row's algorithm had at its commit, measured if it is not known yet.

        On another machine than that of the file, a commit has the present fingerprint if a commit that is
        known to have it computes the same numbers there. It is "" if nobody can tell: the commit is gone, its
        source was edited, or its numbers equal none of those.
        """
        pair, commit = f"{row['algorithm']} {row['preset']}", row["commit"]
        if self.of(row) or pair not in PAIRS or not commit:
            return self.of(row)
        if commit.endswith("+changes") and commit != source_commit():
            return ""
        try:
            found = _measure_at(commit, pair)
            known = {self.present.get(pair), *(commits.get(pair) for commits in self.commits.values())}
            if self.machine not in ({}, machine()) and found not in known:
                found = self._present_if_equal(pair, found)
        except RunError:
            return ""
        if found:
            self.add(commit, pair, found)
        return found

    def _present_if_equal(self, pair: str, found: str) -> str:
        """The present fingerprint if a commit that has it gives `found` on this machine; else ""."""
        present = self.present.get(pair, "")
        have = (commit for commit, prints in self.commits.items() if prints.get(pair) == present)
        commit = next(have, "")
        return present if commit and _measure_at(commit, pair) == found else ""

    def add(self, commit: str, pair: str, fingerprint: str) -> None:
        """Keep a measured fingerprint; that of an edited source only until the process ends."""
        self.machine = self.machine or machine()
        self.commits.setdefault(commit, {})[pair] = fingerprint
        self.write()

    def check_machine(self) -> None:
        """Raise `RunError` unless fingerprints measured here can be compared with those of the file."""
        here = machine()
        if self.machine and self.machine != here:
            raise RunError(
                f"{self.path} is of another machine ({self.machine}, here {here}): "
                "measure the fingerprints of all its commits again with --all"
            )
        self.machine = here

    def write(self) -> None:
        """Write the file."""
        commits = {c: f for c, f in sorted(self.commits.items()) if not c.endswith("+changes")}
        write_json(self.path, {"machine": self.machine, "present": self.present, "commits": commits})


def machine() -> dict[str, str]:
    """The parts that decide how numbers are rounded: the CPU, its widest vectors, and the compiler."""
    try:
        flags = set(Path("/proc/cpuinfo").read_text().split())
    except OSError:
        flags = set()
    vectors = next((name for name in ("avx512f", "avx2", "avx") if name in flags), "unknown")
    return {"cpu": cpu_model(), "vectors": vectors, "jaxlib": importlib.metadata.version("jaxlib")}


def main(argv: Sequence[str] | None = None) -> None:
    """Measure the present source, and the commits asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", choices=PAIRS, action="append", help="these algorithms and presets alone")
    parser.add_argument("--commits", nargs="*", default=[], help="measure these, not the present source")
    parser.add_argument("--all", action="store_true", help="measure everything again, on another machine")
    parser.add_argument("--root", type=Path, default=Path("results"))
    args = parser.parse_args(argv)
    known = Fingerprints(args.root)
    pairs = args.only or PAIRS
    todo = dict.fromkeys(args.commits, pairs)
    if args.all:
        todo, known.machine = {commit: [*found] for commit, found in known.commits.items()}, {}
    known.check_machine()
    if args.all or not args.commits:
        for pair in pairs:
            known.present[pair] = measure(pair)
            print(f"{pair:24}{known.present[pair]}", flush=True)
        known.write()
    for commit, found in todo.items():
        with checked_out(commit) as tree:
            full = subprocess.check_output(["git", "-C", str(tree), "rev-parse", "HEAD"], text=True).strip()
            for pair in found:
                known.add(full, pair, measure(pair, tree))
                same = known.commits[full][pair] == known.present.get(pair)
                print(f"{pair:24}{commit[:7]}  {'as at present' if same else 'differs'}", flush=True)


if __name__ == "__main__":
    main()
