"""Worlds that people bring: `general` with default settings, beside PPO and DQN of Stable-Baselines3.

An environment is told with its horizon and nothing else. A world is judged by the last five evaluations of a
run: their mean as a share of the optimum. Stable-Baselines3 gets 20 times the episodes or more.
"""

from pathlib import Path
from statistics import mean, median
from typing import Any, NamedTuple

from briee.experiments.setting import SEEDS, Experiment, Setting
from briee.training.directory import Table

Values = tuple[tuple[str, Any], ...]
LAST = 5
"""Evaluations at the end of a run that judge it."""


class World(NamedTuple):
    """An environment as a user names it."""

    words: str
    env: str
    horizon: int
    budget: int
    """Episodes for `general`."""
    arguments: Values = ()
    rich: str = ""
    instance: str = ""
    changes: Values = ()
    """The rule of evaluation, if it is another."""
    rivals: int = 0
    """Episodes for Stable-Baselines3, 20 times ours or more."""
    replay: int = 100_000
    """Transitions that DQN keeps; fewer of large observations, because of the memory."""

    @property
    def name(self) -> str:
        """Its name in the tables."""
        return self.setting("general", "default", 1, self.budget).world

    @property
    def command(self) -> str:
        """The command that trains on it."""
        arguments = [f"--env.{name.replace('_', '-')} {value}" for name, value in self.arguments]
        rule = [f"--{name.replace('_', '-')} {value}" for name, value in self.changes]
        rich = [f"--rich {self.rich}"] if self.rich else []
        parts = [f"briee train {self.env} --horizon {self.horizon}", *arguments, *rich, *rule]
        return " ".join([*parts, f"--episodes {self.budget}"])

    def setting(self, algorithm: str, preset: str, seed: int, episodes: int, changes: Values = ()) -> Setting:
        """A run on it."""
        return Setting(
            algorithm, preset, self.env, self.horizon, episodes, seed, (*self.changes, *changes),
            arguments=self.arguments, instance=self.instance, rich=self.rich,
        )  # fmt: skip

    def rival(self, name: str, seed: int) -> Setting:
        """A run of Stable-Baselines3; the exploration rate of DQN falls over a tenth of it, its default."""
        schedule = (("schedule_episodes", self.rivals), ("replay_size", self.replay))
        return self.setting(f"sb3:{name}", "paper", seed, self.rivals, schedule if name == "DQN" else ())


def target(value: float) -> Values:
    """The return that counts as solved where no optimum is known."""
    return (("evaluation.target_return", value),)


