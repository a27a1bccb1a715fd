"""The lemmas in figures: `python benchmarks/theory_report.py` runs small block MDPs.

Each table is a function that returns rows; the figure is drawn from tables.json alone.
"""

import argparse
import json
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

import theory_lemmas as lemmas
from briee.algorithms.theory.config import TheoryPreset
from briee.algorithms.theory.exploration import ExactSetting
from briee.algorithms.theory.oracle import mixture, random_class, value_iteration, values
from briee.envs.finite_block import BlockMDP, lock_block_mdp, random_block_mdp
from briee.training.directory import close_manifest, make_manifest, write_table
from theory_lemmas import RewardFreeSetting, explore, mixture_regret, plan_after, uniform_policy

Rows = list[dict[str, Any]]
Columns = dict[str, np.ndarray]
H = 3


def lock_setting(seed: int, samples: float, size: int = 3, growth: float = 2.0, **preset: Any):
    """The lock with a class of `size` decoders, and a generator."""
    rng = np.random.default_rng(seed)
    mdp = lock_block_mdp(rng, horizon=H, num_actions=2)
    parameters = TheoryPreset(3, 2, size, samples, **preset)
    setting = ExactSetting(mdp, random_class(rng, mdp, size), parameters, growth=growth)
    return setting.with_discriminators(), rng


def later_rewards(mdp: BlockMDP, latent: np.ndarray) -> list[np.ndarray]:
    """Rewards [H, observation, action] from tables [n, H, latent state, action]."""
    return [np.stack([table[h][mdp.truth[h]] for h in range(H)]) for table in latent]


def guarantees(seeds: int) -> Rows:
    """Lemmas 1, 2, 7, 15 and 16 in every iteration, with the constants of the proof and of the statement."""
    rows = []
    for seed in range(seeds):
        for constants, samples in (("statement", 10**9), ("proof", 10**16)):
            setting, rng = lock_setting(seed, samples, growth=10.0, constants=constants)
            mdp, preset = setting.mdp, setting.preset
            for step in explore(setting, samples, rng):
                errors = [lemmas.reconstruction_error(setting, step, h) for h in range(H)]
                difference, one, two = lemmas.simulation_lemma(mdp, step.model, step.bonus, step.policy)
                low, high = lemmas.bonus_ratio(setting, step)
                needed = [
                    lemmas.uniform_convergence(setting, step, h, rng) for h in range(H) for _ in range(5)
                ]
                rows.append({
                    "seed": seed, "constants": constants, "n": step.n,
                    "rounds": max(result.rounds for result in step.learned), "T": preset.rounds(step.n),
                    "gap": max(result.gaps[-1] for result in step.learned), "ell": preset.ell(step.n),
                    "reconstruction": max(errors), "zeta": preset.zeta(step.n),
                    "V_hat": step.optimistic_value, "V_star": mdp.optimal_return,
                    "V_star_minus_sigma": lemmas.almost_optimism(setting, step, max(errors)).left,
                    "simulation_residual": max(abs(one - difference), abs(two - difference)),
                    "bonus_ratio_low": low, "bonus_ratio_high": high, "constant_of_28": max(needed),
                })  # fmt: skip
    return rows


def regrets(seeds: int) -> Rows:
    """Theorem 3: cumulative pseudo-regret, with alpha_n a hundredth of Theorem 1's, and without a bonus."""
    rows = []
    for seed in range(seeds):
        for scale in (1.0, 0.0):
            setting, rng = lock_setting(seed, 10**6, size=2, growth=1.2, alpha_scale=1e-2)
            setting = ExactSetting(
                setting.mdp, setting.classes, setting.preset, growth=1.2, bonus_scale=scale
            )
            mdp, history = setting.mdp, list(explore(setting, 10**6, rng))
            first = float(mdp.initial @ values(mdp.transition, mdp.reward, uniform_policy(mdp))[0])
            for step, mean in zip(history, mixture_regret(history, mdp.optimal_return, first), strict=True):
                rows.append({"seed": seed, "bonus": scale, "n": step.n, "regret": mean * step.n})
    return rows


def reward_free(seeds: int) -> Rows:
    """Theorem 2: the planning error of ten held-out rewards after N samples, with the bonus and without."""
    rows = []
    for seed in range(seeds):
        rng = np.random.default_rng(seed)
        mdp = random_block_mdp(rng, H, 2, 2, emissions=2)
        held_out = later_rewards(mdp, rng.uniform(size=(10, H, 2, 2)) / H)
        preset = TheoryPreset(2, 2, 3, 1e16)
        setting = RewardFreeSetting(mdp, random_class(rng, mdp, 3), preset, growth=4.0)
        history = list(explore(setting, 10**16, rng))
        for end in range(1, len(history) + 1, 2):
            errors: dict[bool, list[float]] = {True: [], False: []}
            for reward in held_out:
                best = value_iteration(mdp.transition, reward)[1][0]
                for bonus, found in errors.items():
                    got = values(mdp.transition, reward, plan_after(history[:end], reward, bonus))[0]
                    found.append(float(mdp.initial @ (best - got)))
            chosen = min(history[:end], key=lambda step: step.optimistic_value)
            rows.append({
                "seed": seed, "N": history[end - 1].n, "chosen_n": chosen.n, "V_hat": chosen.optimistic_value,
                "error_with_bonus": np.mean(errors[True]), "error_without": np.mean(errors[False]),
            })  # fmt: skip
    return rows


