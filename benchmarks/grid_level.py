"""RepLearn on one level of MiniGrid-Empty-5x5: number of states its decoder separates, with and without
standardised observations, and how often random play finds the goal.

    python benchmarks/grid_level.py results/agent/grid_level.csv
"""

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from briee.compute import prepare_process

prepare_process()

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402

from briee.algorithms.paper.briee import BrieeAlgorithm, _replearn  # noqa: E402
from briee.algorithms.paper.buffers import Transitions  # noqa: E402
from briee.algorithms.paper.config import BrieeConfig  # noqa: E402
from briee.numerics.linalg import at_level  # noqa: E402
from briee.rollout.policies import UniformPolicy  # noqa: E402
from briee.rollout.samplers import make_sampler  # noqa: E402
from briee.training.directory import write_table  # noqa: E402

LEVEL, HORIZON, EPISODES = 4, 10, 6000


def config(standardize: bool) -> BrieeConfig:
    """As in benchmarks/worlds.py, but with more rounds, because RepLearn starts from random weights."""
    paper = BrieeConfig.paper(HORIZON)
    small = {"feature_batch": 128, "discriminator_batch": 128, "hidden_sizes": (32,), "momentum": 0.9}
    steps = {"rounds": 8, "feature_steps": 32, "discriminator_steps": 32}
    features = replace(paper.features, decoder="mlp", num_latents=40, standardize=standardize)
    return replace(paper, features=features, replearn=replace(paper.replearn, **small, **steps))


def measure() -> Iterator[dict[str, object]]:
    """One row per seed and kind of observations."""
    sampler = make_sampler("MiniGrid-Empty-5x5-v0", HORIZON, {}, None)
    policy = UniformPolicy(sampler.num_actions)
    for seed in (2, 3, 4):
        data = sampler.rollout(policy, jax.random.key(seed), EPISODES)
        found = float((np.asarray(data.reward).sum(axis=1) > 0).mean())
        full = jnp.ones(EPISODES, bool)
        rows = Transitions(
            data.observation[:, LEVEL], data.action[:, LEVEL], data.reward[:, LEVEL],
            data.observation[:, LEVEL + 1], full, full,
        )  # fmt: skip
        seen = np.unique(np.asarray(rows.observation).reshape(EPISODES, -1), axis=0)
        for standardize in (False, True):
            algorithm = BrieeAlgorithm(sampler, config(standardize))
            players = [
                at_level(algorithm.random_decoders(jax.random.key(i)), LEVEL) for i in (seed, seed + 100)
            ]
            learned = _replearn(
                jax.random.key(seed), rows, *players, algorithm.config.replearn, sampler.num_actions
            ).decoder
            decoded = jax.vmap(learned)(jnp.asarray(seen.reshape(-1, *sampler.observation_shape)))
            yield {
                "seed": seed,
                "standardize": standardize,
                "states": len(seen),
                "told_apart": len(set(np.asarray(decoded).argmax(axis=1).tolist())),
                "random_success": found,
            }


if __name__ == "__main__":
    table = list(measure())
    write_table(Path(sys.argv[1]), table)
    print(*table, sep="\n")
