"""The leaderboard of a fixed suite, from tables, and the check of a submission. Only `replay` imports JAX."""

import dataclasses
import json
import math
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from briee.configuration import flatten
from briee.errors import RunError
from briee.report.compare import Line, compare, markdown, read_rows
from briee.training.directory import read_json, read_metrics
from briee.training.spec import RunSpec, list_runs, load_spec
from briee.training.sweep import Run, value_text, world_of

HEAD = ("algorithm", "solved", "median episodes", "interquartile mean", "seconds")
NOT_IN_SUITE = {
    "reward-free": "it explores without a reward",
    "theory": "it needs finitely many observations",
    "olive": "it needs finitely many observations",
}
"""Algorithms that cannot take part, and why."""
REFUSED = {"lsvi-ucb": "it has to be told the true features"}
"""Algorithms that refuse the worlds for which the suite does not list them, and why."""
NOTE = f"""# Leaderboard

Episodes to solve on the suite [block-mdp.toml](../benchmarks/block-mdp.toml): Kaplan–Meier medians and interquartile means with 95 %
intervals over seeds, the fewest episodes first. `> n`: too few runs were solved within the n episodes played. Slow algorithms play fewer
than the budget: `lsvi-ucb-rff` (10,000 episodes took two hours at H = 25) and `boot-dqn` (half a minute of CPU for 1,000 episodes).
Algorithms that were run on some of the seeds come last, without a rank. *Beyond the budget*: the algorithm explores level by level and has
not explored all of them when the budget is used up. *Not run*: nobody has carried out the runs; that says nothing about the algorithm.
`lsvi-ucb` is told the true features.
Seconds are from different machines, some of them busy with other work.
Not in the suite: {"; ".join(f"`{name}` ({why})" for name, why in NOT_IN_SUITE.items())}.
Made by `briee leaderboard` from the tables of runs; [sweeps.md](sweeps.md) says how to take part.
"""  # noqa: E501


class World(NamedTuple):
    """One environment of the suite."""

    budget: int
    seeds: tuple[int, ...]


def worlds_of(suite: Sequence[Run]) -> dict[str, World]:
    """The worlds of a suite by name."""
    found: dict[str, World] = {}
    for run in suite:
        seeds = found[run.world].seeds if run.world in found else ()
        found[run.world] = World(run.spec.episodes, tuple(dict.fromkeys((*seeds, run.spec.seed))))
    return found


def leaderboard(suite: Sequence[Run], tables: Sequence[Path]) -> str:
    """The page: a table for each world of the suite, the fewest episodes first; unsolved runs stay in it."""
    worlds, rows, parts = worlds_of(suite), {}, [NOTE]
    for row in (row for table in tables for row in read_rows([table])):
        name, label = world_in_suite(row), label_of(row)
        if name in worlds and int(row["seed"]) in worlds[name].seeds:
            entry = _within(row | {"world": name, "label": label}, worlds[name].budget)
            known = rows.setdefault((name, label, row["seed"]), entry)
            if known["episodes_to_solve"] != entry["episodes_to_solve"]:
                raise RunError(f"two runs of {label} on {name}, seed {row['seed']}, differ")
    lines = compare(list(rows.values())) if rows else []
    for name, world in worlds.items():
        here = sorted((line for line in lines if line.world == name), key=lambda line: line.median[:2])
        shown = [line for line in here if len(line.sample.times) == len(world.seeds)]
        asked = {run.label for run in suite if run.world == name}
        shown += [x for x in here if x not in shown and (x.label in asked or "," not in x.label)]
        about = [f"Budget {world.budget:,} episodes, seeds {', '.join(map(str, world.seeds))}."]
        about += left_out(suite, name, {line.label.replace(",", "").split()[0] for line in shown})
        table = "\n" + markdown(HEAD, [_entry(line) for line in shown]) if shown else ""
        parts.append(f"## {name}\n\n{' '.join(about)}\n{table}")
    return "\n".join(parts)


