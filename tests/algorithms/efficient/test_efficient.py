"""The efficient algorithm opens locks with few episodes; the stationary variant: planning in closed form."""

import csv
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from briee.algorithms import registry as algorithms
from briee.algorithms.efficient import algorithm as efficient
from briee.algorithms.efficient.algorithm import Efficient
from briee.algorithms.efficient.cell_planning import plan_discounted
from briee.algorithms.efficient.config import EfficientConfig, StationaryConfig, StrataConfig
from briee.algorithms.efficient.level_fit import fit_level
from briee.algorithms.efficient.stationary import Stationary
from briee.algorithms.efficient.strata import Strata
from briee.envs.adapters.rich import RichObservation
from briee.envs.lock import CombinationLock
from briee.envs.random_block import RandomBlockMDP
from briee.protocols import Knowledge
from briee.rollout import samplers as rollout
from briee.rollout.host import HostSampler
from briee.rollout.policies import UniformPolicy
from briee.rollout.samplers import ScanSampler, evaluate

H = 5


@pytest.fixture(scope="module")
def algorithm():
    config = EfficientConfig(strata=StrataConfig(rows=256, fit_rows=256))
    return Efficient(ScanSampler(CombinationLock(horizon=H, instance_seed=2)), config)


@pytest.fixture(scope="module")
def trained(algorithm):
    state = algorithm.init(jax.random.key(0))
    for _ in range(4):
        state = algorithm.update(state)
    return state


def same(one, two) -> bool:
    def equal(a, b):
        if jnp.issubdtype(a.dtype, jax.dtypes.prng_key):
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        a, b = np.asarray(a), np.asarray(b)
        return np.array_equal(a, b, equal_nan=a.dtype.kind == "f")

    return jax.tree.all(jax.tree.map(equal, one, two))


def test_updates_count_every_episode_and_keep_every_transition(algorithm, trained):
    E = algorithm.config.explore.episodes
    assert int(trained.iteration) == 4
    assert int(trained.episodes) == 4 * E
    assert int(trained.env_steps) == 4 * E * H
    np.testing.assert_array_equal(trained.strata.weight.sum(1), [4 * E] * H)


