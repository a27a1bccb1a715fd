"""Numbers in README.md and docs/ from the files in results/: `make tables`.

    python benchmarks/pages.py [--check]

A page has two kinds of marks. Between `<!-- table: NAME -->` and `<!-- /table -->` stands a whole table, made
by a function of this file. Between `<!--= QUERY -->` and `<!--/-->` stands a number in a sentence. A query is

    EXPERIMENT; LINE; WHERE; STATISTIC     over the runs of a line, at a horizon or in a world (*: anywhere)
    FILE.json; KEY; FORMAT                 a value of a JSON file, at KEY or OUTER.KEY
    FILE.csv; SETTING; COLUMN; FORMAT      the mean of a column over the rows of a setting

Numbers are written nowhere else; a test fails when a page and the files disagree.
"""

import argparse
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

from briee.experiments.ablations import (
    CHOICES,
    EFFICIENT_CHANGES,
    GENERAL_CHANGES,
    OTHER,
    PROTOCOL_VARIANTS,
    RELEASED,
)
from briee.experiments.ablations import (
    GENERAL as GENERAL_ABLATION,
)
from briee.experiments.paper_figures import REFERENCES
from briee.experiments.rivals import NONLINEAR
from briee.experiments.tables import Row
from briee.training.directory import read_table
from queries import (
    HORIZONS,
    RESULTS,
    STATISTICS,
    authors_numbers,
    commands,
    count,
    each,
    finished,
    late_returns,
    line,
    measured_lines,
    number,
    outcome,
    rivals,
    runs,
    shares,
    solved,
    span,
    table,
    worlds_of_people,
)

ROOT = Path(__file__).parents[1]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
NUMBER = re.compile(r"<!--= (.*?) -->(.*?)<!--/-->", re.S)
TABLE = re.compile(r"<!-- table: (\S+) -->\n(.*?)<!-- /table -->", re.S)


def readme() -> str:
    """Episodes until the lock is solved."""
    rows, (published, _) = [], REFERENCES["MusIK"]
    for H in HORIZONS:
        ours = [_timed(f"{kind}lock-h{H}") for kind in ("general-", "")]
        known = f"{published[H]:,} (MusIK)" if H in published else "a figure (BRIEE)"
        practical, *others = [
            [row for row in runs("fig1b") if row["label"] == f"briee {preset}" and row["horizon"] == str(H)]
            for preset in ("practical", "paper", "released")
        ]
        seconds = max(float(row["seconds"]) for row in practical)  # the first of a process compiles
        rows.append([str(H), known, *ours, f"{_few(practical)} ({seconds:.0f} s)", *map(_few, others)])
    names = (
        "`general`, the default: K is found",
        "`efficient`, K is given",
        *(f"Algorithm 1, preset `{preset}`" for preset in ("practical", "paper", "released")),
    )
    return table(["horizon", "published", *(f"ours, {name}" for name in names)], rows)


def _timed(world: str) -> str:
    """Median episodes, and seconds of the whole process."""
    own = [row for row in runs("worlds") if row["world"] == world]
    return f"{_few(own)} ({median(float(row['process_seconds']) for row in own):.0f} s)"


def _few(rows: Sequence[Row]) -> str:
    """The median, or both of two runs, and how many runs there are if not five; runs that are not over do not
    count."""
    rows = finished(rows)
    if not rows:
        return "–"
    done = solved(rows)
    text = count(median(done)) if done else "not solved"
    if len(done) < len(rows):
        return f"{text} ({len(done)} of {len(rows)} seeds)"
    text = span(done) if len(done) == 2 else text
    return text if len(rows) == 5 else f"{text} ({'one seed' if len(rows) == 1 else f'{len(rows)} seeds'})"


def fig1b() -> str:
    """Every line of Figure 1(b) at every horizon."""
    labels = dict.fromkeys(row["label"] for row in runs("fig1b"))
    rows = []
    for label in labels:
        cells = [[r for r in line("fig1b", label) if r["horizon"] == str(H)] for H in HORIZONS]
        texts = [outcome(cell) if cell else "–" for cell in cells]
        rows.append([f"`{label}`", *texts, STATISTICS["version"](line("fig1b", label))])
    rows += measured_lines()
    for name, (points, _) in REFERENCES.items():
        texts = [f"{points[H]:,}" if H in points else "–" for H in HORIZONS]
        rows.append([f"{name}, published", *texts, "–"])
    return table(["", *(f"H = {H}" for H in HORIZONS), "version"], rows)


