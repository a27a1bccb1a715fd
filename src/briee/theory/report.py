"""The lemmas in pictures: `python -m briee.theory.report` runs small block MDPs and writes CSVs and figures.

Each table is a function that returns rows; each figure reads a table from its CSV alone.
"""

import argparse
import csv
import json
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from briee.manifest import close_manifest, make_manifest
from briee.theory.block import (
    lock_block_mdp,
    random_block_mdp,
    random_class,
    uniform_policy,
    value_iteration,
    values,
)
from briee.theory.exploration import Setting, explore, mixture_regret, plan_after
from briee.theory.lemmas import (
    Sides,
    almost_optimism,
    bonus_ratio,
    generalised_potential,
    mixture,
    one_step_back,
    overestimation,
    planning_error,
    potential,
    reconstruction_error,
    reward_free_values,
    simulation_lemma,
    uniform_convergence,
)
from briee.theory.presets import TheoryPreset

Rows = list[dict[str, Any]]
H = 3


def lock_setting(seed: int, samples: float, size: int = 3, growth: float = 2.0, **preset: Any):
    """The lock with a class of `size` decoders, and a generator."""
    rng = np.random.default_rng(seed)
    mdp = lock_block_mdp(rng, horizon=H, num_actions=2)
    parameters = TheoryPreset(3, 2, size, samples, **preset)
    return Setting(mdp, random_class(rng, mdp, size), parameters, growth=growth).with_discriminators(), rng


