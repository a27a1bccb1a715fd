"""Tables of the rivals for the pages, from results/rivals."""

from collections.abc import Sequence
from statistics import median

from briee.experiments.paper_figures import MEASURED
from briee.experiments.rivals import UNEVEN, WORLDS, cell
from briee.experiments.tables import Row
from queries import HORIZONS, STATISTICS, count, outcome, runs, solved, table


def rivals() -> str:
    """Every algorithm in every small world."""
    rows = [row for row in runs("rivals") if not row["variant"]]
    names = {words: world.name for words, world in WORLDS.items()}
    names |= {f"lock, H = {H}": f"lock, H = {H}" for H in HORIZONS}
    there = {row["world"] for row in rows}
    worlds = {words: name for words, name in names.items() if name in there}
    lines = []
    for label in dict.fromkeys(row["label"] for row in rows):
        own = [[r for r in rows if r["label"] == label and r["world"] == name] for name in worlds.values()]
        lines.append([f"`{label}`", *(cell(part) for part in own)])
    return table(["", *worlds], lines)


def measured_lines() -> list[list[str]]:
    """HOMER and MusIK as rows of the table of Figure 1(b), as far as they were run."""
    lines = []
    for name, label in MEASURED.items():
        own = [row for row in runs("rivals") if row["label"] == label]
        cells = [[row for row in own if row["world"] == f"lock, H = {H}"] for H in HORIZONS]
        texts = [outcome(cell) if cell else "–" for cell in cells]
        lines.append([f"{name}: `{label}`", *texts, STATISTICS["version"](own)])
    return lines


CHECKS = (
    ("MusIK, H = 25, 65k + 8k", "solves it", "musik paper", "lock, H = 25"),
    ("MusIK, H = 25, 30k + 8k", "fails", "musik paper 1200 a level", "lock, H = 25"),
    ("MusIK, H = 25, 15k + 8k", "fails", "musik paper 600 a level", "lock, H = 25"),
    ("HOMER, H = 5, 5,000 a level", "solves it", "homer released", "lock, H = 5"),
    ("PCID, 4 actions, H = 5, lanes that mix unevenly", "solves its own lock", "pcid paper", UNEVEN.name),
)
"""Budget, what the authors' program does, and the line and world here."""


def authors_numbers() -> str:
    """What was measured with the authors' programs, beside the same here."""
    lines = []
    for words, theirs, label, world in CHECKS:
        own = [row for row in runs("rivals") if (row["label"], row["world"]) == (label, world)]
        lines.append([words, theirs, *(_found(own) if own else ("not run", ""))])
    return table(["", "its authors' program", "solved here", "returns of the runs that were not"], lines)


def _found(rows: Sequence[Row]) -> tuple[str, str]:
    done = solved(rows)
    after = f", after {count(median(done))}" if done else ""
    failed = [f"{float(row['final_return']):.2f}" for row in rows if row["solved"] != "True"]
    return f"{len(done)} of {len(rows)}{after}", ", ".join(failed)
