"""What hinders the plan of Algorithm 1 when the features are the true ones: how soft they are, and the value
that the ridge of LSVI shrinks to.

    python benchmarks/true_features.py results/core/true_features.csv

The preset `practical` on the sparse lock, with RepLearn replaced by the true decoders, as soft as RepLearn's
game makes them (temperature 1) or sharper. Episodes until five evaluations in a row, 20 episodes each, are
perfect. Nothing is timed; 10 minutes on one core.
"""

import csv
import sys
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

from briee.algorithms.paper.briee import BrieeAlgorithm, BrieeState
from briee.algorithms.paper.config import BrieeConfig
from briee.algorithms.paper.decoders import Decoder
from briee.algorithms.paper.held_out_game import Played
from briee.algorithms.paper.level_features import with_levels
from briee.envs.emission import VectorEmission
from briee.envs.lock import CombinationLock
from briee.rollout.samplers import ScanSampler, evaluate

SEEDS = (31, 32, 33)
HORIZONS = (12, 25, 50, 100)
BUDGET = 9_000
SCALE = 10.0
"""Logits of RepLearn's features: the posterior of a mixture of Gaussians has ten times as much."""
PLANS = {"soft, zero": (1.0, "zero"), "sharp, zero": (0.1, "zero"), "sharp, least": (0.1, "least")}
"""Temperature of the features, and the value to which the ridge shrinks."""


class TrueFeatures(BrieeAlgorithm[BrieeState]):
    """Algorithm 1 with the lock's own decoders in place of line 5."""

    def learn_features(self, state: BrieeState) -> BrieeState:
        if state.iteration == 0:
            state = replace(state, decoder=self.true_decoders(state.decoder))
        return replace(state, growth=jnp.zeros(self.sampler.horizon))

    def true_decoders(self, blank: Decoder) -> Decoder:
        """softmax(SCALE e_z / temperature), apart from the noise."""
        lock, H = self.sampler.pure, self.sampler.horizon
        assert isinstance(lock, CombinationLock)
        assert isinstance(lock.emission, VectorEmission)
        scores = lock.emission.scores
        zero = jnp.zeros(self.sampler.observation_shape)
        maps = [np.asarray(jax.jacobian(lambda s, h=h: scores(h, s))(zero)) for h in range(H)]
        units = [np.column_stack([SCALE * A_h, np.zeros(len(A_h))]) for A_h in maps]
        found = [Played(u / float(t), 0.0, 1, True) for u, t in zip(units, blank.temperature, strict=True)]
        return with_levels(blank, jnp.zeros(H), range(H), found)[0]


def episodes_to_solve(horizon: int, seed: int, temperature: float, prior: str) -> str:
    """Episodes until five perfect evaluations in a row; empty if the budget is not enough."""
    config = BrieeConfig.practical(horizon)
    config = replace(
        config,
        held_out=replace(config.held_out, temperatures=(temperature,)),
        lsvi=replace(config.lsvi, prior=prior),
    )
    algorithm = TrueFeatures(ScanSampler(CombinationLock(horizon, instance_seed=seed)), config)
    state, streak = algorithm.init(jax.random.key(seed)), 0
    while int(state.episodes) < BUDGET:
        state = algorithm.update(state)
        key = jax.random.fold_in(jax.random.key(seed + 1), int(state.iteration))
        perfect = evaluate(algorithm.sampler, algorithm.policy(state), key, 20).mean() == 1.0
        streak = streak + 1 if perfect else 0
        if streak == 5:
            return str(int(state.episodes))
    return ""


def main(path: str) -> None:
    """Write the table, a row for each horizon and plan, a column for each seed."""
    with open(path, "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["setting", "horizon", "plan", *(f"seed{seed}" for seed in SEEDS)])
        for horizon in HORIZONS:
            for number, (plan, values) in enumerate(PLANS.items()):
                row = [episodes_to_solve(horizon, seed, *values) for seed in SEEDS]
                writer.writerow([f"h{horizon}p{number}", str(horizon), plan, *row])
                file.flush()
                print(horizon, plan, *row, flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