def curves_table(figure: str, evaluations: int) -> str:
    """Every line of a figure of returns: episodes to solve, and the mean return at the end."""
    rows = []
    for label in dict.fromkeys(row["label"] for row in runs(figure)):
        own = line(figure, label)
        late = span(late_returns(own, evaluations), ".2f")
        rows.append(
            [f"`{label}`", outcome(own), STATISTICS["episodes"](own), late, STATISTICS["version"](own)]
        )
    head = ["", "episodes to solve", "episodes used", f"return, mean of the last {evaluations} evaluations"]
    return table([*head, "version"], rows)


ABLATION = {
    "bonus from all data": "bonus from all data",
    "optimistic policy evaluated": "optimistic policy evaluated",
    "Q clipped instead of the bonus": "no cap on the bonus but on Q",
    "two hidden layers": "two hidden layers",
    "no termination": "no termination: always 30 rounds",
    "features first": "features move first",
    "noise on H + 3 coordinates": "noise on the first H + 3 coordinates only",
    "alternating ascent": "f and the rival in turn",
    "do not wait for the rival": "f sinks instead of waiting for the rival",
    "64 discriminator steps": "64 discriminator steps instead of 128",
    "first features of the last update": "first features those of the last update (neither does so)",
    "0.01 on the mean loss": "λ = 0.01 on the mean loss, as the paper is written (neither does so)",
}
"""The variants in words."""
assert set(ABLATION) == {*RELEASED, *OTHER, "noise on H + 3 coordinates"}


def ablation() -> str:
    """One difference switched at a time."""
    rows = [["nothing: the preset `paper`", *(_seeds("briee paper", H) for H in ("6", "12"))]]
    for variant, words in ABLATION.items():
        rows.append([words, *(number(f"ablation; briee paper {variant}; {H}; seed 1") for H in (6, 12))])
    rows.append(["all that `released` changes", *(_seeds("briee released", H) for H in ("6", "12"))])
    return table(["switched alone", "H = 6", "H = 12"], rows)


def _seeds(label: str, horizon: str) -> str:
    rows = line("ablation", label, horizon)
    first = STATISTICS["seed 1"](rows)
    return f"{first} ({span(solved(rows))} with {len(rows)} seeds)" if len(rows) > 1 else first


PARTS = {
    "": "the default",
    "no strata": "no strata",
    "no forward term": "no forward term",
    "no compact term": "no compact term",
    "no novel states": "no novel states",
    "no merged parts": "parts of one state not merged",
    "two tries": "two tries instead of the discovery curve",
    "bonus": "bonus 1/√(n + 1) instead of it",
    "one round": "one round of 20 episodes instead of 4 of 5",
    "100 episodes an update": "100 episodes an update, in one round",
    "refit all": "all levels refitted at every update",
    "K = 6": "K = 6",
}
"""The variants of `efficient` in words."""
assert set(PARTS) == set(EFFICIENT_CHANGES)


def ablation_efficient() -> str:
    """`efficient` without each of its parts."""
    worlds = {"H = 12": "lock, H = 12", "H = 25": "lock, H = 25"}
    worlds["H = 12, 20 distractors"] = "lock, H = 12, distractors = 20"
    name = "ablation-efficient"
    rows = [
        [words, *(each(line(name, f"efficient {variant}".strip(), world)) for world in worlds.values())]
        for variant, words in PARTS.items()
    ]
    return table(["", *worlds], rows)


def ablation_general() -> str:
    """`general` without each of its parts."""
    worlds = {
        "lock, H = 6": "lock, H = 6",
        "rings, H = 5, A = 4": "lock, H = 5, emission = rings, num_actions = 4",
        "moving shapes, H = 5, A = 4": "lock, H = 5, emission = shapes, num_actions = 4",
        "a network for each level, H = 5, A = 4": "lock, H = 5, emission = network, rotation = per_level, "
        "num_actions = 4",
    }
    planned, rows = {(s.label, s.world) for s in GENERAL_ABLATION.settings}, []
    for variant in GENERAL_CHANGES:
        label, cells = f"general {variant}".strip(), []
        for world in worlds.values():
            own = [r for r in runs("ablation-general") if (r["label"], r["world"]) == (label, world)]
            missing = "not run" if (label, world) in planned else "the same"
            cells.append(_with_returns(own) or missing)
        rows.append([variant or "nothing left out", *cells])
    return table(["", *worlds], rows)


def _with_returns(rows: Sequence[Row]) -> str:
    """Episodes to solve of each run, or its last return in brackets."""
    done = [each([row]) if row["solved"] == "True" else f"({float(row['final_return']):.2f})" for row in rows]
    return ", ".join(done)