def left_out(suite: Sequence[Run], world: str, present: Collection[str]) -> list[str]:
    """Sentences about the algorithms that are not present in a world, and why."""
    listed = {run.spec.algorithm: run.spec for run in suite if run.world == world}
    everywhere = {run.spec.algorithm for run in suite}
    absent = {name: spec for name, spec in listed.items() if name not in present}
    beyond = [name for name, spec in absent.items() if _explores(spec) > spec.episodes]
    found = {
        "Refuses": [f"{a} ({why})" for a, why in REFUSED.items() if a in everywhere - listed.keys()],
        "Beyond the budget": beyond,
        "Not run": [name for name in absent if name not in beyond],
    }
    return [f"{words}: {', '.join(names)}." for words, names in found.items() if names]


def _explores(spec: RunSpec) -> int:
    """Episodes that a rival which works level by level plays before it plans, at least; 0 for others."""
    return flatten(dataclasses.asdict(spec.config)).get("episodes_per_level", 0) * (spec.horizon - 1)


def _entry(line: Line) -> list[str]:
    _, label, runs, _, middle, mean = line.cells
    seconds = "" if math.isnan(line.seconds) else f"{line.seconds:,.0f}"
    return [label, f"{line.sample.solved.sum()} of {runs}", middle, mean, seconds]


def label_of(row: Mapping[str, str]) -> str:
    """The algorithm with all values changed; tables of experiments have them in a column."""
    changes = json.loads(row.get("changes") or "{}")
    said = [f"{n} = {value_text(v)}" for n, v in changes.items() if not n.startswith("evaluation.")]
    name = " ".join([row["algorithm"], *([row["preset"]] if row["preset"] != "default" else [])])
    return ", ".join([name, *said]) if said or not row["label"] else row["label"]


def world_in_suite(row: Mapping[str, str]) -> str:
    """The world of a row; tables of experiments have the arguments of the environment in a column."""
    if "arguments" not in row:
        return row["world"]
    arguments, rich, changes = (
        json.loads(row.get(name) or "{}") for name in ("arguments", "rich", "changes")
    )
    about = (row["env"], row["algorithm"], row["preset"], int(row["horizon"]), int(row["seed"]), 1)
    rule = {name: value for name, value in changes.items() if name.startswith("evaluation.")}
    return world_of(RunSpec(*about, None, arguments, rich), rule)  # type: ignore[arg-type]


def _within(row: Mapping[str, str], budget: int) -> dict[str, str]:
    """The row as it was when the budget of the suite was used up."""
    episodes, solved = int(row["episodes"]), row["episodes_to_solve"]
    if solved and int(solved) <= budget:
        return dict(row)
    seconds = row.get("seconds", "") if episodes <= budget else ""
    cut = {"episodes_to_solve": "", "solved": "False", "episodes": str(min(episodes, budget))}
    return {**row, **cut, "seconds": seconds}


def complaints(suite: Sequence[Run], folder: Path) -> Iterator[str]:
    """One sentence for everything that is wrong with a submission: run directories below `folder`."""
    worlds, found = worlds_of(suite), {}
    for listed in list_runs(folder):
        name, spec = listed.path.name, load_spec(listed.path)
        rule = flatten(spec.to_json()["config"]["evaluation"], "evaluation.")
        matches = [run for run in suite if _same_world(run.spec, spec)]
        if not matches:
            yield f"{name}: no world of the suite is {world_of(spec, {})}"
            continue
        wanted = matches[0]
        rules = flatten(wanted.spec.to_json()["config"]["evaluation"], "evaluation.")
        for field in (field for field in rules if rule.get(field) != rules[field]):
            yield f"{name}: {field} is {rule.get(field)}, the suite has {rules[field]}"
        if spec.episodes < wanted.spec.episodes and not listed.summary.get("solved"):
            yield f"{name}: its budget is {spec.episodes:,} episodes, the suite has {wanted.spec.episodes:,}"
        if spec.seed not in worlds[wanted.world].seeds:
            yield f"{name}: seed {spec.seed} is not one of the suite's"
        found.setdefault((spec.algorithm, spec.preset), set()).add((wanted.world, spec.seed))
        yield from (f"{name}: {sentence}" for sentence in _inconsistencies(listed.path, spec))
    if not found:
        raise RunError(f"no run of the suite in {folder}")
    for (algorithm, preset), have in found.items():
        for world in dict.fromkeys(world for world, _ in sorted(have)):
            for seed in (seed for seed in worlds[world].seeds if (world, seed) not in have):
                yield f"{algorithm} {preset}: seed {seed} of {world} is missing"


