"""Every algorithm on every kind of world, under one counter: where each one's assumptions hold and fail.

On locks a run is solved or not. Where even the best policy fails now and then, 100 episodes judge a policy,
and a tolerance says how near the optimum is enough.
"""

from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from briee.experiments.setting import NEARLY, SEEDS, Experiment, Setting, for_seeds
from briee.training.directory import Table

Values = tuple[tuple[str, Any], ...]


class World(NamedTuple):
    """An environment, and what algorithms are told about it."""

    env: str
    horizon: int
    arguments: Values = ()
    latents: int | None = None
    """The number of latent states a level, if it is not the lock's."""
    changes: Values = ()
    """The rule of evaluation, if it is another."""
    instance: str = "instance_seed"

    @property
    def name(self) -> str:
        """Its name in the tables."""
        return Setting("", "", self.env, self.horizon, 1, arguments=self.arguments).world


ON_AVERAGE = (("evaluation.episodes", 100), ("evaluation.tolerance", 0.1))
LOCK = World("lock", 6)
DENSE = World("lock-dense", 6)
SIMPLEX = World("lock-simplex", 6, changes=ON_AVERAGE)
RARE = World("lock", 6, (("rare_probability", 0.001),))
NOISY = World("lock", 6, (("distractors", 20),))
EXOGENOUS = World("lock", 6, (("exogenous", 17),))
MODES = World("lock", 6, (("emission", "modes"),))
SHAPES = World("lock", 6, (("emission", "shapes"),))
RANDOM = World("random-block", 5, (("num_latents", 3),), latents=3, changes=ON_AVERAGE)
UNEVEN = World("lock", 5, (("num_actions", 4), ("switch_probability", 0.1)))
ONE_LANE = World("lock", 6, (("num_good", 1), ("distractors", 8)))
SHORT = World("lock", 3, (("num_actions", 4),))
FINITE = World("finite-lock", 3, (("num_actions", 3),))
DEEP_SEA, DEEPER_SEA = (
    World("bsuite/deep_sea-v0", size, (("size", size),), latents=size, instance="mapping_seed")
    for size in (10, 20)
)
WORLDS = {
    "lock, H = 6": LOCK,
    "one lane opens with probability 0.001": RARE,
    "20 distractors": NOISY,
    "17 exogenous coordinates": EXOGENOUS,
    "6 modes a state": MODES,
    "images of moving shapes": SHAPES,
    "one good lane, 8 distractors": ONE_LANE,
    "4 actions, H = 5, lanes mix unevenly": UNEVEN,
    "4 actions, H = 3": SHORT,
    "dense lock, H = 6": DENSE,
    "simplex lock, H = 6": SIMPLEX,
    "random block MDPs, 3 states, H = 5": RANDOM,
    "deep sea of size 10": DEEP_SEA,
    "deep sea of size 20": DEEPER_SEA,
    "finite lock, H = 3": FINITE,
}
"""The small worlds in words: the sparse lock with H = 6, unless they say otherwise."""
HOMES: tuple[tuple[str, str, int, World], ...] = (
    ("general", "default", 10_000, LOCK),
    ("efficient", "default", 10_000, LOCK),
    ("briee", "practical", 3_000, LOCK),
    ("lsvi-ucb", "calibrated", 3_000, LOCK),
    ("rep-ucb", "paper", 10_000, LOCK),
    ("flambe", "paper", 25_000, LOCK),
    ("musik", "paper", 31_000, LOCK),
    ("homer", "released", 61_000, LOCK),
    ("homer", "paper", 123_000, LOCK),
    ("pcid", "paper", 15_000, UNEVEN),
    ("ppe", "paper", 61_000, ONE_LANE),
    ("vox", "paper", 125_000, SHORT),
    ("moffle", "paper", 70_000, SHORT),
    ("boot-dqn", "bsuite", 2_000, SHORT),
    ("olive", "paper", 3_000_000, FINITE),
)
"""Algorithm, preset, budget and a world that fits its assumptions. The budget is that of two attempts, of
those that work level by level."""
COSTLY = ("boot-dqn", "vox", "moffle", "olive")
"""A run takes a minute of CPU, or they cannot be asked: not in every world."""
ON_HOST = ("general", "efficient", "briee", "rep-ucb", "flambe", "musik", "pcid", "ppe", "boot-dqn")
"""They need so few episodes that a sea which is stepped in Python is no hindrance."""
DEEPER = ("general", "efficient", "briee", "rep-ucb")
"""Those of them that need fewer than ten thousand."""
TOLD = {"rep-ucb": "likelihood.", "flambe": "likelihood."} | dict.fromkeys(
    ("briee", "vox", "moffle"), "features."
)
"""Where a configuration has the number of latent states, if not at its top."""
UNTOLD = ("general", "boot-dqn", "olive", "lsvi-ucb")


def setting_of(algorithm: str, preset: str, budget: int, world: World, seed: int) -> Setting:
    """One run of an algorithm in a world."""
    told = world.latents and algorithm not in UNTOLD
    changes = ((f"{TOLD.get(algorithm, '')}num_latents", world.latents),) if told else ()
    return Setting(
        algorithm, preset, world.env, world.horizon, budget, seed, (*changes, *world.changes),
        arguments=world.arguments, instance=world.instance,
    )  # fmt: skip