PROTOCOL = {
    "": "nothing: the preset `practical`",
    "no game": "game: the first features are kept",
    "no clusters": "start: old features, random in the beginning, no clusters",
    "batch of the paper": "batch: 50 H episodes an update, in one round",
    "bonus of the paper": "bonus: α = H/5, λ = 1",
    "ridge of the paper": "ridge: it shrinks to 0 instead of the least next value",
    "bonus and ridge of the paper": "both, bonus and ridge",
    "temperature of the paper": "temperature: bonus and plan use the features of the game, τ = 1",
    "deviations only": "rows: the deviations alone",
}
"""The change that a variant of `practical` undoes, in words."""
assert set(PROTOCOL) == set(PROTOCOL_VARIANTS)


def _outcome(label: str, world: str) -> str:
    """How the runs of a line ended in a world of the ablation of the protocol, a dash if there are none."""
    rows = [row for row in runs("ablation-protocol") if (row["label"], row["world"]) == (label, world)]
    return outcome(rows) if rows else "–"


def ablation_protocol() -> str:
    """`practical` with one change undone at a time."""
    labels = {f"briee practical {variant}".strip(): words for variant, words in PROTOCOL.items()}
    rows = [
        [words, *(_outcome(label, f"lock, H = {H}") for H in (12, 25))] for label, words in labels.items()
    ]
    return table(["undone", "H = 12", "H = 25"], rows)


def protocol_choices() -> str:
    """`practical` with other values of what it chooses."""
    rows = [[variant, _outcome(f"briee practical {variant}", "lock, H = 25")] for variant in CHOICES]
    return table(["instead", "H = 25"], [["`practical`", _outcome("briee practical", "lock, H = 25")], *rows])


TRUE_FEATURES = {
    "soft, zero": "as soft as RepLearn's game makes them; the ridge shrinks to 0",
    "sharp, zero": "at a tenth of the temperature",
    "sharp, least": "and the ridge shrinks to the least next value: `practical`",
}
"""Plans with true features, in words."""


def true_features() -> str:
    """Episodes to solve with RepLearn replaced by the true features."""
    found = {(row["plan"], row["horizon"]): row for row in read_table(RESULTS / "core" / "true_features.csv")}

    def cell(plan: str, horizon: int) -> str:
        row = found[plan, str(horizon)]
        return ", ".join(f"{int(row[name]):,}" if row[name] else "–" for name in row if "seed" in name)

    horizons = [H for H in HORIZONS if ("sharp, least", str(H)) in found]
    rows = [[words, *(cell(plan, H) for H in horizons)] for plan, words in TRUE_FEATURES.items()]
    return table(["true features", *(f"H = {H}" for H in horizons)], rows)


def protocol_worlds() -> str:
    """`practical` with and without the game in further worlds."""
    names = {
        "lock, H = 12, distractors = 20": "sparse lock, H = 12, 20 distractors",
        "lock, H = 12, exogenous = 17": "sparse lock, H = 12, 17 slow exogenous coordinates",
        "lock, H = 8, emission = network, num_actions = 5": "nonlinear network, H = 8, A = 5, within 3 %",
        "lock, H = 30": "sparse lock, H = 30",
        "lock-simplex, H = 30, temperature = 0.5": "simplex lock, H = 30, temperature 0.5, within 3 %",
        "lock-simplex, H = 30, temperature = 1.0": "simplex lock, H = 30, temperature 1, within 3 %",
    }
    known = {row["world"] for row in runs("ablation-protocol")}
    rows = [
        [words, _outcome("briee practical", world), _outcome("briee practical no game", world)]
        for world, words in names.items()
        if world in known
    ]
    return table(["world", "with the game", "without"], rows)


def lock() -> str:
    """`efficient` on the sparse lock."""
    rows = []
    for H in HORIZONS:
        own = [row for row in runs("worlds") if row["world"] == f"lock-h{H}"]
        level = median(solved(own)) / H
        seconds = ", ".join(row["process_seconds"] for row in own)
        rows.append([str(H), each(own), count(median(solved(own))), f"{level:.0f}", seconds])
    return table(["H", "episodes", "median", "median per level", "seconds"], rows)


