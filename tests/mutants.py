"""Mutation check: does a test fail when one operator, number or name of the core modules is changed?

    python tests/mutants.py [MODULE ...] [--per-module 24] [--minutes 20] [--workers 2]

Each mutant is one change of one module. It runs the fast test files of that module in a forked process, which
has imported JAX but not used it yet. Of each module the mutants with the smallest hash of their description
are tried, so that a change elsewhere in the code leaves the sample as it is. Exit code 1 if less than
`--least` percent of the mutants are killed. Needs a system with `fork`.
"""

import argparse
import ast
import copy
import hashlib
import importlib.machinery
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "briee"
MODULES = {
    "numerics/linalg": ["numerics/test_linalg"],
    "algorithms/bonus": ["algorithms/paper/test_lsvi"],
    "algorithms/paper/lsvi": ["algorithms/paper/test_lsvi"],
    "algorithms/paper/buffers": ["algorithms/paper/test_lsvi"],
    "algorithms/paper/replearn": ["algorithms/paper/test_replearn"],
    "algorithms/efficient/strata": ["algorithms/efficient/test_cell_planning"],
    "algorithms/efficient/cell_planning": ["algorithms/efficient/test_cell_planning"],
    "training/checkpoint": ["training/test_checkpoint"],
}
"""The mutated modules and the test files that each must be killed by."""
LONGEST = 8.0
"""A mutant that takes this many times as long as the unchanged module counts as killed: some loop forever."""

OPERATORS: dict[type, type] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult, ast.Pow: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
    ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip
NAMES = {
    "minimum": "maximum", "maximum": "minimum", "argmax": "argmin", "argmin": "argmax", "max": "min",
    "min": "max", "cummin": "cummax", "cummax": "cummin", "ones": "zeros", "zeros": "ones", "all": "any",
    "any": "all", "sum": "max", "ones_like": "zeros_like", "zeros_like": "ones_like", "log": "exp",
    "exp": "log", "rsqrt": "sqrt", "ceil": "floor",
}  # fmt: skip


class Mutant(NamedTuple):
    """One change of a module: where it is, what it says, and the changed source."""

    module: str
    place: str
    line: int
    change: str
    source: str

    @property
    def rank(self) -> str:
        """Its place in the order in which mutants are tried."""
        return hashlib.sha256(f"{self.module} {self.place} {self.change}".encode()).hexdigest()

    def __str__(self) -> str:
        return f"{self.module}.py:{self.line} {self.place}: {self.change}"


def mutants(module: str) -> list[Mutant]:
    """All mutants of a module, in the order in which they are tried."""
    tree = ast.parse((SOURCE / f"{module}.py").read_text())
    found, seen = [], {}
    for place, node in spots(tree):
        for changed in changes(node):
            before, after = (ast.unparse(one).partition("\n")[0] for one in (node, changed))
            change = f"{before} -> {after}"
            seen[place, change] = seen.get((place, change), 0) + 1
            if seen[place, change] > 1:
                change += f" (no. {seen[place, change]})"
            source = ast.unparse(Replace(node, changed).visit(copy_with_identity(tree, node, changed)))
            found.append(Mutant(module, place, getattr(node, "lineno", 0), change, source))
    return sorted(found, key=lambda mutant: mutant.rank)


class Replace(ast.NodeTransformer):
    """Put one node in the place of another."""

    def __init__(self, old: ast.AST, new: ast.AST):
        self.old, self.new = old, new

    def visit(self, node: ast.AST) -> Any:
        return self.new if node is self.old else super().visit(node)


def copy_with_identity(tree: ast.AST, *kept: ast.AST) -> Any:
    """A deep copy of a tree in which some nodes are the same objects."""
    return copy.deepcopy(tree, {id(node): node for node in kept})


def spots(tree: ast.Module) -> Iterator[tuple[str, ast.AST]]:
    """The nodes that may be changed, each with the function it is in; no annotations, docstrings, imports."""

    def walk(node: ast.AST, place: str) -> Iterator[tuple[str, ast.AST]]:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            place = f"{place}.{node.name}".lstrip(".")
        yield place, node
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "decorator_list", "bases", "format_spec"):
                continue
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST) and not isinstance(child, ast.Import | ast.ImportFrom):
                    yield from walk(child, place)

    return walk(tree, "")


def changes(node: ast.AST) -> Iterator[ast.AST]:
    """The changed versions of a node."""
    match node:
        case ast.BinOp(op=op) | ast.BoolOp(op=op) | ast.AugAssign(op=op) if type(op) in OPERATORS:
            yield altered(node, op=OPERATORS[type(op)]())
        case ast.Compare(ops=[op, *rest]) if type(op) in OPERATORS:
            yield altered(node, ops=[OPERATORS[type(op)](), *rest])
        case ast.UnaryOp(op=ast.USub() | ast.Not() | ast.Invert(), operand=operand):
            yield operand
        case ast.Constant(value=bool(value)):
            yield ast.copy_location(ast.Constant(not value), node)
        case ast.Constant(value=int(value) | float(value)):
            yield ast.copy_location(ast.Constant(value + 1), node)
        case ast.Attribute(attr=name) if name in NAMES:
            yield altered(node, attr=NAMES[name])
        case ast.Name(id=name) if name in NAMES:
            yield altered(node, id=NAMES[name])
        case ast.If(test=test) | ast.IfExp(test=test) if not isinstance(test, ast.Compare | ast.UnaryOp):
            yield altered(node, test=ast.copy_location(ast.UnaryOp(ast.Not(), test), test))
        case ast.Raise():
            yield ast.copy_location(ast.Pass(), node)


