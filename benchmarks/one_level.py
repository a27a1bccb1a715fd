"""RepLearn on one level of the lock with one setting changed: accuracy, rounds and seconds.

    python benchmarks/one_level.py results/core/one_level.csv

The level has D = 16, 10 actions, uniform actions, and a given share of rows from the bad state. CPU seconds
exclude compilation.
"""

import csv
import os
import sys
import time
from dataclasses import replace
from itertools import permutations

os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from briee.algorithms.paper.buffers import Transitions
from briee.algorithms.paper.config import BrieeConfig
from briee.algorithms.paper.decoders import linear_decoder
from briee.algorithms.paper.replearn import replearn
from briee.envs.lock import CombinationLock

A, K, LEVEL, CAPACITY = 10, 3, 2, 10_000
PAPER = BrieeConfig.paper(6).replearn
SETTINGS = {
    "paper": PAPER,
    "lam = 0.01 on the mean": replace(PAPER, lam=0.01),
    "two hidden layers": replace(PAPER, hidden_sizes=(256, 256)),
    "f does not wait for the rival": replace(PAPER, wait_for_rival=False),
    "patience 1": replace(PAPER, patience=1),
    "no termination": replace(PAPER, ell=None),
    "64 discriminator steps": replace(PAPER, discriminator_steps=64),
    "alternating ascent": replace(PAPER, ascent="alternating"),
    "released": BrieeConfig.released(6).replearn,
}
DATA = [(3000, 0.3), (3000, 0.95), (200, 0.5)]
SEEDS = [101, 102, 103]


def one_level(rows: int, bad: float, seed: int):
    """Transitions [CAPACITY] of which the first `rows` are valid, and their latent states."""
    lock = CombinationLock(horizon=6, instance_seed=seed)
    rng = np.random.default_rng(seed)
    right = rng.permutation(A)[:2]  # two good states with different right actions
    latent = np.where(rng.uniform(size=CAPACITY) < bad, 2, rng.integers(2, size=CAPACITY))
    action = rng.integers(A, size=CAPACITY)
    good = (latent < 2) & (action == right[np.minimum(latent, 1)])
    after = np.where(good, rng.integers(2, size=CAPACITY), 2)
    emit = jax.vmap(lock.emit, (0, None, 0))
    keys = jax.random.split(jax.random.key(seed), 2 * CAPACITY)
    valid = jnp.arange(CAPACITY) < rows
    data = Transitions(
        observation=emit(jnp.asarray(latent), LEVEL, keys[:CAPACITY]),
        action=jnp.asarray(action, jnp.int32),
        reward=jnp.zeros(CAPACITY),
        next_observation=emit(jnp.asarray(after), LEVEL + 1, keys[CAPACITY:]),
        on_policy=valid,
        valid=valid,
    )
    return data, latent


def balanced_accuracy(decoder, data: Transitions, latent: np.ndarray) -> float:
    """Mean accuracy over latent states under the best renaming, on training and held-out rows."""
    decoded = np.argmax(np.asarray(jax.vmap(decoder)(data.observation)), axis=1)
    shares = np.array([[np.mean(decoded[latent == z] == k) for k in range(K)] for z in range(K)])
    return max(np.mean([shares[z, names[z]] for z in range(K)]) for names in permutations(range(K)))


def main(path: str) -> None:
    """Run every setting on every data set and seed; write one row for each."""
    learn = eqx.filter_jit(replearn)
    with open(path, "w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["setting", "rows", "bad_share", "seed", "balanced_accuracy", "rounds", "cpu_seconds"])
        for name, config in SETTINGS.items():
            compiled = False
            for rows, bad in DATA:
                for seed in SEEDS:
                    data, latent = one_level(rows, bad, seed)
                    keys = jax.random.split(jax.random.key(seed), 3)
                    decoder, rival = (linear_decoder(k, data.observation.shape[1:], K, 1.0) for k in keys[:2])
                    call = (keys[2], data, decoder, rival, config, A)
                    if not compiled:
                        jax.block_until_ready(learn(*call))
                        compiled = True
                    start = time.process_time()
                    result = jax.block_until_ready(learn(*call))
                    seconds = time.process_time() - start
                    accuracy = balanced_accuracy(result.decoder, data, latent)
                    row = [name, rows, bad, seed, f"{accuracy:.3f}", int(result.rounds), f"{seconds:.2f}"]
                    table.writerow(row)
                    print(*row, flush=True)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "one_level.csv")