WORLDS = {
    "lock-h25-others": "lock, H = 25, ten other seeds (31 to 40)",
    "distractors-h12": "20 distractors of standard deviation 1, H = 12",
    "noise-h25": "noise 0.2, H = 25",
    "noise-h50": "noise 0.2, H = 50",
    "k6-h12": "K = 6, H = 12",
    "k6-h25": "K = 6, H = 25",
    "k6-h50": "K = 6, H = 50",
    "dense-h30": "dense lock, H = 30",
    "rare-h12": "lane that opens with probability 0.001, H = 12",
    "never-h12": "lane that never opens, H = 12",
    "failures-h12": "right actions that fail with probability 0.1, H = 12, 3,000 episodes",
    "random-3": "random block MDPs, 3 states, H = 8, 2,000 episodes",
    "random-4": "the same, 4 states",
    "random-5": "the same, 5 states",
    "random-6": "the same, 6 states",
    "frozen-lake": "FrozenLake, H = 12, K = 16",
    "frozen-lake-slippery": "slippery FrozenLake, H = 40, K = 16, 5,000 episodes",
    "frozen-lake-slippery-stationary": "the same with `--algo stationary`, K = 17, 1,000 episodes",
    "deep-sea-10": "deep sea of size 10, without noise",
    "deep-sea-20": "deep sea of size 20, without noise",
}
"""The worlds in words."""


def worlds() -> str:
    """`efficient` in other worlds."""
    rows = []
    for name, words in WORLDS.items():
        own = [row for row in runs("worlds") if row["world"] == name]
        judged = bool(own[0]["judged_return"])
        text = ", ".join(f"{share:.3f}" for share in shares(own)) if judged else each(own)
        rows.append([words, str(len(own)), "" if judged else str(len(solved(own))), text])
    return table(["world", "seeds", "solved", "episodes, or share of the optimum"], rows)


GENERAL = {
    **{f"general-lock-h{H}": f"lock, H = {H}" for H in HORIZONS},
    "general-modes-h8": "six modes a state, H = 8, A = 5",
    "general-rings-h8": "rings, H = 8, A = 5",
    "general-network-h8": "a nonlinear network, H = 8, A = 5",
    "general-network-per-level-h8": "a network for each level, H = 8, A = 5",
    "general-digits-h8": "images of digits, others in evaluation, H = 8, A = 5",
    "general-shapes-h8": "moving shapes in images, H = 8, A = 5",
    "general-modes-h12": "six modes a state, H = 12",
    "general-rings-h12": "rings, H = 12",
    "general-network-h12": "a nonlinear network, H = 12",
    "general-network-per-level-h12": "a network for each level, H = 12",
    "general-digits-h12": "images of digits, H = 12",
    "general-shapes-h12": "moving shapes in images, H = 12",
    "general-image-h12": "images of 28 × 28, four templates a state, H = 12",
    "general-exogenous-h8": "17 of 20 coordinates slow and exogenous, H = 8, A = 5",
    "general-heavy-h8": "heavy-tailed noise (t, 2.5 degrees of freedom), H = 8, A = 5",
    "general-distractors-h12": "20 distractors of standard deviation 1, H = 12",
    "general-noise-h25": "noise 0.2, H = 25",
    "general-dense-h30": "dense lock, H = 30",
    "general-rare-h12": "lane that opens with probability 0.001, H = 12",
    "general-failures-h12": "right actions that fail with probability 0.1, H = 12, 3,000 episodes",
    "general-simplex-h30": "low-rank lock, H = 30, 3,000 episodes",
    **{f"general-random-{Z}": f"random block MDPs, {Z} states, 2,000 episodes" for Z in (3, 4, 5, 6)},
}
"""The worlds of the default algorithm in words."""


def general() -> str:
    """The default algorithm in worlds of many kinds."""
    rows = []
    for name, words in GENERAL.items():
        own = [row for row in runs("worlds") if row["world"] == name]
        if not own:
            rows.append([words, "not run", "", ""])
        elif own[0]["judged_return"]:
            found = ", ".join(f"{share:.3f}" for share in shares(own))
            rows.append([words, str(len(own)), found, _seconds(own)])
        else:
            last = [float(row["final_return"]) / float(row["optimal_return"]) for row in own]
            unsolved = [f"{x:.2f}" for x, row in zip(last, own, strict=True) if row["solved"] != "True"]
            text = each(own) + (f" (last returns without: {', '.join(unsolved)})" if unsolved else "")
            rows.append([words, str(len(own)), text, _seconds(own)])
    return table(["world", "seeds", "episodes, or share of the optimum", "seconds, median"], rows)


