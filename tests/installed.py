"""The wheel in environments of its own: one for each Python found, or one with the oldest dependencies.

    python tests/installed.py                  every python3.11 to python3.14 on the path
    python tests/installed.py /path/to/python  this one
    python tests/installed.py --oldest         the lower bounds of pyproject.toml, with this Python

Each environment is made in a temporary folder. The wheel and the packages of the tests are installed, the
command line trains an agent, and the smoke tests run on what was installed. Exit code 1 if one of them fails.
"""

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
NAMES = ("python3.11", "python3.12", "python3.13", "python3.14")
SMOKE = (
    "test_package.py", "test_configuration.py", "numerics", "algorithms/paper/test_lsvi.py",
    "algorithms/efficient/test_cell_planning.py", "rollout/test_rollout.py",
    "algorithms/general/test_label_search.py", "training/test_checkpoint.py",
    "training/test_run_lock.py", "envs/test_gym_shells.py",
)  # fmt: skip
"""Test files that use every dependency, in about a minute."""
TOOLS = ("pytest", "hypothesis", "beartype", "pyyaml")


def requirements() -> list[str]:
    """The dependencies of the package, as pyproject.toml names them."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]


def lowest() -> list[str]:
    """The dependencies at their lower bounds."""
    return [re.sub(r">=", "==", requirement) for requirement in requirements()]


def usable(python: str) -> bool:
    """Whether an interpreter exists and runs."""
    found = shutil.which(python)
    return found is not None and subprocess.run([found, "-c", ""], capture_output=True).returncode == 0


def try_out(python: str, packages: list[str], folder: Path) -> bool:
    """Whether the wheel can be installed beside these packages, and its smoke tests pass."""
    bin_ = folder / ("Scripts" if sys.platform == "win32" else "bin")
    run = [str(folder / "run"), "--horizon", "2", "--episodes", "60"]
    tests = [str(ROOT / "tests" / name) for name in SMOKE]
    plain = ["-o", "filterwarnings=default", "-o", "addopts="]  # without the checks of shapes and warnings
    options = ["-q", *plain, "-m", "not slow", "-p", "no:cacheprovider"]
    steps = (
        [python, "-m", "venv", str(folder)],
        [str(bin_ / "python"), "-m", "pip", "install", "-q", str(ROOT), *packages, *TOOLS],
        [str(bin_ / "briee"), "train", "lock", "--run-dir", *run],
        [str(bin_ / "python"), "-m", "pytest", *options, *tests],
    )
    return all(subprocess.run(step, cwd=folder.parent).returncode == 0 for step in steps)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("pythons", nargs="*")
    parser.add_argument("--oldest", action="store_true")
    args = parser.parse_args()
    wanted = args.pythons or ([sys.executable] if args.oldest else list(NAMES))
    pythons = [python for python in wanted if usable(python)]
    outcome = {}
    for python in pythons:
        with tempfile.TemporaryDirectory() as folder:
            outcome[python] = try_out(python, lowest() if args.oldest else [], Path(folder) / "env")
    words = {True: "passed", False: "failed", None: "not here"}
    for python in wanted:
        print(f"{python}: {words[outcome.get(python)]}")
    return int(not outcome or not all(outcome.values()))


if __name__ == "__main__":
    raise SystemExit(main())