def rare_states(seeds: int) -> Rows:
    """Regret of the last policies if a latent state is entered with probability `rare` only."""
    rows = []
    for rare in (0.1, 1e-2, 1e-3, 1e-4, 1e-6, 0.0):
        for seed in range(seeds):
            rng = np.random.default_rng(seed)
            mdp = random_block_mdp(rng, H, 3, 2, emissions=2, rare=rare)
            preset = TheoryPreset(3, 2, 3, 1e6, alpha_scale=1e-3)
            setting = ExactSetting(mdp, random_class(rng, mdp, 3), preset, growth=2.0)
            history = list(explore(setting, 10**6, rng))
            last = float(np.mean([step.regret for step in history[-5:]]))
            rows.append({"rare": rare, "seed": seed, "regret": last, "first_regret": history[0].regret})
    return rows


def inequalities(seeds: int) -> Rows:
    """Lemmas 4, 9, 10, 12 to 14 and Thm. 5: the left side as a share of the right, the largest found."""
    shares: dict[str, float] = {}
    for checked in (lock_inequalities, reward_free_inequalities):
        for seed in range(seeds):
            for name, sides in checked(seed):
                shares[name] = max(shares.get(name, 0.0), sides.left / sides.right)
    return [{"lemma": name, "largest_share": share} for name, share in shares.items()]


def lock_inequalities(seed: int) -> Iterator[tuple[str, lemmas.Sides]]:
    """Lemma 4 on the lock, and Lemmas 12 to 14 on random vectors."""
    setting, rng = lock_setting(seed, 1e6)
    mdp, policy = setting.mdp, value_iteration(setting.mdp.transition, setting.mdp.reward)[0]
    best = np.eye(2)[policy.argmax(axis=2)]
    rho, _, gamma = mixture(mdp, best)
    yield "Lemma 4", lemmas.one_step_back(mdp, rho, gamma, best, best, 1e8, 1.0, 1.0)
    x = rng.normal(size=(1000, 4))
    x /= np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1.0)
    sides = lemmas.potential(np.einsum("ni,nj->nij", x, x), 1.0)
    yield from zip(("Lemma 12", "Lemma 13", "Lemma 13 as printed"), sides, strict=True)
    yield "Lemma 14", lemmas.generalised_potential(rng.uniform(-2, 2, size=(1000, 4)), 16.0)


def reward_free_inequalities(seed: int) -> Iterator[tuple[str, lemmas.Sides]]:
    """Lemmas 9 and 10 and Theorem 5 with the measured zeta, a hundredth of alpha, and ten later rewards."""
    rng = np.random.default_rng(seed)
    mdp = random_block_mdp(rng, H, 2, 2, emissions=2)
    preset = TheoryPreset(2, 2, 3, 1e8, alpha_scale=1e-2)
    setting = RewardFreeSetting(mdp, random_class(rng, mdp, 3), preset, growth=2.0)
    setting = setting.with_discriminators()
    history = list(explore(setting, 10**8, rng))
    for end in range(1, len(history) + 1):
        yield "Lemma 9", lemmas.reward_free_values(setting, history[:end])[1]
    for step in history[1:]:
        zeta = max(lemmas.reconstruction_error(setting, step, h) for h in range(H))
        for reward in later_rewards(mdp, rng.uniform(size=(10, H, 2, 2)) / H):
            yield "Lemma 10", lemmas.overestimation(mdp, step, reward, zeta)
            yield "Theorem 5", lemmas.planning_error(mdp, step, reward, zeta)


TABLES: dict[str, Callable[[int], Rows]] = {
    "guarantees": guarantees,
    "regrets": regrets,
    "reward_free": reward_free,
    "rare_states": rare_states,
    "inequalities": inequalities,
}


def write_rounded(path: Path, rows: Rows) -> None:
    """Write a table as CSV with six significant digits."""
    path.parent.mkdir(parents=True, exist_ok=True)
    round_ = lambda value: f"{value:.6g}" if isinstance(value, float) else value  # noqa: E731
    write_table(path, [{name: round_(value) for name, value in row.items()} for row in rows])


def write_tables(path: Path, tables: dict[str, Rows]) -> None:
    """Write tables with six significant digits, a row a line; tables that are not given are kept."""
    stored = json.loads(path.read_text()) if path.exists() else {}
    for name, rows in tables.items():
        rounded = [[float(f"{v:.6g}") if isinstance(v, float) else v for v in row.values()] for row in rows]
        stored[name] = [list(rows[0]), *rounded]
    lines = (f"{json.dumps(n)}: [\n" + ",\n".join(map(json.dumps, t)) + "\n]" for n, t in stored.items())
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def read_columns(path: Path, table: str) -> Columns:
    """The columns of a table."""
    names, *rows = json.loads(path.read_text())[table]
    return {name: np.array(column) for name, column in zip(names, zip(*rows, strict=True), strict=True)}