def beside_general() -> str:
    """The default algorithm beside other learners of latent states, in worlds that some of them share."""
    learners = {
        "general": "`general`",
        "homer paper": "HOMER",
        "musik paper": "MusIK",
        "ppe paper": "PPE",
        "rep-ucb paper": "Rep-UCB",
    }
    worlds = {
        "lock, H = 6": "lock, H = 6",
        "lock, H = 6, distractors = 20": "20 distractors",
        "lock, H = 6, exogenous = 17": "17 exogenous coordinates",
        "lock, H = 6, emission = modes": "six modes a state",
        "lock, H = 6, emission = shapes": "moving shapes",
    }
    rows = []
    for world, words in worlds.items():
        known = [row for row in runs("rivals") if row["world"] == world]
        lines = [[row for row in known if row["label"] == label] for label in learners]
        rows.append([words, *(outcome(own) if own else "not run" for own in lines)])
    return table(["world", *learners.values()], rows)


def beside_networks() -> str:
    """The default algorithm beside others whose decoders are networks, where linear ones fail."""
    others = {
        "briee paper network": "Algorithm 1, `paper`",
        "homer paper network": "HOMER",
        "musik paper network": "MusIK",
    }
    lines = []
    for words, world in NONLINEAR.items():
        ours = [
            row for row in runs("worlds") if row["world"] == f"general-{dict(world.arguments)['emission']}-h8"
        ]
        cells = [outcome(ours)]
        for label in others:
            own = [row for row in runs("rivals") if (row["label"], row["world"]) == (label, world.name)]
            returns = "" if solved(own) else f": {_returns(own)}"
            cells.append(outcome(own) + returns if own else "not run")
        lines.append([words, *cells])
    return table(["world, H = 8, A = 5", "`general`", *others.values()], lines)


def _returns(rows: Sequence[Row]) -> str:
    """The last return of each run."""
    return ", ".join(f"{float(row['final_return']):.2f}" for row in rows)


def _seconds(rows: Sequence[Row]) -> str:
    return f"{median(float(row['seconds']) for row in rows):.0f}"


def environments() -> str:
    """`efficient` on environments of other projects."""
    names = {
        "frozen-lake": ("FrozenLake 4 × 4, not slippery, `--rich hadamard`, H = 12", "up to 16 a level"),
        "deep-sea-10-noise": ("deep sea of size 10, `--rich noise`, H = 10", "up to 10 a level"),
    }
    rows = [
        [*words, each([r for r in runs("worlds") if r["world"] == name])] for name, words in names.items()
    ]
    return table(["environment", "latent states", "episodes"], rows)


def stationary() -> str:
    """One representation against one per level."""
    rows = []
    for learner, words in (("stationary", "one representation"), ("per-level", "one per level")):
        own = solved([r for r in runs("worlds") if r["world"] == f"frozen-lake-h10-{learner}"])
        rows.append([f"H = 10, {words}", *map(count, own), count(sum(own) / len(own))])
    return table(["", "seed 1", "12", "123", "1234", "12345", "mean"], rows)


TABLES: dict[str, Callable[[], str]] = {
    "rivals": rivals,
    "authors-numbers": authors_numbers,
    "readme": readme,
    "fig1b": fig1b,
    "fig2b": lambda: curves_table("fig2b", 50),
    "fig2c": lambda: curves_table("fig2c", 5),
    "ablation": ablation,
    "ablation-efficient": ablation_efficient,
    "ablation-general": ablation_general,
    "ablation-protocol": ablation_protocol,
    "protocol-worlds": protocol_worlds,
    "true-features": true_features,
    "protocol-choices": protocol_choices,
    "lock": lock,
    "worlds": worlds,
    "general": general,
    "beside-general": beside_general,
    "beside-networks": beside_networks,
    "worlds-of-people": worlds_of_people,
    "worlds-commands": commands,
    "environments": environments,
    "stationary": stationary,
}


def filled(text: str) -> str:
    """A page with every table and number made again."""
    text = TABLE.sub(lambda m: f"<!-- table: {m[1]} -->\n{TABLES[m[1]]()}<!-- /table -->", text)
    return NUMBER.sub(lambda m: f"<!--= {m[1]} -->{number(m[1])}<!--/-->", text)


def main(argv: Sequence[str] | None = None) -> None:
    """Write the pages, or name those that disagree with the files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing, fail if a page would change")
    args = parser.parse_args(argv)
    stale = [page for page in PAGES if filled(page.read_text()) != page.read_text()]
    for page in stale:
        if not args.check:
            page.write_text(filled(page.read_text()))
        print(page.relative_to(ROOT), "disagrees with results/" if args.check else "written")
    if args.check and stale:
        sys.exit(1)


if __name__ == "__main__":
    main()