def replay(suite: Sequence[Run], folder: Path, iterations: int) -> Iterator[str]:
    """Repeat the first iterations of one run of each algorithm in each world: one sentence for each counter
    that is not the environment's."""
    from briee.training.session import run
    from briee.training.spec import build

    chosen: dict[tuple[str, ...], tuple[Path, RunSpec]] = {}
    for path in (listed.path for listed in list_runs(folder)):
        spec = load_spec(path)
        if any(_same_world(other.spec, spec) for other in suite):
            chosen.setdefault((spec.algorithm, spec.preset, world_of(spec, {})), (path, spec))
    for path, spec in chosen.values():
        rows = read_metrics(path / "metrics.csv")[:iterations]
        with tempfile.TemporaryDirectory() as again:
            shorter = dataclasses.replace(spec, episodes=rows[-1]["episodes"])
            run(build(shorter), shorter, Path(again) / "run")
            found = read_metrics(Path(again) / "run" / "metrics.csv")
        for row, own in zip(rows, found, strict=False):
            for name in (name for name in ("episodes", "env_steps") if row[name] != own[name]):
                at = f"{name} of iteration {row['iteration']}"
                yield f"{path.name}: {at} are {row[name]:,}, {own[name]:,} when repeated here"


def _same_world(ours: RunSpec, theirs: RunSpec) -> bool:
    return world_of(ours, {}) == world_of(theirs, {})


def _inconsistencies(path: Path, spec: RunSpec) -> Iterator[str]:
    """Contradictions between summary.json and metrics.csv of a run."""
    summary, rows = read_json(path / "summary.json") or {}, read_metrics(path / "metrics.csv")
    if not summary.get("finished") or not rows:
        yield "the run is not finished"
        return
    if [row["iteration"] for row in rows] != list(range(1, len(rows) + 1)):
        yield f"metrics.csv lacks rows: it has {len(rows)}, the last is iteration {rows[-1]['iteration']}"
    for name in ("episodes", "env_steps"):
        values = [row[name] for row in rows]
        if sorted(values) != values:
            yield f"{name} decreases in metrics.csv"
        if values[-1] != summary[name]:
            yield f"summary.json counts {summary[name]:,} {name}, metrics.csv {values[-1]:,}"
    for row in rows:
        if not row["episodes"] <= row["env_steps"] <= row["episodes"] * spec.horizon:
            counted = f"{row['env_steps']:,} steps of {row['episodes']:,} episodes"
            yield f"iteration {row['iteration']} counts {counted}, which have at most {spec.horizon} each"
            break
    streak = spec.config.evaluation.streak
    solved = next((row["episodes"] for row in rows if (row.get("solved_streak") or 0) >= streak), None)
    if solved != summary["episodes_to_solve"]:
        yield f"summary.json says solved after {summary['episodes_to_solve']} episodes, metrics.csv {solved}"
    best, tolerance = summary["optimal_return"], spec.config.evaluation.tolerance or 1e-3
    least = min(row["eval_return"] for row in rows[-streak:])
    if solved is not None and best is not None and least < best - tolerance:
        yield f"it counts as solved, but one of its last {streak} evaluations is {least:.3f} of {best:.3f}"
