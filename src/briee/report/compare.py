"""`briee compare`: tables and figures of algorithms in worlds, from tables of runs. Draws with matplotlib.

A run that was not solved is censored: it needs more episodes.

Censored runs stay in every number through the Kaplan-Meier estimate of F(t), the share of runs solved within
t episodes. Intervals are percentiles of a bootstrap that draws seeds anew within each world. A drawn sample
is a vector of weights, how often each run was drawn, so all samples are computed at once.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from briee.algorithms.registry import colour, in_words, style
from briee.errors import RunError
from briee.training.directory import read_table, write_atomically, write_table
from briee.training.spec import RunSpec, list_runs
from briee.training.sweep import world_of

SAMPLES = 2_000
LEVEL = 0.95
ROUNDING = 1e-9


class Sample(NamedTuple):
    """The runs of one algorithm in one world, sorted by time; solved ones come first among equals."""

    times: np.ndarray
    """f64[n]: episodes to solve, or all episodes of a run that was not solved."""
    solved: np.ndarray
    """bool[n]"""

    @classmethod
    def of(cls, times: Sequence[float], solved: Sequence[bool]) -> "Sample":
        """The sample of runs in any order."""
        t, s = np.asarray(times, float), np.asarray(solved, bool)
        order = np.lexsort(np.stack([~s, t]))
        return cls(t[order], s[order])

    def draw(self, rng: np.random.Generator, samples: int = SAMPLES) -> np.ndarray:
        """i64[samples, n]: how often each run is drawn."""
        n = len(self.times)
        return rng.multinomial(n, np.full(n, 1 / n), samples)


class Estimate(NamedTuple):
    """A number with its interval; infinite if too few runs were solved to tell."""

    value: float
    low: float
    high: float


Statistic = Callable[[Sample, np.ndarray | None], np.ndarray]
"""A number of a sample, or of each sample that the weights describe."""


def solved_within(sample: Sample, weights: np.ndarray | None = None) -> np.ndarray:
    """f64[..., n]: Kaplan-Meier estimate of the share of runs solved up to each time of the sample."""
    w = np.ones(len(sample.times)) if weights is None else weights.astype(float)
    at_risk = np.cumsum(w[..., ::-1], axis=-1)[..., ::-1]
    fails = np.where(sample.solved, w / np.maximum(at_risk, 1), 0.0)
    return 1 - np.cumprod(1 - fails, axis=-1)


def median(sample: Sample, weights: np.ndarray | None = None) -> np.ndarray:
    """f64[...]: the first time at which half of the runs are solved; infinite if there is none."""
    reached = solved_within(sample, weights) >= 0.5 - ROUNDING
    return np.where(reached.any(-1), sample.times[reached.argmax(-1)], np.inf)


def interquartile_mean(sample: Sample, weights: np.ndarray | None = None) -> np.ndarray:
    """f64[...]: mean time of the middle half of the runs; infinite if under three quarters are solved."""
    share = solved_within(sample, weights)
    inside = np.clip(share, 0.25, 0.75)
    part = np.diff(inside, axis=-1, prepend=0.25)
    return np.where(share[..., -1] >= 0.75 - ROUNDING, 2 * (part * sample.times).sum(-1), np.inf)


def interval(values: np.ndarray, axis: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """The percentiles that leave out the same share at both ends; values may be infinite."""
    ordered = np.sort(values, axis=axis)
    last = values.shape[axis] - 1
    low = round(last * (1 - LEVEL) / 2)
    return ordered.take(low, axis), ordered.take(last - low, axis)


def estimate(statistic: Statistic, sample: Sample, rng: np.random.Generator) -> Estimate:
    """A statistic of a sample with its bootstrap interval."""
    low, high = interval(statistic(sample, sample.draw(rng)))
    return Estimate(float(statistic(sample, None)), float(low), float(high))


def profile(
    samples: Mapping[str, Sample], best: Mapping[str, float], factors: np.ndarray, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """f64[factors] three times: share of runs solved within `factor` times the best median of their world,
    averaged over worlds, and its interval. A world that nobody solves counts as zero."""

    def shares(world: str, weights: np.ndarray | None) -> np.ndarray:
        sample = samples[world]
        share = solved_within(sample, weights)
        share = np.concatenate([np.zeros((*share.shape[:-1], 1)), share], axis=-1)
        limits = factors * (best[world] if np.isfinite(best[world]) else 0)
        return share[..., np.searchsorted(sample.times, limits * (1 + ROUNDING), side="right")]

    drawn = np.mean([shares(world, sample.draw(rng)) for world, sample in samples.items()], axis=0)
    return (np.mean([shares(world, None) for world in samples], axis=0), *interval(drawn))


def improvement(
    ours: Mapping[str, Sample], theirs: Mapping[str, Sample], rng: np.random.Generator
) -> Estimate:
    """The probability that a run of ours needs fewer episodes than one of theirs, averaged over the worlds
    that both have. A comparison that censoring leaves open counts one half."""
    worlds = [world for world in ours if world in theirs]
    values, drawn = [], []
    for world in worlds:
        x, y = ours[world], theirs[world]
        earlier = x.solved[:, None] & (x.times[:, None] < y.times + ~y.solved)
        later = y.solved & (y.times < x.times[:, None] + ~x.solved[:, None])
        wins = 0.5 + 0.5 * earlier - 0.5 * later
        values.append(wins.mean())
        drawn.append(np.einsum("bi,ij,bj->b", x.draw(rng), wins, y.draw(rng)) / wins.size)
    return Estimate(float(np.mean(values)), *map(float, interval(np.mean(drawn, axis=0))))


NEEDED = ("label", "world", "seed", "solved", "episodes", "episodes_to_solve")
FACTORS = np.geomspace(1, 1000, 200)
HEAD = ("world", "algorithm", "runs", "solved", "median episodes", "interquartile mean")


class Line(NamedTuple):
    """An algorithm in a world."""

    world: str
    label: str
    sample: Sample
    median: Estimate
    iqm: Estimate
    seconds: float
    """Mean of all runs."""

    @property
    def cells(self) -> list[str]:
        """The line of a printed table, under `HEAD`."""
        most = self.sample.times[-1]
        about = [self.world, self.label, str(len(self.sample.times)), f"{self.sample.solved.mean():.0%}"]
        return [*about, *(_said(number, most, len(self.sample.times)) for number in (self.median, self.iqm))]


def read_rows(paths: Sequence[Path]) -> list[dict[str, str]]:
    """The runs that were begun, from tables, from folders with a table, or from run directories."""
    rows: dict[tuple[str, ...], dict[str, str]] = {}
    for path in paths:
        table = path / "runs.csv" if path.is_dir() else path
        found = read_table(table, "label") if table.exists() else [_row(run) for run in list_runs(path)]
        if not found:
            raise RunError(f"no runs in {path}")
        for row in found:
            if missing := [name for name in NEEDED if name not in row]:
                raise RunError(f"{table} has no column {missing[0]!r}")
            known = rows.setdefault((row["world"], row["label"], row["seed"]), row)
            if any(known[name] != row[name] for name in ("episodes", "solved")):
                what = f"{row['label']} on {row['world']}, seed {row['seed']}"
                raise RunError(f"two runs of {what} differ, the second in {table}: compare them one by one")
    return [row for row in rows.values() if row["episodes"]]


def _row(run: Any) -> dict[str, str]:
    """The row of a run directory."""
    config, summary = run.config, run.summary
    preset = "" if config["preset"] == "default" else config["preset"]
    row = {"label": f"{config['algorithm']} {preset}".strip(), "seed": str(config["seed"])}
    row |= {"world": world_of(RunSpec.from_json(config), {})}
    row |= {name: str(summary.get(name) or "") for name in ("solved", "episodes", "episodes_to_solve")}
    return row | {"seconds": str(summary.get("seconds", {}).get("total", ""))}


def compare(rows: Sequence[Mapping[str, str]], seed: int = 0) -> list[Line]:
    """A line for each world and algorithm, in the order in which they appear."""
    groups: dict[tuple[str, str], list[Mapping[str, str]]] = defaultdict(list)
    for row in rows:
        groups[row["world"], row["label"]].append(row)
    order = list(dict.fromkeys(row["world"] for row in rows))
    lines = []
    for (world, label), runs in sorted(groups.items(), key=lambda item: order.index(item[0][0])):
        solved = [bool(run["episodes_to_solve"]) for run in runs]
        times = [float(run["episodes_to_solve"] or run["episodes"]) for run in runs]
        sample, rng = Sample.of(times, solved), np.random.default_rng(seed)
        seconds = [float(run["seconds"]) for run in runs if run.get("seconds")]
        half, iqm = (estimate(statistic, sample, rng) for statistic in (median, interquartile_mean))
        mean = float(np.mean(seconds)) if seconds else math.nan
        lines.append(Line(world, label, sample, half, iqm, mean))
    return lines


def improvements(lines: Sequence[Line], seed: int = 0) -> list[tuple[str, str, int, Estimate]]:
    """For each pair of algorithms with worlds in common: how many, and the probability of improvement."""
    by_label = by_algorithm(lines)
    found, labels = [], list(by_label)
    for i, x in enumerate(labels):
        for y in labels[i + 1 :]:
            if common := by_label[x].keys() & by_label[y].keys():
                rng = np.random.default_rng(seed)
                found.append((x, y, len(common), improvement(by_label[x], by_label[y], rng)))
    return found


def by_algorithm(lines: Sequence[Line]) -> dict[str, dict[str, Sample]]:
    """The samples by algorithm and world."""
    found: dict[str, dict[str, Sample]] = defaultdict(dict)
    for line in lines:
        found[line.label][line.world] = line.sample
    return found


def write_comparison(lines: Sequence[Line], folder: Path) -> list[Path]:
    """Write the table as Markdown, CSV and LaTeX, and two figures as PNG and PDF; returns the files."""
    folder.mkdir(parents=True, exist_ok=True)
    table = [line.cells for line in lines]
    pairs = [
        [x, y, str(worlds), f"{p.value:.2f} [{p.low:.2f}, {p.high:.2f}]"]
        for x, y, worlds, p in improvements(lines)
    ]
    text = markdown(HEAD, table)
    if pairs:
        text += "\n" + markdown(("algorithm", "against", "worlds", "probability of improvement"), pairs)
    write_atomically(folder / "compare.md", text)
    write_atomically(folder / "compare.tex", latex(HEAD, table))
    write_table(folder / "compare.csv", [_numbers(line) for line in lines])
    files = [folder / f"compare.{kind}" for kind in ("md", "csv", "tex")]
    for name, figure in (("episodes", draw_episodes(lines)), ("profile", draw_profiles(lines))):
        for path in (folder / f"{name}.png", folder / f"{name}.pdf") if figure else ():
            figure.savefig(path, dpi=150, metadata={"CreationDate": None} if path.suffix == ".pdf" else None)
            files.append(path)
    return files


def markdown(head: Sequence[str], table: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [head, ["---"] * len(head), *table]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def latex(head: Sequence[str], table: Sequence[Sequence[str]]) -> str:
    """A table in LaTeX, for the package booktabs."""
    signs = {"\\": r"\textbackslash{}", "∞": r"$\infty$", ">": "$>$"} | {
        sign: f"\\{sign}" for sign in "&%_#$"
    }
    cells = [[cell.translate(str.maketrans(signs)) for cell in line] for line in (head, *table)]
    top, *rows = (" & ".join(line) + r" \\" for line in cells)
    columns = "ll" + "r" * (len(head) - 2)
    return "\n".join(
        [rf"\begin{{tabular}}{{{columns}}}", r"\toprule", top, r"\midrule", *rows, r"\bottomrule",
         r"\end{tabular}", ""]
    )  # fmt: skip


def draw_episodes(lines: Sequence[Line]) -> Any:
    """Median episodes to solve with their intervals, a row for each world; open triangles: too few solved."""
    from matplotlib.figure import Figure

    worlds, labels = (
        list(dict.fromkeys(getattr(line, name) for line in lines)) for name in ("world", "label")
    )
    figure = Figure(figsize=(8, 1.2 + 0.35 * len(worlds) + 0.2 * len(labels)), layout="constrained")
    axis = figure.subplots()
    for line in lines:
        number = labels.index(line.label)
        y = worlds.index(line.world) + 0.6 * ((number + 0.5) / len(labels) - 0.5)
        shade, most = colour(line.label), line.sample.times[-1]
        value, low, high = (min(number, most) for number in line.median)
        axis.plot([low, high], [y, y], color=shade, linewidth=1)
        if math.isfinite(line.median.value):
            axis.plot(value, y, style(line.label, labels)[0], color=shade)
        else:
            axis.plot(value, y, ">", color=shade, fillstyle="none")
    for label in labels:
        axis.plot([], [], style(label, labels)[0], color=colour(label), label=in_words(label))
    axis.set_yticks(range(len(worlds)), worlds, fontsize=8)
    axis.invert_yaxis()
    axis.set(xscale="log", xlabel="training episodes until solved: median and 95 % interval over seeds")
    axis.grid(alpha=0.3)
    figure.legend(fontsize=8, loc="outside lower center", ncols=2, frameon=False)
    return figure


def draw_profiles(lines: Sequence[Line], seed: int = 0) -> Any:
    """Share of runs solved within a multiple of the best median, of the algorithms that ran in all worlds."""
    from matplotlib.figure import Figure

    worlds = dict.fromkeys(line.world for line in lines)
    by_label = {label: runs for label, runs in by_algorithm(lines).items() if len(runs) == len(worlds)}
    if len(by_label) < 2:
        return None
    best = {world: min(line.median.value for line in lines if line.world == world) for world in worlds}
    figure = Figure(figsize=(7, 4 + 0.1 * len(by_label)), layout="constrained")
    axis = figure.subplots()
    for label, samples in by_label.items():
        share, low, high = profile(samples, best, FACTORS, np.random.default_rng(seed))
        look: dict[str, Any] = {"color": colour(label), "linestyle": style(label, list(by_label))[1]}
        axis.plot(FACTORS, share, **look, label=in_words(label), drawstyle="steps-post")
        axis.fill_between(FACTORS, low, high, color=colour(label), alpha=0.15, step="post", linewidth=0)
    count = "1 world" if len(worlds) == 1 else f"{len(worlds)} worlds"
    axis.set(xscale="log", xlabel=f"episodes over the best median of the world ({count})", ylim=(0, 1.02))
    axis.set_ylabel("share of runs solved")
    axis.grid(alpha=0.3)
    figure.legend(fontsize=8, loc="outside lower center", ncols=2, frameon=False)
    return figure


def _said(number: Estimate, most: float, runs: int) -> str:
    """An estimate in words: `240 [220, 260]`; `> 400` if too few runs were solved; no interval of one run."""
    if math.isinf(number.value) or runs == 1:
        return f"{number.value:,.0f}" if math.isfinite(number.value) else f"> {most:,.0f}"
    high = "∞" if math.isinf(number.high) else f"{number.high:,.0f}"
    return f"{number.value:,.0f} [{number.low:,.0f}, {high}]"


def _numbers(line: Line) -> dict[str, Any]:
    """The line of compare.csv; what is infinite stays empty."""
    row: dict[str, Any] = {"world": line.world, "label": line.label, "runs": len(line.sample.times)}
    row |= {"solved": int(line.sample.solved.sum()), "episodes_of_longest": int(line.sample.times[-1])}
    for name, number in (("median", line.median), ("iqm", line.iqm)):
        for suffix, value in zip(("", "_low", "_high"), number, strict=True):
            row[name + suffix] = "" if math.isinf(value) else round(value, 1)
    return row | {"seconds": "" if math.isnan(line.seconds) else round(line.seconds, 1)}
