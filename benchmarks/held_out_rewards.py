"""Reward-free exploration of the lock, then many rewards: `python benchmarks/held_out_rewards.py`.

Algorithm 4, or with `--algo general` the general algorithm, which needs fewer episodes.

Every value is exact except for the observation noise: a policy is reduced to its action probabilities in each
latent state, which dynamic programming on the latent model evaluates.
"""

import argparse
import json
import shlex
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from briee.algorithms.general.algorithm import General
from briee.algorithms.general.config import GeneralConfig
from briee.algorithms.paper.config import BrieeConfig
from briee.algorithms.paper.reward_free import RewardFree
from briee.configuration import changed
from briee.envs.block import LatentModel
from briee.envs.lock import CombinationLock
from briee.numerics.keys import stream
from briee.protocols import Algorithm, Policy, PolicyKind
from briee.rollout.samplers import ScanSampler
from briee.training.directory import close_manifest, make_manifest, read_table
from theory_report import write_rounded

TABLE = "held_out.csv"
SAMPLES = 200
"""Observations of a latent state from which a policy's action probabilities are estimated."""


class TrueLatentReward(eqx.Module):
    """r_h(s, a) = table[h, psi*(s), a]: linear in the true features, as Theorem 2 asks."""

    env: CombinationLock
    table: Float[Array, "H Z A"]

    def __call__(self, level: Int[Array, ""], observation: Float[Array, "..."]) -> Float[Array, " A"]:
        return self.env.ground_truth_features(level, observation) @ self.table[level]


class HeldOut(NamedTuple):
    """One reward, planned for after exploration; a row of the table."""

    reward: str
    kind: str
    optimum: float
    value: float
    ratio: float
    uniform_ratio: float
    plan_seconds: float
    episodes: int
    world_iteration: int


def held_out_rewards(env: CombinationLock, random: int = 10, seed: int = 0) -> dict[str, np.ndarray]:
    """Tables [H, Z, A] by name: each good state as a goal, the lock's own reward, random linear ones."""
    model, H, Z, A = env.latent_model(), env.horizon, env.num_latents, env.num_actions
    rewards = {"original": model.reward}
    for level in range(1, H + 1):
        for lane in range(env.num_good):
            table = np.zeros((H, Z, A))
            table[level - 1] = model.transition[level - 1, :, :, lane]  # arriving there, in expectation
            rewards[f"reach lane {lane} at level {level}"] = table
    rng = np.random.default_rng(seed)
    return rewards | {f"random {index}": rng.uniform(size=(H, Z, A)) / H for index in range(random)}


@eqx.filter_jit
def action_probabilities(env, policy: Policy, key) -> Float[Array, "H Z A"]:
    """How often the policy takes each action in each latent state."""

    def one(level, latent, key):
        noise, choice = jax.random.split(key)
        action = policy(level, env.emit(latent, level, noise), choice)
        return jax.nn.one_hot(action, env.num_actions)

    def mean(level, latent):
        keys = jax.random.split(stream(key, "state", level, latent), SAMPLES)
        return jax.vmap(one, (None, None, 0))(level, latent, keys).mean(axis=0)

    latents = jnp.arange(env.num_latents)
    return jax.vmap(lambda h: jax.vmap(lambda z: mean(h, z))(latents))(jnp.arange(env.horizon))


def policy_value(model: LatentModel, probabilities: np.ndarray) -> float:
    """The value of latent action probabilities [H, Z, A] from the start."""
    value = np.zeros(len(model.initial))
    for h in reversed(range(model.horizon)):
        value = np.sum(probabilities[h] * (model.reward[h] + model.transition[h] @ value), axis=1)
    return float(model.initial @ value)


def explore(
    env: CombinationLock, iterations: int, seed: int, algo: str = "reward-free"
) -> Iterator[tuple[Algorithm[Any], Any]]:
    """The exploration phase, that of Algorithm 4 with the settings of the paper, after each iteration."""
    algorithm: Algorithm[Any] = RewardFree(
        ScanSampler(env), replace(BrieeConfig.paper(env.horizon), workers=1)
    )
    if algo == "general":
        config = GeneralConfig.general(env.horizon)
        algorithm = General(ScanSampler(env), changed(config, "explore.reward_free", True))
    state = algorithm.init(jax.random.key(seed))
    for _ in range(iterations):
        state = algorithm.update(state)
        yield algorithm, state