def altered(node: Any, **fields: Any) -> ast.AST:
    """A shallow copy of a node with other values of some fields."""
    return ast.copy_location(type(node)(**{**dict(ast.iter_fields(node)), **fields}), node)


def survives(module: str, source: str) -> bool:
    """Run in a process of its own: whether the tests of a module pass with this source."""
    target = str(SOURCE / f"{module}.py")
    loader = importlib.machinery.SourceFileLoader
    read, stats = loader.get_data, loader.path_stats

    def get_data(self: Any, path: str) -> bytes:
        return source.encode() if path == target else read(self, path)

    def path_stats(self: Any, path: str) -> Any:
        if path == target:
            raise OSError("its compiled version is that of the original")
        return stats(self, path)

    loader.get_data, loader.path_stats = get_data, path_stats  # type: ignore[method-assign]
    import pytest

    files = [str(ROOT / "tests" / f"{name}.py") for name in MODULES[module]]
    options = ["-x", "-q", "--no-header", "-p", "no:cacheprovider", "-p", "no:xdist", "--tb=no"]
    options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # hypothesis was imported before the fork
    return pytest.main([*options, *files]) == 0


def start(mutant: Mutant) -> int:
    """Fork a process that exits with 0 if the mutant survives; returns its id."""
    if pid := os.fork():
        return pid
    os.setsid()
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 1)
    os.dup2(silent, 2)
    code = 1
    try:
        code = 0 if survives(mutant.module, mutant.source) else 1
    finally:
        os._exit(code)


def wait(running: dict[int, tuple[Mutant, float]], limits: dict[str, float]) -> tuple[Mutant, bool]:
    """Wait for one of the processes, or end one that takes too long: the mutant, and whether it survived."""
    while True:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid:
            return running.pop(pid)[0], status == 0
        for pid, (mutant, began) in running.items():
            if time.monotonic() - began > limits.get(mutant.module, 3600.0):
                os.killpg(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                del running[pid]
                return mutant, False
        time.sleep(0.02)


def run(
    chosen: list[Mutant], workers: int, minutes: float, limits: dict[str, float]
) -> tuple[list[Mutant], list[Mutant]]:
    """Try mutants until the time is over, each within its limit: those killed, and the survivors."""
    end, todo = time.monotonic() + 60 * minutes, list(chosen)
    running: dict[int, tuple[Mutant, float]] = {}
    killed: list[Mutant] = []
    survivors: list[Mutant] = []
    while running or (todo and time.monotonic() < end):
        while todo and len(running) < workers and time.monotonic() < end:
            mutant = todo.pop(0)
            running[start(mutant)] = mutant, time.monotonic()
        mutant, survived = wait(running, limits)
        (survivors if survived else killed).append(mutant)
        print("survived" if survived else "killed  ", mutant, flush=True)
    return killed, survivors


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("modules", nargs="*", help=f"by default all of {', '.join(MODULES)}")
    parser.add_argument("--per-module", type=int, default=24)
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--least", type=float, default=85.0)
    args = parser.parse_args()
    modules = args.modules or list(MODULES)
    every = {module: mutants(module) for module in modules}
    ranks = range(args.per_module)  # one of each module after the other, in case the time does not suffice
    chosen = [every[m][i] for i in ranks for m in modules if i < len(every[m])]
    sys.path[:0] = [str(ROOT / "tests"), str(SOURCE.parent)]
    os.chdir(ROOT)
    import equinox  # noqa: F401
    import optax  # noqa: F401

    import conftest  # noqa: F401  # the flags of XLA and the cache, before JAX is imported

    limits: dict[str, float] = {}
    for module in modules:  # a test that fails without a mutant kills all of them
        original = Mutant(module, "", 0, "unchanged", (SOURCE / f"{module}.py").read_text())
        began = time.monotonic()
        alive = run([original], 1, 10.0, {})[1]
        limits[module] = LONGEST * (time.monotonic() - began)
        if not alive:
            print(f"the tests of {module} fail without any change", file=sys.stderr)
            return 2
    killed, survivors = run(chosen, args.workers, args.minutes, limits)
    for module in modules:
        dead, alive = (sum(m.module == module for m in part) for part in (killed, survivors))
        print(f"{module}: {dead} of {dead + alive} killed, {len(every[module])} mutants in all")
    tried = len(killed) + len(survivors)
    score = 100 * len(killed) / max(tried, 1)
    print(f"{len(killed)} of {tried} mutants killed: {score:.1f} %")
    return int(score < args.least)


if __name__ == "__main__":
    raise SystemExit(main())