def refuses(algorithm: str, world: World) -> bool:
    """Whether an algorithm says in a sentence that a world is not for it: OLIVE enumerates observations, and
    LSVI-UCB has to be told features."""
    return world != FINITE if algorithm == "olive" else algorithm == "lsvi-ucb" and "/" in world.env


def worlds_of(algorithm: str) -> list[World]:
    """The small worlds in which an algorithm runs."""
    left_out = [] if algorithm in ("general", "efficient") else [FINITE]
    left_out += [] if algorithm in ON_HOST else [DEEP_SEA]
    left_out += [] if algorithm in DEEPER else [DEEPER_SEA]
    worlds = [w for w in WORLDS.values() if w not in left_out]
    return [w for w in worlds if algorithm not in COSTLY or w in (SHORT, LOCK, DEEP_SEA)]


AT_HOME = tuple(setting_of(*home, seed) for home in HOMES for seed in SEEDS)
ELSEWHERE = tuple(
    setting_of(algorithm, preset, budget, world, seed)
    for seed in SEEDS
    for algorithm, preset, budget, home in HOMES
    for world in worlds_of(algorithm)
    if world != home and algorithm != "olive"
)
HORIZONS = (
    ("homer", "released", 5, 51_000, SEEDS),
    ("musik", "paper", 12, 64_000, SEEDS),
    ("homer", "released", 12, 500_000, SEEDS),
    ("musik", "paper", 25, 142_000, SEEDS),
    ("homer", "released", 25, 1_010_000, SEEDS[:3]),
    ("musik", "paper", 50, 640_000, SEEDS[:3]),
    ("homer", "released", 50, 2_010_000, SEEDS[:1]),
    ("musik", "paper", 100, 2_410_000, SEEDS[:1]),
)
LONGER = tuple(s for a, p, H, budget, seeds in HORIZONS for s in for_seeds(seeds, a, p, "lock", H, budget))
"""Lines of Figure 1(b), two attempts each, and the lock of HOMER's program."""
FEW = {"boot-dqn": 2_000}
"""Episodes on longer locks, if they are not those of benchmarks/block-mdp.toml."""
LONG_LOCKS = tuple(
    setting_of(algorithm, preset, FEW.get(algorithm, 40_000), World("lock", H), seed)
    for H in (12, 25, 50)
    for algorithm, preset, _, _ in HOMES
    if (algorithm, preset) not in (("homer", "released"), ("musik", "paper"), ("olive", "paper"))
    for seed in SEEDS
)
"""All that have no line in Figure 1(b); OLIVE refuses."""
FEWER = tuple(
    s
    for rows, budget in ((600, 22_500), (1200, 36_900))
    for s in for_seeds(
        SEEDS, "musik", "paper", "lock", 25, budget, changes=(("episodes_per_level", rows),),
        variant=f"{rows} a level",
    )
)  # fmt: skip
"""MusIK with less than its authors' budget, one attempt each: their program fails with both."""
RIDGE = tuple(
    s
    for H, budget, seeds in ((25, 142_000, SEEDS), (50, 640_000, SEEDS), (100, 2_410_000, SEEDS[:1]))
    for s in for_seeds(
        seeds, "musik", "paper", "lock", H, budget, changes=(("psdp.regression.kind", "ridge"),),
        variant="ridge",
    )
)  # fmt: skip
"""MusIK with a ridge regression in PSDP, which needs fewer rows than a network."""
BY_PSDP = tuple(
    s
    for H, budget, seeds in (
        (25, 1_020_000, SEEDS[:3]),
        (50, 2_070_000, SEEDS[:3]),
        (100, 2_090_000, SEEDS[:1]),
    )
    for s in for_seeds(
        seeds, "homer", "released", "lock", H, budget, changes=(("planner", "prefix-psdp"),), variant="PSDP"
    )
)
"""HOMER with PSDP for the reward: values of fitted Q iteration shrink from level to level."""
MORE_PSDP = for_seeds(
    SEEDS[:1], "homer", "released", "lock", 100, 3_990_000,
    changes=(("planner", "prefix-psdp"), ("psdp.episodes", 20_000)), variant="PSDP 20000",
)  # fmt: skip
"""With as many episodes a level in PSDP as in exploration, as its program has them; one attempt."""
FRESH = (101, 102, 103, 104, 105)
DIFFERENCES = {
    "fresh seeds": (),
    "half the steps": (("psdp.regression.steps", 128),),
    "fitted index": (("fitted_index", True),),
    "half the steps and fitted index": (("psdp.regression.steps", 128), ("fitted_index", True)),
}
"""Where MusIK's loop differs from its authors' program, changed one by one."""
LIKE_THEIRS = tuple(
    s
    for words, changes in DIFFERENCES.items()
    for s in for_seeds(
        FRESH, "musik", "paper", "lock", 25, 36_900, changes=(("episodes_per_level", 1200), *changes),
        variant=f"1200 a level: {words}",
    )
)  # fmt: skip
VECTORS = {"six modes a state": "modes", "rings": "rings", "a nonlinear network": "network"}
IMAGES = {"images of digits, others in evaluation": "digits", "moving shapes in images": "shapes"}
NONLINEAR = {
    words: World("lock", 8, (("num_actions", 5), ("emission", emission)), changes=NEARLY)
    for words, emission in (VECTORS | IMAGES).items()
}
"""Locks with H = 8 and five actions behind nonlinear emissions, in words."""
LAYER = ("decoder_size", 64)
"""A hidden layer for the decoders of HOMER and MusIK, as wide as that of Algorithm 1 with `--decoder mlp`."""
MLP = ("features.decoder", "mlp")


