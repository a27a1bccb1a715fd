"""An algorithm that learns nothing in no time, for tests of training. As a script, it runs in a directory."""

import sys
import time
from dataclasses import dataclass, field, replace
from types import SimpleNamespace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from briee.configuration import AlgorithmConfig, EvaluationConfig
from briee.numerics.keys import stream
from briee.protocols import Algorithm, Knowledge, PhaseHook, no_phases
from briee.training import session as runs
from briee.training.spec import RunSpec


@dataclass(frozen=True)
class ToyConfig(AlgorithmConfig):
    solves_at: int = 4
    """First iteration whose policy is optimal."""
    relapse: int = 0
    """An iteration whose policy is not."""
    sleep: float = 0.0
    """Seconds that planning takes."""
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    workers: int = 0


class ToyState(eqx.Module):
    key: jax.Array
    iteration: np.ndarray
    episodes: np.ndarray
    env_steps: np.ndarray
    weights: jax.Array
    gap: jax.Array


class ToySampler:
    horizon, num_actions, observation_shape, optimal_return, pure = 3, 2, (4,), 1.0, None
    knowledge = Knowledge()

    def rollout(self, policy, key, episodes, deviation=None):
        """Half of the episodes of a policy that is not optimal still succeed."""
        success = jnp.where(policy, 1.0, jax.random.bernoulli(key, 0.5, (episodes,)))
        return SimpleNamespace(reward=jnp.zeros((episodes, 3)).at[:, -1].set(success))


class Toy(Algorithm[ToyState]):
    name = "toy"
    config: ToyConfig

    def __init__(self, sampler, config: ToyConfig):
        self.sampler, self.config = sampler, config

    def init(self, key) -> ToyState:
        zero = np.asarray(0, np.int64)
        return ToyState(key, zero, zero, zero, jnp.zeros((3, 5)), jnp.float32(jnp.inf))

    def update(self, state: ToyState, phase: PhaseHook = no_phases) -> ToyState:
        phase("collect")
        state = replace(state, episodes=state.episodes + 10, env_steps=state.env_steps + 30)
        phase("represent")
        noise = jax.random.normal(stream(state.key, "represent", int(state.iteration)), (3, 5))
        weights = 0.9 * state.weights + noise
        phase("plan")
        time.sleep(self.config.sleep)
        return replace(state, weights=weights, gap=jnp.abs(weights).max(), iteration=state.iteration + 1)

    def policy(self, state: ToyState, kind: str = "greedy"):
        return self.config.solves_at <= state.iteration != self.config.relapse

    def metrics(self, state: ToyState) -> dict[str, float]:
        return {
            "explore_return": float("nan"),
            "replearn_gap": float(state.gap),
            "toy_norm": float(state.weights.sum()),
        }


def make_toy(seed: int = 1, episodes: int = 1000, **config) -> tuple[Toy, RunSpec]:
    settings = ToyConfig(**config)
    spec = RunSpec("toy-env", "toy", "default", 3, seed, episodes, settings)
    return Toy(ToySampler(), settings), spec


if __name__ == "__main__":
    runs.CHECKPOINT_SHARE = 1.0
    algorithm, spec = make_toy(solves_at=30, sleep=0.004)
    print("ready", flush=True)
    hold = [lambda row: sys.stdin.read()] if "hold" in sys.argv else []  # until its input is closed
    runs.run(algorithm, spec, sys.argv[1], resume=True, callbacks=[lambda row: print(row, flush=True), *hold])