def test_every_leaf_of_the_state_is_an_array_and_keeps_its_shape(algorithm, trained):
    before = algorithm.init(jax.random.key(0))
    shapes = lambda state: [(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(state)]  # noqa: E731
    assert shapes(before) == shapes(trained)
    assert jax.tree.structure(before) == jax.tree.structure(trained)


def test_an_update_is_a_pure_function_of_the_state(algorithm, trained):
    assert same(algorithm.update(trained), algorithm.update(trained))
    other = algorithm.update(algorithm.init(jax.random.key(1)))
    assert not np.array_equal(
        other.strata.action, algorithm.update(algorithm.init(jax.random.key(0))).strata.action
    )


def test_workers_change_nothing(algorithm, trained):
    two = Efficient(algorithm.sampler, replace(algorithm.config, workers=2))
    assert same(algorithm.update(trained), two.update(trained))


def test_the_fit_is_compiled_once_beside_the_first_episodes(monkeypatch):
    traced = []
    monkeypatch.setattr(efficient, "fit_level", lambda *args: traced.append(0) or fit_level(*args))
    config = EfficientConfig(strata=StrataConfig(rows=64, fit_rows=64))
    algorithm = Efficient(ScanSampler(CombinationLock(horizon=2, instance_seed=2)), config)
    state = algorithm.init(jax.random.key(0))
    algorithm.compile(state)
    assert len(traced) == 1
    state = algorithm.update(algorithm.update(state))
    assert int(state.levels_refit) == 3
    assert len(traced) == 1


class Blindfold:
    """A sampler that hides the latent states and leaves nothing else out."""

    def __init__(self, sampler):
        self.sampler = sampler
        self.pure = None
        self.optimal_return, self.knowledge = None, Knowledge()
        self.horizon, self.num_actions = sampler.horizon, sampler.num_actions
        self.observation_shape = sampler.observation_shape

    def rollout(self, policy, key, episodes, deviation=None):
        trajectories = self.sampler.rollout(policy, key, episodes, deviation)
        return replace(trajectories, latent=jnp.full_like(trajectories.latent, -1))


def test_latent_states_never_reach_the_learner(algorithm, trained):
    blind = Efficient(cast(Any, Blindfold(algorithm.sampler)), algorithm.config)
    one, two = algorithm.update(trained), blind.update(trained)
    assert np.isnan(two.reached_level)
    assert same(replace(one, reached_level=two.reached_level), two)


def test_labels_are_those_of_the_decoders_that_are_stored(trained):
    for h in range(H):
        decoder, after = (jax.tree.map(lambda leaf, i=i: leaf[i], trained.decoder) for i in (h, h + 1))
        filled = np.asarray(trained.strata.action[h]) >= 0
        label, following = (
            decoder.label(trained.strata.observation[h]),
            after.label(trained.strata.next_observation[h]),
        )
        np.testing.assert_array_equal(np.asarray(label)[filled], np.asarray(trained.strata.label[h])[filled])
        np.testing.assert_array_equal(
            np.asarray(following)[filled], np.asarray(trained.strata.next_label[h])[filled]
        )


def test_levels_are_fitted_when_their_data_grew(algorithm, trained):
    first = algorithm.collect(algorithm.init(jax.random.key(0)))
    assert algorithm.due(first) == []  # too few rows yet
    assert algorithm.due(algorithm.collect(first)) == list(range(H + 1))  # all for the first time
    grown = replace(trained, growth=jnp.zeros(H + 1).at[3].set(100.0).at[1].set(7.0))
    assert algorithm.due(grown) == [1, 3]
    fitted = algorithm.fit_levels(grown)
    np.testing.assert_array_equal(fitted.growth, 0.0)
    assert algorithm.metrics(fitted)["levels_refit"] == 2
    one = Efficient(
        algorithm.sampler, replace(algorithm.config, refit=replace(algorithm.config.refit, max_levels=1))
    )
    assert one.due(grown) == [3]


def train(environment, config: EfficientConfig, episodes: int, seed: int):
    """Train until five evaluations in a row are perfect, or the budget is used up."""
    algorithm = Efficient(ScanSampler(environment), config)
    state, streak, optimum = algorithm.init(jax.random.key(seed)), 0, environment.optimal_return
    while state.episodes < episodes and streak < 5:
        state = algorithm.update(state)
        key = jax.random.fold_in(jax.random.key(seed + 1), int(state.iteration))
        returns = evaluate(algorithm.sampler, algorithm.policy(state, "greedy"), key, 20)
        streak = streak + 1 if (returns >= optimum - 1e-5).all() else 0
    return algorithm, state, streak


def test_a_lock_is_opened_with_few_episodes_and_decoded(algorithm):
    lock = algorithm.sampler.pure
    algorithm, state, streak = train(lock, algorithm.config, episodes=900, seed=3)
    assert streak == 5
    for h in range(1, H):
        keys = jax.random.split(jax.random.key(h), 100)
        good, bad = (
            jax.vmap(lambda key, z=z, h=h: lock.emit(z, h, key))(keys) for z in (jnp.int32(0), jnp.int32(2))
        )
        psi_good, psi_bad = algorithm.decode(state, h, good), algorithm.decode(state, h, bad)
        np.testing.assert_allclose(psi_good.sum(1), 1.0, rtol=1e-5)
        assert not set(np.asarray(psi_good.argmax(1))) & set(np.asarray(psi_bad.argmax(1)))


def test_every_second_round_is_greedy_when_nothing_is_left_to_discover(algorithm, trained):
    explore = replace(algorithm.config.explore, settled=2.0)  # always
    one, two = Efficient(algorithm.sampler, replace(algorithm.config, explore=explore)), algorithm
    part = explore.episodes // explore.rounds
    rows = slice(int(trained.episodes), int(trained.episodes) + 2 * part)
    a, b = (np.asarray(each.collect(trained).strata.action[:, rows]) for each in (one, two))
    np.testing.assert_array_equal(a[:, :part], b[:, :part])
    assert not np.array_equal(a[:, part:], b[:, part:])


def test_what_a_round_tried_is_not_tried_again_in_the_next(algorithm):
    """At the last level, with one label and A actions, A rounds of one episode try all of them."""
    A = algorithm.sampler.num_actions
    explore = replace(algorithm.config.explore, episodes=A, rounds=A)
    careful = Efficient(algorithm.sampler, replace(algorithm.config, explore=explore))
    actions = np.asarray(careful.collect(careful.init(jax.random.key(0))).strata.action[-1, :A])
    assert np.unique(actions).size == A


def test_levels_from_where_nothing_is_to_be_discovered_do_not_grow(algorithm, trained):
    hopeless = trained.plan.discovery.at[3].set(0.0)
    state = replace(trained, plan=replace(trained.plan, discovery=hopeless), growth=jnp.zeros(H + 1))
    alike = replace(state, plan=replace(trained.plan, discovery=jnp.ones_like(hopeless)))
    weighted, plain = (algorithm.collect(s).growth for s in (state, alike))
    assert weighted[3] < plain[3]
    assert plain[1] > 0


def test_when_nothing_is_left_to_discover_every_level_grows_alike(algorithm, trained):
    """The rule `tries` comes to that: every cell was tried often enough."""
    nothing = replace(trained.plan, discovery=jnp.zeros_like(trained.plan.discovery), chance=jnp.float32(0))
    state = replace(trained, growth=jnp.zeros(H + 1))
    done, alike = (
        algorithm.collect(replace(state, plan=plan)).growth
        for plan in (nothing, replace(nothing, discovery=nothing.discovery + 1, chance=jnp.float32(1)))
    )
    np.testing.assert_array_equal(done, alike)
    assert (done > 0).all()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "latents", "episodes"),
    [({}, 3, 1800), ({"distractors": 20}, 3, 4000), ({}, 6, 2500), ({"noise": 0.2}, 3, 3000)],
)
def test_the_same_settings_open_harder_locks(arguments, latents, episodes):
    lock = CombinationLock(horizon=12, instance_seed=31, **arguments)
    _, _, streak = train(lock, EfficientConfig(num_latents=latents), episodes, seed=31)
    assert streak == 5


@pytest.mark.slow
@pytest.mark.parametrize("seed", [31, 32, 33])
def test_random_block_mdps_are_solved(seed):
    environment = RandomBlockMDP(horizon=8, num_latents=4, instance_seed=seed)
    algorithm, state, _ = train(environment, EfficientConfig(num_latents=4), 2500, seed)
    value = evaluate(algorithm.sampler, algorithm.policy(state, "greedy"), jax.random.key(9), 2000).mean()
    assert value >= 0.95 * environment.optimal_return


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
