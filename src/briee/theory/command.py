"""Algorithm 1 with the parameters of Theorem 1 on a small block MDP: `python -m briee.theory.command`."""

import argparse
import sys

import numpy as np

from briee.theory.block import (
    BlockMDP,
    lock_block_mdp,
    random_block_mdp,
    random_class,
    uniform_policy,
    values,
)
from briee.theory.exploration import Setting, explore, mixture_regret
from briee.theory.presets import TheoryPreset


def parser() -> argparse.ArgumentParser:
    """The options; their defaults end with a mixture within epsilon of the optimum in some seconds."""
    options = argparse.ArgumentParser(prog="python -m briee.theory.command", description=__doc__)
    options.add_argument("env", choices=["lock", "random"], nargs="?", default="lock")
    options.add_argument("--horizon", type=int, default=3)
    options.add_argument("--num-latents", type=int, default=2, help="of the random block MDP; the lock has 3")
    options.add_argument("--num-actions", type=int, default=2)
    options.add_argument("--class-size", type=int, default=4, help="decoders per level, psi* among them")
    options.add_argument("--samples", type=float, default=1e17, help="N, episodes per level and data set")
    options.add_argument(
        "--growth", type=float, default=1.3, help="plan anew when the data grew by this factor"
    )
    options.add_argument("--constants", choices=["statement", "proof"], default="statement")
    options.add_argument("--alpha-scale", type=float, default=1.0, help="1 is the bonus of Theorem 1")
    options.add_argument("--epsilon", type=float, default=0.1)
    options.add_argument("--seed", type=int, default=0)
    return options


def make(args: argparse.Namespace, rng: np.random.Generator) -> BlockMDP:
    """The block MDP that was asked for."""
    if args.env == "lock":
        return lock_block_mdp(rng, args.horizon, args.num_actions)
    return random_block_mdp(rng, args.horizon, args.num_latents, args.num_actions)


def main(argv: list[str] | None = None) -> int:
    """Print V-hat, the regret of policy and mixture as n grows; 0 if the mixture ends within epsilon."""
    args = parser().parse_args(argv)
    rng = np.random.default_rng(args.seed)
    mdp, N = make(args, rng), int(args.samples)
    preset = TheoryPreset(
        mdp.num_latents, mdp.num_actions, args.class_size, N,
        constants=args.constants, alpha_scale=args.alpha_scale,
    )  # fmt: skip
    first = float(mdp.initial @ values(mdp.transition, mdp.reward, uniform_policy(mdp))[0])
    history, mixed = [], float("nan")
    print(f"V* = {mdp.optimal_return:.4f}, c = {preset.c:.4g}")
    titles = ("n", "alpha_n", "ell_n", "T_n", "rounds", "V_hat", "regret", "mixture")
    print(" ".join(f"{title:>10}" for title in titles))
    setting = Setting(mdp, random_class(rng, mdp, args.class_size), preset, growth=args.growth)
    for step in explore(setting, N, rng):
        history.append(step)
        mixed = float(mixture_regret(history, mdp.optimal_return, first)[-1])
        if len(history) % 5 == 1 or step.n == N:
            rounds = max(result.rounds for result in step.learned)
            numbers = (step.n, step.alpha, preset.ell(step.n), preset.rounds(step.n), rounds)
            outcome = (step.optimistic_value, step.regret, mixed)
            print(" ".join([f"{x:10.3g}" for x in numbers] + [f"{x:10.4f}" for x in outcome]), flush=True)
    print(f"the mixture is {mixed:.4f} below V*, {'within' if mixed <= args.epsilon else 'not within'} "
          f"epsilon = {args.epsilon:g}")  # fmt: skip
    return 0 if mixed <= args.epsilon else 1


if __name__ == "__main__":
    sys.exit(main())