def guarantees(seeds: int) -> Rows:
    """Lemmas 1, 2, 7, 15 and 16 in every iteration, with the constants of the proof and of the statement."""
    rows = []
    for seed in range(seeds):
        for constants, samples in (("statement", 10**9), ("proof", 10**16)):
            setting, rng = lock_setting(seed, samples, growth=10.0, constants=constants)
            mdp, preset = setting.mdp, setting.preset
            for step in explore(setting, samples, rng):
                errors = [reconstruction_error(setting, step, h) for h in range(H)]
                difference, one, two = simulation_lemma(mdp, step.model, step.bonus, step.policy)
                low, high = bonus_ratio(setting, step)
                needed = [uniform_convergence(setting, step, h, rng) for h in range(H) for _ in range(5)]
                rows.append({
                    "seed": seed, "constants": constants, "n": step.n,
                    "rounds": max(result.rounds for result in step.learned), "T": preset.rounds(step.n),
                    "gap": max(result.gaps[-1] for result in step.learned), "ell": preset.ell(step.n),
                    "reconstruction": max(errors), "zeta": preset.zeta(step.n),
                    "V_hat": step.optimistic_value, "V_star": mdp.optimal_return,
                    "V_star_minus_sigma": almost_optimism(setting, step, max(errors)).left,
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
            setting = Setting(setting.mdp, setting.classes, setting.preset, growth=1.2, bonus_scale=scale)
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
        held_out = rng.uniform(size=(10, H, 2, 2)) / H
        preset = TheoryPreset(2, 2, 3, 1e16)
        setting = Setting(mdp, random_class(rng, mdp, 3), preset, reward_free=True, growth=4.0)
        history = list(explore(setting, 10**16, rng))
        for end in range(1, len(history) + 1, 2):
            errors: dict[bool, list[float]] = {True: [], False: []}
            for latent in held_out:
                reward = np.stack([latent[h][mdp.truth[h]] for h in range(H)])
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
    """Regret of the last policies when a latent state is entered with probability `rare` only."""
    rows = []
    for rare in (0.1, 1e-2, 1e-3, 1e-4, 1e-6, 0.0):
        for seed in range(seeds):
            rng = np.random.default_rng(seed)
            mdp = random_block_mdp(rng, H, 3, 2, emissions=2, rare=rare)
            preset = TheoryPreset(3, 2, 3, 1e6, alpha_scale=1e-3)
            history = list(explore(Setting(mdp, random_class(rng, mdp, 3), preset, growth=2.0), 10**6, rng))
            last = float(np.mean([step.regret for step in history[-5:]]))
            rows.append({"rare": rare, "seed": seed, "regret": last, "first_regret": history[0].regret})
    return rows


def inequalities(seeds: int) -> Rows:
    """Lemmas 4, 9, 10, 12 to 14 and Thm. 5: the left side as a share of the right, the largest found."""
    shares: dict[str, float] = {}

    def note(name: str, sides) -> None:
        shares[name] = max(shares.get(name, 0.0), sides.left / sides.right)

    for seed in range(seeds):
        setting, rng = lock_setting(seed, 1e6)
        mdp, policy = setting.mdp, value_iteration(setting.mdp.transition, setting.mdp.reward)[0]
        best = np.eye(2)[policy.argmax(axis=2)]
        rho, _, gamma = mixture(mdp, best)
        note("Lemma 4", one_step_back(mdp, rho, gamma, best, best, 1e8, 1.0, 1.0))
        x = rng.normal(size=(1000, 4))
        x /= np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1.0)
        first, second, printed = potential(np.einsum("ni,nj->nij", x, x), 1.0)
        note("Lemma 12", first)
        note("Lemma 13", second)
        note("Lemma 13 as printed", printed)
        note("Lemma 14", generalised_potential(rng.uniform(-2, 2, size=(1000, 4)), 16.0))
    for seed in range(seeds):
        for name, sides in reward_free_inequalities(seed):
            note(name, sides)
    return [{"lemma": name, "largest_share": share} for name, share in shares.items()]


def reward_free_inequalities(seed: int) -> Iterator[tuple[str, Sides]]:
    """Lemmas 9 and 10 and Theorem 5 with the measured zeta, a hundredth of alpha, and ten later rewards."""
    rng = np.random.default_rng(seed)
    mdp = random_block_mdp(rng, H, 2, 2, emissions=2)
    preset = TheoryPreset(2, 2, 3, 1e8, alpha_scale=1e-2)
    setting = Setting(mdp, random_class(rng, mdp, 3), preset, reward_free=True, growth=2.0)
    setting = setting.with_discriminators()
    history = list(explore(setting, 10**8, rng))
    for end in range(1, len(history) + 1):
        yield "Lemma 9", reward_free_values(setting, history[:end])[1]
    for step in history[1:]:
        zeta = max(reconstruction_error(setting, step, h) for h in range(H))
        for latent in rng.uniform(size=(10, H, 2, 2)) / H:
            reward = np.stack([latent[h][mdp.truth[h]] for h in range(H)])
            yield "Lemma 10", overestimation(mdp, step, reward, zeta)
            yield "Theorem 5", planning_error(mdp, step, reward, zeta)


TABLES: dict[str, Callable[[int], Rows]] = {
    "guarantees": guarantees,
    "regrets": regrets,
    "reward_free": reward_free,
    "rare_states": rare_states,
    "inequalities": inequalities,
}


def write(path: Path, rows: Rows) -> None:
    """A table as CSV."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        for row in rows:
            writer.writerow({k: f"{v:.6g}" if isinstance(v, float) else v for k, v in row.items()})


def read(path: Path) -> dict[str, np.ndarray]:
    """The columns of a table; numbers where all entries are."""
    with path.open() as file:
        rows = list(csv.DictReader(file))
    columns = {}
    for name in rows[0]:
        cells = [row[name] for row in rows]
        try:
            columns[name] = np.array(cells, float)
        except ValueError:
            columns[name] = np.array(cells)
    return columns


def figures(folder: Path) -> None:
    """All pictures, from the tables in `folder`."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    def save(name: str, panels: int, draw: Callable[[Any], None]) -> None:
        figure, axes = plt.subplots(1, panels, figsize=(4.6 * panels, 3.4), layout="constrained")
        draw(axes)
        figure.savefig(folder / f"{name}.png", dpi=110)
        plt.close(figure)

    table = read(folder / "guarantees.csv")

    def lemma_1(axes) -> None:
        for ax, constants in zip(axes, ("statement", "proof"), strict=True):
            which = table["constants"] == constants
            n = table["n"][which]
            for name, label in (
                ("reconstruction", "reconstruction error, measured"),
                ("gap", "line 5's objective"),
            ):
                ax.loglog(n, np.maximum(table[name][which], 1e-18), ".", label=label)
            ax.loglog(n, table["zeta"][which], "k_", label=r"$\zeta_n$, proved")
            ax.loglog(n, table["ell"][which], "r_", label=r"$\ell_n$")
            ax.set(title=f"constants of the {constants}", xlabel="samples n per level")
        axes[0].legend(fontsize=7)

    def lemma_2(ax) -> None:
        which = table["constants"] == "statement"
        for name, label in (
            ("V_hat", r"$\hat V$"),
            ("V_star", "V*"),
            ("V_star_minus_sigma", r"V* - $\sigma$"),
        ):
            ax.semilogx(table["n"][which], table[name][which], ".", label=label)
        ax.set(xlabel="samples n per level", ylabel="value at the start")
        ax.legend(fontsize=7)

    save("replearn", 2, lemma_1)
    save("optimism", 1, lemma_2)
    regret = read(folder / "regrets.csv")

    def theorem_3(ax) -> None:
        for bonus, colour, label in ((1.0, "C0", "with the bonus"), (0.0, "C3", "without")):
            for seed in np.unique(regret["seed"]):
                which = (regret["bonus"] == bonus) & (regret["seed"] == seed)
                ax.loglog(regret["n"][which], regret["regret"][which], colour, label=None if seed else label)
        n = np.unique(regret["n"])
        ax.loglog(n, n**0.75, "k--", label=r"slope 3/4")
        ax.set(xlabel="samples n per level", ylabel="cumulative pseudo-regret")
        ax.legend(fontsize=7)

    save("regret", 1, theorem_3)
    free = read(folder / "reward_free.csv")

    def theorem_2(ax) -> None:
        for name, label in (("error_with_bonus", "with the bonus"), ("error_without", "without")):
            ax.semilogx(free["N"], free[name], ".", label=label)
        ax.set(xlabel="samples N per level", ylabel="mean error, 10 held-out rewards")
        ax.legend(fontsize=7)

    save("reward_free", 1, theorem_2)
    rare = read(folder / "rare_states.csv")

    def unreachable(ax) -> None:
        place = {value: i for i, value in enumerate(dict.fromkeys(rare["rare"].tolist()))}
        x = [place[value] for value in rare["rare"].tolist()]
        ax.plot(x, rare["first_regret"], "x", label="first policy")
        ax.plot(x, rare["regret"], ".", label="last policies")
        ax.set_xticks(list(place.values()), [f"{value:g}" for value in place])
        ax.set(xlabel="probability of the rare state", ylabel="regret")
        ax.legend(fontsize=7)

    save("rare_states", 1, unreachable)


def main(argv: list[str] | None = None) -> None:
    """Write all tables and figures of docs/theory.md."""
    parser = argparse.ArgumentParser(prog="python -m briee.theory.report", description=main.__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", choices=[*TABLES, "figures"], nargs="*", default=[*TABLES, "figures"])
    parser.add_argument("--out", type=Path, default=Path("results/theory"))
    args = parser.parse_args(argv)
    options = sys.argv[1:] if argv is None else argv
    manifest = make_manifest(shlex.join(["python", "-m", "briee.theory.report", *options]))
    for name, table in TABLES.items():
        if name in args.only:
            write(args.out / f"{name}.csv", table(args.seeds))
    if "figures" in args.only:
        figures(args.out)
    (args.out / "manifest.json").write_text(json.dumps(close_manifest(manifest), indent=2) + "\n")


if __name__ == "__main__":
    main()
