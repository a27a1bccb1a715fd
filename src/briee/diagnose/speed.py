"""`briee bench`: speed relative to the machine's own limit.

The adversarial step is compared with plain matrix products of its shapes, the host sampler with a bare loop
over the environment it steps. Every figure is the best of several warm repetitions, in CPU time, because
other processes hardly affect it.
"""

import time
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import equinox as eqx
import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
from scipy.linalg.blas import get_blas_funcs

from briee import envs
from briee.algorithms.paper.buffers import Transitions
from briee.algorithms.paper.config import BrieeConfig, RepLearnConfig
from briee.algorithms.paper.decoders import linear_decoder
from briee.algorithms.paper.replearn import replearn
from briee.rollout.host import HostSampler
from briee.rollout.policies import UniformPolicy
from briee.rollout.samplers import CHUNK, HOST_ENVIRONMENTS, ScanSampler

HORIZON, NUM_ACTIONS, ROWS, DIMENSION = 6, 10, 10_000, 16
"""One level of the lock with H = 6 and a full replay buffer, as in the released code."""


def measure(progress: Callable[[str], Any] = lambda name: None) -> dict[str, float]:
    """All figures by name; `progress` is called with each name. Takes a minute or two."""
    figures: dict[str, float] = {}
    for name, function in (
        ("adversarial_step_over_sgemm", adversarial_step),
        ("replearn_seconds_per_level", replearn_call),
        ("scan_env_steps_per_second", scan_sampler),
        ("host_over_own_step_loop", host_sampler),
    ):
        progress(name)
        figures |= function()
    return figures


def adversarial_step() -> dict[str, float]:
    """GFLOP/s of one step of line 5 of Algorithm 2, of plain products of its shapes, and their ratio."""
    config = replace(released(), rounds=1, feature_steps=1, first_player="discriminator")
    few, many = (call_replearn(replace(config, discriminator_steps=steps)) for steps in (64, 1088))
    seconds = (best_time(many) - best_time(few)) / 1024
    shapes = step_products(config, DIMENSION)
    flops = sum(2 * m * k * n for m, k, n in shapes)
    plain = sum(product_time(*shape) for shape in shapes)
    return {
        "adversarial_step_over_sgemm": plain / seconds,
        "adversarial_step_gflops": flops / seconds / 1e9,
        "sgemm_gflops": flops / plain / 1e9,
        "adversarial_step_milliseconds": seconds * 1e3,
    }


def step_products(config: RepLearnConfig, dimension: int) -> list[tuple[int, int, int]]:
    """(m, k, n) of the matrix products in a discriminator's forward and backward pass on one minibatch."""
    forward = [(config.discriminator_batch, k, n) for k, n in pairwise((dimension, *config.hidden_sizes, 1))]
    weights = [(k, m, n) for m, k, n in forward]
    inputs = [(m, n, k) for m, k, n in forward[1:]]  # observations need no gradient
    return [*forward, *weights, *inputs]


def replearn_call() -> dict[str, float]:
    """Seconds of one RepLearn call with the released hyperparameters, without early termination."""
    return {"replearn_seconds_per_level": best_time(call_replearn(released()), repeats=2)}


def scan_sampler() -> dict[str, float]:
    """Environment steps of compiled rollouts on the lock with H = 100 and the uniform policy: per second on
    all cores, and per second of CPU time."""
    sampler = ScanSampler(envs.make("lock", horizon=100))
    episodes, key = 4 * CHUNK, jax.random.key(0)
    rollout = lambda: sampler.rollout(UniformPolicy(sampler.num_actions), key, episodes)  # noqa: E731
    steps = episodes * sampler.horizon
    return {
        "scan_env_steps_per_second": steps / best_time(rollout, repeats=5, clock=time.perf_counter),
        "scan_env_steps_per_core_second": steps / best_time(rollout, repeats=5),
    }


def host_sampler() -> dict[str, float]:
    """Speed of the host sampler, including the policy, relative to a bare loop of `step`.

    Copies of a scalar environment are compared with a loop over one copy with precomputed actions. A
    vectorised environment is compared with its own loop under the same policy, because drawing random actions
    takes longer than its step.
    """
    return {
        "host_over_own_step_loop": _host_ratio("CliffWalking-v1", "sync", HOST_ENVIRONMENTS),
        "host_over_own_vector_loop": _host_ratio("CartPole-v1", "vector_entry_point", 256),
    }


def _host_ratio(env: str, mode: str, copies: int, horizon: int = 50) -> float:
    sampler = HostSampler(gym.make_vec(env, num_envs=copies, vectorization_mode=mode), horizon)
    policy, key = UniformPolicy(sampler.num_actions), jax.random.key(0)
    actions = np.random.default_rng(0).integers(0, sampler.num_actions, (copies, horizon)).tolist()
    draw = jax.jit(
        jax.vmap(lambda key, level: policy(level, None, jax.random.fold_in(key, level)), (0, None))
    )
    keys = jax.random.split(key, copies)

    def scalar_loop():
        for plan in actions:
            one.reset(seed=0)
            for action in plan:
                one.step(action)

    def vector_loop():
        many.reset(seed=0)
        for level in range(horizon):
            many.step(np.asarray(draw(keys, np.int32(level))))

    one, many = gym.make(env), gym.make_vec(env, num_envs=copies, vectorization_mode=mode)
    own = best_time(scalar_loop if mode == "sync" else vector_loop, repeats=7)
    return own / best_time(lambda: sampler.rollout(policy, key, copies), repeats=7)


def released() -> RepLearnConfig:
    """RepLearn with the released hyperparameters."""
    return BrieeConfig.released(horizon=HORIZON).replearn


def call_replearn(config: RepLearnConfig) -> Callable[[], Any]:
    """A jitted RepLearn call on a full replay buffer of random transitions."""
    keys = jax.random.split(jax.random.key(0), 6)
    observation, following = (jax.random.normal(key, (ROWS, DIMENSION)) for key in keys[:2])
    data = Transitions(
        observation=observation,
        action=jax.random.randint(keys[2], (ROWS,), 0, NUM_ACTIONS),
        reward=jnp.zeros(ROWS),
        next_observation=following,
        on_policy=jnp.ones(ROWS, bool),
        valid=jnp.ones(ROWS, bool),
    )
    decoder, rival = (linear_decoder(key, (DIMENSION,), 3, 1.0) for key in keys[3:5])
    compiled = eqx.filter_jit(replearn)
    return lambda: compiled(keys[5], data, decoder, rival, config, NUM_ACTIONS)


def product_time(m: int, k: int, n: int) -> float:
    """Seconds of one single-precision product [m, k] x [k, n]."""
    rng = np.random.default_rng(0)
    a, b = (np.asfortranarray(rng.standard_normal(shape), np.float32) for shape in ((m, k), (k, n)))
    sgemm: Any = get_blas_funcs("gemm", (a, b))
    repeats = max(1, int(2e8 / (2 * m * k * n)))

    def many():
        for _ in range(repeats):
            sgemm(1.0, a, b)

    return best_time(many, repeats=5) / repeats


def best_time(
    function: Callable[[], Any], repeats: int = 3, clock: Callable[[], float] = time.process_time
) -> float:
    """CPU seconds of the fastest of several calls, after a first call that compiles."""
    jax.block_until_ready(function())
    seconds = []
    for _ in range(repeats):
        began = clock()
        jax.block_until_ready(function())
        seconds.append(clock() - began)
    return min(seconds)