def networked(algorithm: str, budget: int, words: str, seeds: Sequence[int], *changes: tuple[str, Any]):
    """Runs of the preset `paper` with networks for decoders in one of these worlds."""
    world = NONLINEAR[words]
    about = (algorithm, "paper", world.env, world.horizon, budget)
    return for_seeds(
        seeds, *about, changes=(*changes, *world.changes), arguments=world.arguments, variant="network"
    )


HOMER_CHANGES = LAYER, ("psdp.regression.kind", "mlp"), ("episodes_per_level", 5_000)
CNN_CHANGES = ("features.decoder", "cnn"), ("features.standardize", True)
BEHIND_NETWORKS = (
    *(s for words in NONLINEAR for s in networked("musik", 41_600, words, SEEDS[:3], LAYER)),
    *(s for words in NONLINEAR for s in networked("homer", 99_100, words, SEEDS[:1], *HOMER_CHANGES)),
    *(s for words in VECTORS for s in networked("briee", 8_000, words, SEEDS[:1], MLP)),
    *(s for words in IMAGES for s in networked("briee", 2_800, words, SEEDS[:1], *CNN_CHANGES)),
)
"""Two attempts of MusIK, one of HOMER, and 20 updates of Algorithm 1; with images 7, which take
minutes each."""


def cell(rows: Table) -> str:
    """Median of the episodes to solve and how many runs were solved, or the share of the optimum."""
    rows = [row for row in rows if row["finished"] == "True"]
    if not rows:
        return ""
    solved = [int(row["episodes_to_solve"]) for row in rows if row["solved"] == "True"]
    share = median(float(row["final_return"]) / float(row["optimal_return"]) for row in rows)
    text = f"{median(solved):,.0f}" if solved else f"({share:.2f})"
    counted = f"{len(solved)} of {len(rows)}" if solved else f"{len(rows)} seed{'s' * (len(rows) > 1)}"
    return text if len(rows) == len(SEEDS) and len(solved) in (0, len(rows)) else f"{text}, {counted}"


def plot(runs: Table, curves: Table, path: Path, caption: str) -> None:
    """A grid of presets and worlds: the share of runs solved as a shade, episodes or returns as text."""
    from matplotlib.figure import Figure

    runs = [row for row in runs if not row["variant"]]
    labels, worlds = (list(dict.fromkeys(row[name] for row in runs)) for name in ("label", "world"))
    words = {world.name: text for text, world in WORLDS.items()}
    figure = Figure(figsize=(2 + 1.3 * len(worlds), 2 + 0.4 * len(labels)), layout="constrained")
    axis = figure.subplots()
    for y, label in enumerate(labels):
        for x, world in enumerate(worlds):
            own = [row for row in runs if row["label"] == label and row["world"] == world]
            if text := cell(own):
                done = sum(row["solved"] == "True" for row in own) / len(own)
                axis.add_patch(_square(x, y, done))
                axis.text(x, y, text.replace(", ", "\n"), ha="center", va="center", fontsize=7)
    axis.set_xlim(-0.5, len(worlds) - 0.5)
    axis.set_ylim(len(labels) - 0.5, -0.5)
    axis.set_xticks(range(len(worlds)), [words.get(world, world) for world in worlds], fontsize=7)
    axis.set_xticklabels(axis.get_xticklabels(), rotation=30, ha="right")
    axis.set_yticks(range(len(labels)), labels, fontsize=8)
    axis.set_title("median episodes until solved; in brackets: share of the optimum, none solved", fontsize=8)
    figure.supxlabel(caption, fontsize=7)
    figure.savefig(path, dpi=150)


def _square(x: float, y: float, done: float) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle((x - 0.5, y - 0.5), 1, 1, facecolor=(1 - 0.6 * done, 1 - 0.2 * done, 1), edgecolor="0.8")


RIVALS = Experiment(
    claim="Each rival solves a world that fits its assumptions; on the sparse lock HOMER and MusIK need more "
    "episodes than BRIEE.",
    settings=(
        *AT_HOME,
        *LONGER,
        *FEWER,
        *RIDGE,
        *BY_PSDP,
        *MORE_PSDP,
        *LIKE_THEIRS,
        *BEHIND_NETWORKS,
        *ELSEWHERE,
        *LONG_LOCKS,
    ),
    plot=plot,
)