def judge(
    algorithm: Algorithm[Any], state: Any, rewards: dict[str, np.ndarray], kind: PolicyKind
) -> list[HeldOut]:
    """Plan for every reward and compare with the optimum by dynamic programming."""
    env, key = algorithm.sampler.pure, jax.random.key(17)
    assert isinstance(env, CombinationLock)
    uniform = np.full((env.horizon, env.num_latents, env.num_actions), 1.0 / env.num_actions)
    outcomes = []
    for name, table in rewards.items():
        reward = TrueLatentReward(env, jnp.asarray(table, jnp.float32))
        start = time.perf_counter()
        policy = jax.block_until_ready(algorithm.plan_for(state, reward, kind))
        seconds = time.perf_counter() - start
        model = replace(env.latent_model(), reward=table)
        probabilities = np.asarray(action_probabilities(env, policy, key), np.float64)
        optimum, value = model.optimal_return(), policy_value(model, probabilities)
        ratios = (value / optimum, policy_value(model, uniform) / optimum)
        used = state.world.iteration if isinstance(algorithm, RewardFree) else state.iteration
        counts = (int(state.episodes), int(used))
        outcomes.append(HeldOut(name, kind, optimum, value, *ratios, seconds, *counts))
    return outcomes


def main(argv: list[str] | None = None) -> None:
    """Explore once, then write the outcomes of all rewards after the last and some earlier iterations."""
    program = "python benchmarks/held_out_rewards.py"
    parser = argparse.ArgumentParser(prog=program, description=main.__doc__)
    parser.add_argument("--algo", choices=("reward-free", "general"), default="reward-free")
    parser.add_argument("--horizon", type=int, default=6)
    parser.add_argument("--iterations", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--every", type=int, default=5, help="iterations between two judgements")
    parser.add_argument("--out", type=Path, default=Path("results/reward_free"))
    args = parser.parse_args(argv)
    manifest = make_manifest(f"{program} {shlex.join(sys.argv[1:] if argv is None else argv)}".strip())
    env = CombinationLock(horizon=args.horizon, instance_seed=args.seed)
    rewards, history = held_out_rewards(env), []
    for n, (algorithm, state) in enumerate(explore(env, args.iterations, args.seed, args.algo), start=1):
        told = algorithm.metrics(state)
        values = ", ".join(
            f"{k} {v:.3f}" for k, v in told.items() if k in ("explore_value", "discovery_chance")
        )
        print(f"iteration {n}: {int(state.episodes)} episodes, {values}", file=sys.stderr, flush=True)
        if n % args.every == 0 or n == args.iterations:
            for kind in ("greedy", "optimistic") if args.algo == "reward-free" else ("greedy",):
                found = judge(algorithm, state, rewards, kind)
                ratios = [outcome.ratio for outcome in found]
                print(f"  {kind}: worst {min(ratios):.3f}, mean {np.mean(ratios):.3f}", file=sys.stderr)
                about = {"algo": args.algo, "horizon": args.horizon, "seed": args.seed}
                history += [about | one._asdict() for one in found]
    write(args.out, history, close_manifest(manifest))


def write(folder: Path, rows: list[dict[str, Any]], manifest: dict[str, Any]) -> None:
    """The table and the manifests in a folder, with these rows of one run instead of its earlier ones."""
    table, manifests = folder / TABLE, folder / "manifest.json"
    names = "algo", "horizon", "seed"
    key = [str(rows[0][name]) for name in names]
    others = read_table(table) if table.exists() else []
    write_rounded(table, [row for row in others if [row[name] for name in names] != key] + rows)
    known = json.loads(manifests.read_text()) if manifests.exists() else {}
    known["{}_h{}_seed{}".format(*key)] = manifest
    manifests.write_text(json.dumps(known, indent=2) + "\n")


if __name__ == "__main__":
    main()
