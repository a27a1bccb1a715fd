"""A sweep is data: a TOML file in which every list is one factor of a product of runs. Imports no JAX.

A field is an option of `briee train` without its dashes. `[[product]]` tables add factors to those at the top
or replace them; `[[exclude]]` tables drop the runs that match all of their values.

OUT/sweep.toml        the file, so that `briee sweep OUT` continues
OUT/NAME/             one run directory per run
OUT/logs/NAME.log     what its processes printed
OUT/logs/NAME.failed  why it failed, until it is tried again
OUT/runs.csv          one row per run          OUT/curves.csv.gz   one row per evaluation
"""

import dataclasses
import itertools
import json
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from briee.configuration import check_seed, flatten
from briee.envs.adapters.third_party import make_one
from briee.envs.registry import make, registered
from briee.errors import RunError, UsageError
from briee.training.directory import is_locked, read_json, read_table, write_table
from briee.training.spec import RunSpec, Wanted

Point = dict[str, Any]
"""The fields of one run, as the file gives them."""
Places = Mapping[str, tuple[str, int, str]]
"""Where each field stands: table, its number, name."""
Understand = Callable[[Sequence[str]], RunSpec]
"""Reads the arguments of `briee train`; `ValueError` with one sentence if they are wrong."""
NO_FIELDS = {"run_dir", "resume", "overwrite", "seeds", "reward_free", "tensorboard", "track", "help"}
"""Options of `briee train` that a sweep sets itself, or that make no other run."""
NAMED = ("env", "horizon", "algo", "preset", "seed", "episodes", "rich")
"""Fields that have a place of their own in names, labels and tables."""
OF_WORLD = ("env.", "rich.", "evaluation.")
SUMMARY_COLUMNS = (
    *("solved", "finished", "episodes", "episodes_to_solve", "warmup_episodes", "env_steps"),
    *("eval_episodes", "final_return", "optimal_return"),
)
CURVE_COLUMNS = ("iteration", "episodes", "env_steps", "eval_return", "decoder_accuracy")


class Run(NamedTuple):
    """One run of a sweep."""

    name: str
    """Its directory: environment, horizon, algorithm, everything else that differs, and the seed."""
    argv: tuple[str, ...]
    """The arguments of `briee train`, without those about its directory."""
    spec: RunSpec
    label: str
    """The algorithm, its preset, and all values changed."""
    world: str
    """The environment, its horizon and arguments, and the rule of evaluation if another is given."""
    differs: Mapping[str, Any]
    """The further fields in which the runs of the sweep differ."""


class Where(NamedTuple):
    """Where a run is: waiting, running, stopped, failed, or done, which is `solved` or `finished`."""

    state: str
    reason: str
    summary: Mapping[str, Any]

    @property
    def done(self) -> bool:
        """Whether nothing is left to do."""
        return self.state in ("solved", "finished")


def read_sweep(path: Path, understand: Understand, check: bool = True, text: str | None = None) -> list[Run]:
    """The runs that a file describes, or `UsageError` with one sentence and the line.

    `check` makes sure that the environments exist here. `text` stands for that of the file.
    """
    try:
        text = path.read_text() if text is None else text
        content = tomllib.loads(text + "\n")  # so that an error in the last line has its number
    except (OSError, ValueError) as error:  # tomllib names the line
        raise UsageError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from None
    lines = find_lines(text)

    def refuse(sentence: str, *places: tuple[str, int, str]) -> UsageError:
        known = sorted({line for place in places if (line := _line_of(place, lines))})
        return UsageError(f"{path}{', line ' * bool(known)}{' and '.join(map(str, known))}: {sentence}")

    points = expand(content, refuse)
    names = {name for point, _ in points for name in point}
    texts = {
        name: {value_text(point[name]) if name in point else "" for point, _ in points} for name in names
    }
    differing = {name for name in names if len(texts[name]) > 1}
    specs: dict[str, RunSpec] = {}
    runs: dict[str, Run] = {}
    for point, places in points:
        key = json.dumps(point | {"seed": None}, default=str)
        try:
            if key not in specs:
                spec = understand(arguments(point | {"seed": 1}))
                specs[key] = check_environment(spec) if check else spec
            spec = dataclasses.replace(specs[key], seed=check_seed(point.get("seed", 1)))
        except ValueError as error:
            guilty = "seed" if key in specs else _guilty(point, understand)
            raise refuse(str(error), places.get(guilty, places["env"])) from None
        run = make_run(point, spec, differing)
        if run.name in runs:
            same = "equal" if runs[run.name].argv == run.argv else "different but have the same name"
            raise refuse(f"two runs are {same}: {run.name}", *places.values())
        runs[run.name] = run
    return list(runs.values())


