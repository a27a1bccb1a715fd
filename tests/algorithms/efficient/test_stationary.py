"""The stationary variant: discounted planning in closed form, one decoder for all levels, FrozenLake."""

import csv
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from briee.algorithms import registry as algorithms
from briee.algorithms.efficient.cell_planning import plan_discounted
from briee.algorithms.efficient.config import StationaryConfig
from briee.algorithms.efficient.stationary import Stationary
from briee.algorithms.efficient.strata import Strata
from briee.envs.adapters.rich import RichObservation
from briee.rollout import samplers as rollout
from briee.rollout.host import HostSampler
from briee.rollout.policies import UniformPolicy

RESULTS = Path(__file__).parents[3] / "results" / "worlds" / "runs.csv"
CORRIDOR, H = 4, 6


class Corridor(gym.Env):
    """Start at 0; action 1 goes right, 0 left; reward 1 for the step to the right end, which ends it."""

    observation_space = gym.spaces.Discrete(CORRIDOR)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = 0
        return self.place, {}

    def step(self, action):
        self.place = max(self.place + (1 if action == 1 else -1), 0)
        done = self.place == CORRIDOR - 1
        return self.place, float(done), done, False, {}


@pytest.fixture(scope="module")
def learned():
    """A learner on the corridor, and its state after 140 episodes."""
    sampler = HostSampler(
        gym.vector.SyncVectorEnv([lambda: RichObservation(Corridor())] * 10), H, optimal_return=1.0
    )
    config = replace(StationaryConfig.efficient(H), num_latents=CORRIDOR + 1)
    config = replace(config, strata=replace(config.strata, rows=512, fit_rows=256))
    algorithm = Stationary(sampler, config)
    state = algorithm.init(jax.random.key(2))
    for _ in range(7):
        state = algorithm.update(state)
    return algorithm, state


def plan(counts: Any, rewards: Any, curve: Any, discount: float) -> list[np.ndarray]:
    found = plan_discounted(jnp.asarray(counts), jnp.asarray(rewards), jnp.asarray(curve), discount)
    return [np.asarray(table) for table in found]


def test_values_are_the_fixed_points_of_the_discounted_recursions():
    rng = np.random.default_rng(0)
    L, A, discount = 5, 3, 0.8
    counts = rng.integers(1, 20, size=(L, A, L)).astype(float)
    rewards, curve = rng.uniform(size=(L, A)) * counts.sum(-1), np.array([1.0, 0.5, 0.1] + [0.01] * 60)
    U, Q = plan(counts, rewards, curve, discount)
    P, r = counts / counts.sum(-1, keepdims=True), rewards / counts.sum(-1)
    best = Q.argmax(axis=1)
    chain, reward = P[np.arange(L), best], r[np.arange(L), best]
    value = np.linalg.solve(np.eye(L) - discount * chain, reward)  # of the policy that Q prefers
    np.testing.assert_allclose(Q, r + discount * P @ value, rtol=1e-4)
    u = curve[np.minimum(counts.sum(-1), 62).astype(int)]
    np.testing.assert_allclose(U, np.maximum(u, discount * P @ U.max(-1)), atol=1e-5)


def test_what_was_never_tried_is_no_plan_but_a_discovery():
    counts = np.zeros((2, 2, 2))
    counts[0, 0, 1] = counts[1, 0, 1] = 40.0
    rewards = np.zeros((2, 2))
    curve = np.array([1.0] + [0.0] * 32)
    U, Q = plan(counts, rewards, curve, 0.5)
    assert (Q[:, 1] < -1e5).all()
    np.testing.assert_allclose(U, [[0.5, 1.0], [0.5, 1.0]], atol=1e-5)


def test_there_is_one_decoder_and_one_store(learned):
    algorithm, state = learned
    assert state.decoder.weight.shape[0] == state.strata.action.shape[0] == 1
    assert int(state.episodes) == 140
    assert int((state.strata.action >= 0).sum()) == min(140 * H, 512), "transitions of every level"
    observations = np.random.default_rng(0).normal(size=(5, *algorithm.sampler.observation_shape))
    first, last = (algorithm.decode(state, level, jnp.asarray(observations)) for level in (0, H - 1))
    np.testing.assert_array_equal(first, last)
    policy, key = algorithm.policy(state), jax.random.key(0)
    actions = {int(policy(jnp.int32(level), jnp.asarray(observations[0]), key)) for level in range(H)}
    assert len(actions) == 1


def test_latent_states_are_those_of_the_corridor_at_every_level(learned):
    algorithm, state = learned
    trajectories = algorithm.sampler.rollout(UniformPolicy(2), jax.random.key(5), 60)
    rows = trajectories.observation.reshape(-1, *algorithm.sampler.observation_shape)
    decoded = np.asarray(algorithm.decode(state, 0, rows)).argmax(axis=1)
    latent = np.asarray(trajectories.latent).ravel()
    for z in range(CORRIDOR - 1):
        assert len(np.unique(decoded[latent == z])) == 1, "one label for a state, whatever its level"
    assert len({decoded[latent == z][0] for z in range(CORRIDOR - 1)}) == CORRIDOR - 1


def test_it_walks_to_the_end(learned):
    algorithm, state = learned
    returns = rollout.evaluate(algorithm.sampler, algorithm.policy(state), jax.random.key(7), 20)
    assert (returns == 1.0).all()


def test_without_strata_all_rows_of_the_store_are_alike(learned):
    algorithm, state = learned
    strata = replace(algorithm.config.strata, stratified=False)
    plain = Stationary(algorithm.sampler, replace(algorithm.config, strata=strata))
    grown, usual = (float((one.collect(state).growth - state.growth)[0]) for one in (plain, algorithm))
    assert grown == pytest.approx(20 * H / 513, rel=1e-4), "each of the new rows meets a stratum of all 512"
    assert usual > 2 * grown


def test_update_is_a_pure_function_of_the_state(learned):
    algorithm, state = learned
    one, two = algorithm.update(state), algorithm.update(state)
    data = lambda x: jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x  # noqa: E731
    assert jax.tree.all(jax.tree.map(lambda a, b: np.array_equal(data(a), data(b), equal_nan=True), one, two))
    assert isinstance(one.strata, Strata)


def test_its_settings():
    config = algorithms.preset("stationary", "efficient", 10)
    assert config.discount == pytest.approx(0.9)
    with pytest.raises(ValueError, match="discount must be in"):
        replace(config, discount=1.0)


def test_the_committed_runs_need_fewer_episodes_than_one_representation_per_level():
    with RESULTS.open() as file:
        rows = [row for row in csv.DictReader(file) if row["world"].startswith("frozen-lake-h10-")]
    assert all(row["solved"] == "True" for row in rows)
    shared, separate = (
        {r["seed"]: int(r["episodes_to_solve"]) for r in rows if r["world"] == f"frozen-lake-h10-{learner}"}
        for learner in ("stationary", "per-level")
    )
    assert set(shared) == set(separate) == {"1", "12", "123", "1234", "12345"}
    assert all(shared[seed] < separate[seed] for seed in shared)