def points(ax: Any, table: Columns, x: str, labels: Mapping[str, str], which: Any = slice(None)) -> None:
    """Columns of some rows of a table against the column `x`, as points with a legend."""
    for name, label in labels.items():
        ax.plot(
            table[x][which],
            table[name][which],
            {"zeta": "k_", "ell": "r_", "first_regret": "x"}.get(name, "."),
            label=label,
        )
    ax.legend(fontsize=7)


def draw_replearn(table: Columns, left: Any, right: Any) -> None:
    """Lemma 1: the measured error and the objective of line 5, below what is proved."""
    table = table | {name: np.maximum(table[name], 1e-18) for name in ("reconstruction", "gap")}
    labels = {"reconstruction": "reconstruction error, measured", "gap": "line 5's objective",
              "zeta": r"$\zeta_n$, proved", "ell": r"$\ell_n$"}  # fmt: skip
    for ax, constants in ((left, "statement"), (right, "proof")):
        points(ax, table, "n", labels, table["constants"] == constants)
        ax.set(title=f"constants of the {constants}", xlabel="samples n per level")
        ax.set(xscale="log", yscale="log")
    right.get_legend().remove()


def draw_optimism(table: Columns, ax: Any) -> None:
    """Lemma 2: the optimistic value against the optimal one."""
    labels = {"V_hat": r"$\hat V$", "V_star": "V*", "V_star_minus_sigma": r"V* - $\sigma$"}
    points(ax, table, "n", labels, table["constants"] == "statement")
    ax.set(xlabel="samples n per level", ylabel="value at the start", xscale="log")


def draw_regret(table: Columns, ax: Any) -> None:
    """Theorem 3: a line for each seed, with the bonus and without."""
    for bonus, colour, label in ((1.0, "C0", "with the bonus"), (0.0, "C3", "without")):
        for seed in np.unique(table["seed"]):
            which = (table["bonus"] == bonus) & (table["seed"] == seed)
            ax.loglog(table["n"][which], table["regret"][which], colour, label=None if seed else label)
    n = np.unique(table["n"])
    ax.loglog(n, n**0.75, "k--", label=r"slope 3/4")
    ax.set(xlabel="samples n per level", ylabel="cumulative pseudo-regret")
    ax.legend(fontsize=7)


def draw_reward_free(table: Columns, ax: Any) -> None:
    """Theorem 2: errors of rewards that came later."""
    points(ax, table, "N", {"error_with_bonus": "with the bonus", "error_without": "without"})
    ax.set(xlabel="samples N per level", ylabel="mean error, 10 held-out rewards", xscale="log")


def draw_rare_states(table: Columns, ax: Any) -> None:
    """Regret against the probability of the rare state, evenly spaced."""
    known = list(dict.fromkeys(table["rare"].tolist()))
    table = table | {"place": np.array([known.index(value) for value in table["rare"].tolist()])}
    points(ax, table, "place", {"first_regret": "first policy", "regret": "last policies"})
    ax.set_xticks(range(len(known)), [f"{value:g}" for value in known])
    ax.set(xlabel="probability of the rare state", ylabel="regret")


PANELS: tuple[tuple[str, str, int, Callable[..., None]], ...] = (
    ("Lemma 1", "guarantees", 2, draw_replearn),
    ("Lemma 2", "guarantees", 1, draw_optimism),
    ("Theorem 3", "regrets", 1, draw_regret),
    ("Theorem 2", "reward_free", 1, draw_reward_free),
    ("rare states", "rare_states", 1, draw_rare_states),
)
"""Subject of each figure, its table, the number of panels and the drawing function."""


def draw_figure(folder: Path) -> None:
    """All panels, (a) to (f), from the tables in `folder`."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13.8, 7.2), layout="constrained")
    axes = list(figure.subplots(2, 3).flat)
    letters = iter("abcdef")
    for title, table, panels, draw in PANELS:
        own, axes = axes[:panels], axes[panels:]
        draw(read_columns(folder / "tables.json", table), *own)
        for ax in own:
            ax.set_title(f"({next(letters)}) {title}{ax.get_title() and ', ' + ax.get_title()}")
    figure.savefig(folder / "theory.png", dpi=110)


def main(argv: list[str] | None = None) -> None:
    """Write all tables and figures of docs/theory.md."""
    program = "python benchmarks/theory_report.py"
    parser = argparse.ArgumentParser(prog=program, description=main.__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", choices=[*TABLES, "figures"], nargs="*", default=[*TABLES, "figures"])
    parser.add_argument("--out", type=Path, default=Path("results/theory"))
    args = parser.parse_args(argv)
    manifest = make_manifest(f"{program} {shlex.join(sys.argv[1:] if argv is None else argv)}".strip())
    chosen = {name: table(args.seeds) for name, table in TABLES.items() if name in args.only}
    write_tables(args.out / "tables.json", chosen)
    if "figures" in args.only:
        draw_figure(args.out)
    (args.out / "manifest.json").write_text(json.dumps(close_manifest(manifest), indent=2) + "\n")


if __name__ == "__main__":
    main()