def expand(content: Point, refuse: Callable[..., UsageError]) -> list[tuple[Point, Places]]:
    """The points of all products but those excluded, each with the places of its fields."""
    products, exclusions = content.pop("product", [{}]), content.pop("exclude", [])
    for name, tables in (("product", products), ("exclude", exclusions)):
        if not (isinstance(tables, list) and all(isinstance(table, dict) for table in tables)):
            raise refuse(f"{name} is a table: write [[{name}]]", ("", 0, name))
    if not products:
        raise refuse("product is an empty list, so there is no run", ("", 0, "product"))
    points, rules, used = [], [_fields(table) for table in exclusions], set()
    for number, table in enumerate(products):
        common, own = _fields(content), _fields(table)
        places = {n: ("", 0, n) for n in common} | {n: ("product", number, n) for n in own}
        factors = {name: _listed(value) for name, value in (common | own).items()}
        if "env" not in factors:
            quotes = '; arguments of an environment need quotes, as in "env.noise" = 0.2'
            hint = quotes if any(name.startswith("env.") for name in factors) else ""
            raise refuse(f"env is missing{hint}", *places.values())
        for name, values in factors.items():
            if name in NO_FIELDS:
                raise refuse(f"{name} is not a field of a sweep", places[name])
            if not values:
                raise refuse(f"{name} is an empty list, so there is no run", places[name])
            if quoted := [v for v in values if isinstance(v, str) and re.fullmatch(r"[+-]?\d[\d.e+-]*", v)]:
                raise refuse(f"{name} must be a number without quotes, got {quoted[0]!r}", places[name])
        for values in itertools.product(*factors.values()):
            point = dict(zip(factors, values, strict=True))
            hits = {i for i, rule in enumerate(rules) if _matches(point, rule)}
            used |= hits
            points += [] if hits else [(point, places)]
    for number, rule in enumerate(rules):
        if number not in used or not points:
            what = "leaves no run" if number in used else "matches no run"
            raise refuse(f"this exclusion {what}", *(("exclude", number, name) for name in rule))
    return points


def find_lines(text: str) -> dict[tuple[str, int, str], int]:
    """The line of each field of a TOML file, by table, number of the table and name."""
    found: dict[tuple[str, int, str], int] = {}
    table, prefix, counts = "", "", {"product": -1, "exclude": -1}
    for number, line in enumerate(text.replace('"', "").splitlines(), start=1):
        if header := re.match(r"\s*(\[+)\s*(product|exclude)?\.?([\w.-]*)", line):
            table, prefix = header[2] or "", header[3] and header[3] + "."
            counts[table] = counts.get(table, 0) + (header[1] == "[[")
            found.setdefault(("", 0, table or header[3]), number)
        elif field := re.match(r"\s*([^=#\[\]]*?)\s*=", line):
            place = (table, counts.get(table, 0) if table else 0, prefix + field[1].replace("-", "_"))
            found.setdefault(place, number)
    return found


def _line_of(place: tuple[str, int, str], lines: Mapping[tuple[str, int, str], int]) -> int | None:
    """The line of a field, or of the inline table that has it."""
    table, number, name = place
    while (table, number, name) not in lines and "." in name:
        name = name.rpartition(".")[0]
    return lines.get((table, number, name))


def arguments(point: Point) -> list[str]:
    """The fields of a run as arguments of `briee train`."""
    argv = [str(point["env"])]
    for name, value in point.items():
        if name.startswith(("env.", "rich.")):
            argv += [f"--{name}", str(value)]
        elif isinstance(value, bool):
            *part, last = name.split(".")
            argv.append("--" + ".".join([*part, last if value else f"no-{last}"]).replace("_", "-"))
        elif name != "env":
            argv += [f"--{name.replace('_', '-')}", *map(str, _listed(value))]
    return argv


def make_run(point: Point, spec: RunSpec, differing: set[str] | None = None) -> Run:
    """The run of a point; its name has the fields `differing` between runs, by default all given."""
    others = {name: value for name, value in point.items() if name not in (*NAMED, *NO_FIELDS)}
    world = {name: value for name, value in others.items() if name.startswith(OF_WORLD)}
    change = {name: value for name, value in others.items() if name not in world}
    differs = {n: v for n, v in others.items() if differing is None or n in differing}
    preset = [spec.preset] if spec.preset != "default" else []
    rich = [str(point["rich"])] if "rich" in point else []

    def short(given: Point) -> list[str]:
        return [f"{n.removeprefix('env.')}{value_text(v)}" for n, v in given.items() if n in differs]

    head = [spec.env, *rich, f"h{spec.horizon}", *short(world)]
    name = "-".join([*head, spec.algorithm, *preset, *short(change), f"s{spec.seed}"])
    return Run(
        re.sub(r"[^\w.+-]+", "-", name),
        tuple(arguments(point)),
        spec,
        ", ".join(
            [" ".join([spec.algorithm, *preset]), *(f"{n} = {value_text(v)}" for n, v in change.items())]
        ),
        world_of(spec, {n: v for n, v in world.items() if n.startswith("evaluation.")}),
        differs,
    )


