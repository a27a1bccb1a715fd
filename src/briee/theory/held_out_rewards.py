"""Reward-free exploration of the lock, then many rewards: `python -m briee.theory.held_out_rewards`.

Every value is exact but for the observation noise: a policy is reduced to its action probabilities in each
latent state, and those are evaluated by dynamic programming on the latent model.
"""

import argparse
import csv
import json
import shlex
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from briee.config import BrieeConfig
from briee.envs import CombinationLock
from briee.envs.latent_model import LatentModel
from briee.lsvi import GreedyPolicy
from briee.manifest import close_manifest, make_manifest
from briee.randomness import stream
from briee.reward_free import Kind, RewardFreeBRIEE, RewardFreeState
from briee.rollout import Policy, ScanSampler


class LatentReward(eqx.Module):
    """r_h(s, a) = table[h, psi*(s), a]: linear in the true features, as Theorem 2 asks."""

    env: CombinationLock
    table: Float[Array, "H Z A"]

    def __call__(self, level: Int[Array, ""], observation: Float[Array, "..."]) -> Float[Array, " A"]:
        return self.env.ground_truth_features(level, observation) @ self.table[level]


@dataclass(frozen=True)
class Outcome:
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
    for index in range(random):
        rewards[f"random {index}"] = rng.uniform(size=(H, Z, A)) / H
    return rewards


@eqx.filter_jit
def action_probabilities(env, policy: Policy, key, samples: int) -> Float[Array, "H Z A"]:
    """How often the policy takes each action in each latent state, over `samples` observations of it."""

    def one(level, latent, key):
        noise, choice = jax.random.split(key)
        action = policy(level, env.emit(latent, level, noise), choice)
        return jax.nn.one_hot(action, env.num_actions)

    def mean(level, latent):
        keys = jax.random.split(stream(key, "state", level, latent), samples)
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
    env: CombinationLock, iterations: int, seed: int
) -> Iterator[tuple[RewardFreeBRIEE, RewardFreeState]]:
    """The exploration phase with the settings of the paper, after each of its iterations."""
    config = replace(BrieeConfig.paper(env.horizon), workers=1)
    algorithm = RewardFreeBRIEE(ScanSampler(env), config)
    state = algorithm.init(jax.random.key(seed))
    for _ in range(iterations):
        state = algorithm.update(state)
        yield algorithm, state


def judge(
    algorithm: RewardFreeBRIEE, state: RewardFreeState, rewards: dict[str, np.ndarray], kind: Kind
) -> list[Outcome]:
    """Plan for every reward and compare with the optimum by dynamic programming."""
    env, key = algorithm.sampler.pure, jax.random.key(17)
    uniform = np.full((env.horizon, env.num_latents, env.num_actions), 1.0 / env.num_actions)
    outcomes = []
    for name, table in rewards.items():
        reward = LatentReward(env, jnp.asarray(table, jnp.float32))
        start = time.perf_counter()
        policy: GreedyPolicy = jax.block_until_ready(algorithm.plan_for(state, reward, kind))
        seconds = time.perf_counter() - start
        model = replace(env.latent_model(), reward=table)
        probabilities = np.asarray(action_probabilities(env, policy, key, 200), np.float64)
        optimum, value = model.optimal_return(), policy_value(model, probabilities)
        outcomes.append(
            Outcome(name, kind, optimum, value, value / optimum, policy_value(model, uniform) / optimum,
                    seconds, int(state.episodes), int(state.world.iteration))
        )  # fmt: skip
    return outcomes


def write(path: Path, outcomes: list[Outcome]) -> None:
    """The outcomes as a table."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(list(vars(outcomes[0])))
        for outcome in outcomes:
            writer.writerow([f"{x:.6g}" if isinstance(x, float) else x for x in vars(outcome).values()])


def main(argv: list[str] | None = None) -> None:
    """Explore once, then write the outcomes of all rewards, for the last and for some earlier iterations."""
    parser = argparse.ArgumentParser(prog="python -m briee.theory.held_out_rewards", description=main.__doc__)
    parser.add_argument("--horizon", type=int, default=6)
    parser.add_argument("--iterations", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--every", type=int, default=5, help="iterations between two judgements")
    parser.add_argument("--out", type=Path, default=Path("results/reward_free"))
    args = parser.parse_args(argv)
    options = sys.argv[1:] if argv is None else argv
    manifest = make_manifest(shlex.join(["python", "-m", "briee.theory.held_out_rewards", *options]))
    env = CombinationLock(horizon=args.horizon, instance_seed=args.seed)
    rewards = held_out_rewards(env)
    history: list[Outcome] = []
    last: list[Outcome] = []
    for n, (algorithm, state) in enumerate(explore(env, args.iterations, args.seed), start=1):
        values = f"V_0 {float(state.world.value):.3f} of iteration {int(state.world.iteration)}"
        print(f"iteration {n}: {int(state.episodes)} episodes, {values}", file=sys.stderr, flush=True)
        if n % args.every == 0 or n == args.iterations:
            last = [
                *judge(algorithm, state, rewards, "greedy"),
                *judge(algorithm, state, rewards, "optimistic"),
            ]
            history += last
            for kind in ("greedy", "optimistic"):
                ratios = [o.ratio for o in last if o.kind == kind]
                print(f"  {kind}: worst {min(ratios):.3f}, mean {np.mean(ratios):.3f}", file=sys.stderr)
    name = f"lock_h{args.horizon}_seed{args.seed}"
    write(args.out / f"{name}.csv", last)
    write(args.out / f"{name}_by_episodes.csv", history)
    (args.out / f"{name}_manifest.json").write_text(json.dumps(close_manifest(manifest), indent=2) + "\n")


if __name__ == "__main__":
    main()