MANY = (("evaluation.episodes", 100),)
DRY = (("is_slippery", False),)
SEA = "bsuite/deep_sea-v0"
TOY: Values = (
    ("state_space_type", "discrete"), ("state_space_size", 24), ("action_space_size", 8), ("diameter", 3),
    ("terminal_state_density", 0.25), ("generate_random_mdp", True),
)  # fmt: skip
PICTURES: Values = (
    ("image_representations", True),
    ("image_width", 84),
    ("image_height", 84),
    ("downsample", 4),
)
WORLDS = (
    World("FrozenLake 4x4", "FrozenLake-v1", 20, 300, DRY, rivals=3_000),
    World("the same, noisy vectors", "FrozenLake-v1", 20, 300, DRY, "hadamard", rivals=3_000),
    World("FrozenLake 8x8", "FrozenLake8x8-v1", 40, 800, DRY, rivals=4_500),
    World("the same, noisy vectors", "FrozenLake8x8-v1", 40, 800, DRY, "hadamard", rivals=5_000),
    World("FrozenLake 4x4, slippery", "FrozenLake-v1", 100, 500, changes=MANY, rivals=10_000),
    World("CliffWalking", "CliffWalking-v1", 50, 500, rivals=2_500),
    World("Taxi", "Taxi-v4", 200, 200, changes=MANY, rivals=4_000),
    World("deep sea, 10", SEA, 10, 200, (("size", 10),), instance="mapping_seed", rivals=4_000),
    World("deep sea, 20", SEA, 20, 400, (("size", 20),), instance="mapping_seed", rivals=5_000),
    World(
        "deep sea, 50", SEA, 50, 1_500, (("size", 50),), instance="mapping_seed", rivals=7_200, replay=10_000
    ),
    World(
        "deep sea, 10, with chance", "bsuite/deep_sea_stochastic-v0", 10, 300, (("size", 10),),
        instance="mapping_seed", changes=(("evaluation.episodes", 1000),), rivals=6_000,
    ),
    *(
        World(
            f"MiniGrid {name}", f"MiniGrid-{name}-v0", H, 1_500, instance="layout_seed", changes=target(good),
            rivals=rivals, replay=10_000,
        )
        for name, H, good, rivals in (
            ("Empty-5x5", 30, 0.9, 2_500),
            ("Empty-8x8", 50, 0.9, 2_500),
            ("DoorKey-5x5", 50, 0.9, 2_500),
            ("DoorKey-6x6", 80, 0.9, 2_800),
            ("DoorKey-8x8", 100, 0.9, 3_600),
            ("FourRooms", 100, 0.6, 2_500),
            ("KeyCorridorS3R1", 80, 0.8, 2_500),
        )
    ),
    World(
        "MiniHack KeyRoom-Fixed-S5", "MiniHack-KeyRoom-Fixed-S5-v0", 60, 1_500, instance="layout_seed",
        changes=target(0.8), rivals=2_500, replay=10_000,
    ),
    World("MDP Playground, 24 states", "RLToy-v0", 20, 300, TOY, instance="seed", rivals=4_000),
    World(
        "the same, images of 84x84 pixels", "RLToy-v0", 20, 300, (*TOY, *PICTURES), instance="seed",
        rivals=4_000,
    ),
    World("6x6 grid, noisy vectors", "grids/Noisy-v0", 15, 600, rivals=3_500),
    World("4x4 grid, noisy images", "grids/Image-v0", 9, 600, rivals=3_000),
)  # fmt: skip
OURS = tuple(w.setting("general", "default", seed, w.budget) for w in WORLDS for seed in SEEDS)
THEIRS = tuple(
    world.rival(name, seed) for seed in SEEDS for world in WORLDS if world.rivals for name in ("PPO", "DQN")
)


def share(curve: Table, row: dict[str, Any], best: float | None = None) -> float | None:
    """The mean of the last evaluations as a share of the optimum; of a negative optimum, what is lost."""
    optimum = float(row["optimal_return"]) if row["optimal_return"] else best
    own = [float(point["eval_return"]) for point in curve if point["seed"] == row["seed"]][-LAST:]
    if optimum is None or not own:
        return None
    return mean(own) / optimum if optimum > 0 else 1 - (optimum - mean(own)) / abs(optimum)


def plot(runs: Table, curves: Table, path: Path, caption: str) -> None:
    """Episodes until solved, or all of them, in every world."""
    from matplotlib.figure import Figure

    from briee.algorithms.registry import colour, in_words

    words = {world.name: world.words + f" ({world.rich})" * bool(world.rich) for world in WORLDS}
    present = [name for name in words if any(row["world"] == name for row in runs)]
    present += sorted({row["world"] for row in runs} - set(present))
    figure = Figure(figsize=(7, 1.5 + 0.32 * len(present)), layout="constrained")
    axis = figure.subplots()
    for label in dict.fromkeys(row["label"] for row in runs):
        first = True
        for y, world in enumerate(present):
            own = [row for row in runs if (row["label"], row["world"]) == (label, world)]
            solved = [int(row["episodes_to_solve"]) for row in own if row["solved"] == "True"]
            name = in_words(label) if first and own else None
            if own:
                x = median(solved) if solved else median(int(row["episodes"]) for row in own)
                axis.plot(x, y, "o", color=colour(label), label=name, fillstyle="full" if solved else "none")
                first = False
    axis.set_yticks(range(len(present)), [words.get(name, name) for name in present], fontsize=8)
    axis.invert_yaxis()
    axis.set_xscale("log")
    axis.set_xlabel("episodes until solved (hollow: all episodes of runs that were not)")
    axis.legend(fontsize=8)
    figure.suptitle(caption, fontsize=7)
    figure.savefig(path, dpi=150)


WORLDS_FIGURE = Experiment(
    claim="With default settings, grids, seas and mazes are solved in tens to hundreds of episodes.",
    settings=(*OURS, *THEIRS),
    plot=plot,
    folder="worlds-general",
    quick=tuple(WORLDS[i].setting("general", "default", 1, 60) for i in (0, 1, 5, 7, len(WORLDS) - 2)),
)