def world_of(spec: RunSpec, rule: Mapping[str, Any]) -> str:
    """The environment in words, seeds that are the run's aside, and the rule of evaluation."""
    given = {**spec.env_arguments, **{f"rich.{name}": value for name, value in spec.rich.items()}}
    kind = given.pop("rich.emission", None)
    given = {n: v for n, v in given.items() if not (n.endswith("_seed") and v == spec.seed)} | dict(rule)
    said = (f"{name} = {value_text(value)}" for name, value in sorted(given.items()))
    return ", ".join([spec.env, *([str(kind)] if kind else []), f"H = {spec.horizon}", *said])


def check_environment(spec: RunSpec) -> RunSpec:
    """The run itself, if there is such an environment; `ValueError` if not."""
    if spec.horizon < 1:
        raise ValueError(f"horizon must be >= 1, got {spec.horizon}")
    if registered(spec.env) is None:
        make_one(spec.env, spec.env_arguments).close()
    elif spec.env_arguments:
        make(spec.env, horizon=spec.horizon, **spec.env_arguments)
    return spec


def inspect(run: Run, out: Path) -> Where:
    """Where a run is; `RunError` if its directory holds another run."""
    folder, spec = out / run.name, run.spec
    config, summary = (read_json(folder / f"{name}.json") or {} for name in ("config", "summary"))
    if config:
        stored = flatten(config)
        for name in [name for name in stored if name.startswith(("env_arguments.", "rich."))]:
            if name not in flatten(spec.to_json()) and stored[name] == spec.seed:
                del stored[name]  # the seed that draws the environment, which is the run's
        if difference := Wanted(spec).difference(stored):
            change = "{} = {!r}, not {!r}".format(*difference)
            raise RunError(f"{folder} holds a run with {change}: choose another --out")
    if is_done(folder, spec.episodes):
        return Where("solved" if summary["solved"] else "finished", "", summary)
    if is_locked(folder / "lock") or is_locked(log_file(out, run.name, "lock")):
        return Where("running", "", summary)
    if note := read_json(log_file(out, run.name, "failed")):
        return Where("failed", note.get("reason", ""), summary)
    return Where("stopped" if config else "waiting", "", summary)


def is_done(folder: Path, episodes: int) -> bool:
    """Whether a run was solved, or has used up this budget."""
    summary = read_json(folder / "summary.json") or {}
    budget = (read_json(folder / "config.json") or {}).get("episodes", 0)
    return bool(summary.get("finished") and (summary.get("solved") or budget >= episodes))


def log_file(out: Path, name: str, kind: str) -> Path:
    """A file about a run outside its directory: log, failed, queued or lock."""
    return out / "logs" / f"{name}.{kind}"


def collect(runs: Sequence[Run], out: Path) -> list[dict[str, Any]]:
    """Write runs.csv and curves.csv.gz; returns the rows of the first."""
    rows, curves = [], []
    fields = dict.fromkeys(name for run in runs for name in run.differs)
    for run in runs:
        where, spec = inspect(run, out), run.spec
        about = {"run": run.name, "label": run.label, "world": run.world}
        about |= {name: getattr(spec, name) for name in ("algorithm", "preset", "env", "horizon", "seed")}
        seconds = where.summary.get("seconds", {})
        rows.append(
            about
            | {"state": where.state, "reason": where.reason, "budget": spec.episodes}
            | {name: where.summary.get(name) for name in SUMMARY_COLUMNS}
            | {"seconds": round(seconds["total"], 1) if seconds else None}
            | {name: run.differs.get(name) for name in fields}
        )
        for row in read_table(out / run.name / "metrics.csv"):
            curves.append(about | {name: row.get(name, "") for name in CURVE_COLUMNS})
    write_table(out / "runs.csv", rows)
    write_table(out / "curves.csv.gz", curves)
    return rows


def expected_seconds(runs: Sequence[Run], states: Mapping[str, Where]) -> Iterator[float]:
    """How long each run takes that is not done: as those of its world and label, else as all; unknown before
    the first is done."""
    done = [(run, states[run.name].summary["seconds"]["total"]) for run in runs if states[run.name].done]
    for run in runs:
        if done and not states[run.name].done:
            alike = [seconds for other, seconds in done if other[3:5] == run[3:5]]
            alike = alike or [seconds for _, seconds in done]
            yield sum(alike) / len(alike)


def _fields(table: Mapping[str, Any]) -> Point:
    return {name.replace("-", "_"): value for name, value in flatten(table).items()}


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _matches(point: Point, rule: Point) -> bool:
    return all(name in point and point[name] in _listed(value) for name, value in rule.items())


def value_text(value: Any) -> str:
    """A value of a field in names and labels."""
    return "x".join(map(str, _listed(value)))


def _guilty(point: Point, understand: Understand) -> str:
    """The field without which the others are understood; `env` if there is none."""
    for name in [name for name in point if name != "env"]:
        try:
            check_environment(understand(arguments({k: v for k, v in point.items() if k != name})))
            return name
        except ValueError:
            continue
    return "env"
