"""Rollouts, compiled, of any environment, in worker processes: what is collected, where, which actions."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import chi2_contingency, chisquare, ks_2samp

from briee.agent.agent import Agent
from briee.agent.files import load
from briee.algorithms.efficient.config import EfficientConfig, StrataConfig
from briee.algorithms.paper.collection import all_rows, collect_deviations, deviation_steps
from briee.envs.adapters.episodic import EnvironmentStepError, EpisodicVector
from briee.envs.adapters.rich import RichObservation
from briee.envs.grids import ImageGrid, NoisyGrid
from briee.envs.gym_shells import PureEnv, PureVectorEnv
from briee.envs.lock import CombinationLock
from briee.rollout import samplers
from briee.rollout.host import HostSampler, _keys
from briee.rollout.policies import MixturePolicy, UniformPolicy
from briee.rollout.samplers import (
    ScanSampler,
    chunk_size,
    deepest_good_level,
    episode_keys,
    evaluate,
    make_sampler,
)
from briee.testing import QUIET, equal, some_observations, untimed
from countdown import Countdown

H = 4


class OraclePolicy(eqx.Module):
    """Plays the combination, by looking at the observation with the true decoder."""

    lock: CombinationLock

    def __call__(self, level, observation, key):
        latent = jnp.argmax(self.lock.ground_truth_features(level, observation))
        return self.lock.right_action(latent, level)


class Constant(eqx.Module):
    action: int = eqx.field(static=True)

    def __call__(self, level, observation, key):
        return jnp.int32(self.action)


@pytest.fixture(scope="module")
def sampler():
    return ScanSampler(CombinationLock(horizon=H, instance_seed=3))


def level_of(lock, observations):
    """The level an observation shows, by the inverse rotation."""
    rotated = observations @ np.asarray(lock.emission.basis)[0].T
    return np.argmax(rotated[..., 3:], axis=-1)


def test_the_right_combination_opens_the_lock_every_time(sampler):
    returns = evaluate(sampler, OraclePolicy(sampler.pure), jax.random.key(0), 50)
    np.testing.assert_array_equal(returns, 1.0)


def test_a_rollout_is_a_function_of_its_key(sampler):
    policy = UniformPolicy(10)
    first, again, other = (sampler.rollout(policy, jax.random.key(k), 8) for k in (1, 1, 2))
    assert jax.tree.all(jax.tree.map(lambda a, b: bool((a == b).all()), first, again))
    assert not bool((first.observation == other.observation).all())


def test_deviations_are_uniform_and_everything_else_is_the_policy(sampler):
    m = 500
    _, trajectories = collect_deviations(sampler, Constant(7), jax.random.key(0), m)
    action = np.asarray(trajectories.action).reshape(H, m, H)
    for d in range(H):
        for level in range(H):
            taken = action[d, :, level]
            if level in (d, d + 1):
                assert chisquare(np.bincount(taken, minlength=10)).pvalue > 1e-4
            else:
                assert (taken == 7).all()


def test_rows_have_the_right_level_count_and_origin(sampler):
    m = 20
    rows, trajectories = collect_deviations(sampler, OraclePolicy(sampler.pure), jax.random.key(0), m)
    assert rows.action.shape == (H, 2 * m)
    np.testing.assert_array_equal(rows.size, [m, 2 * m, 2 * m, 2 * m])
    np.testing.assert_array_equal(np.asarray(rows.on_policy).sum(axis=1), m)
    grouped = np.asarray(trajectories.observation).reshape(H, m, H + 1, -1)
    for h in range(H):
        np.testing.assert_array_equal(rows.observation[h, :m], grouped[h, :, h])  # D_h
        np.testing.assert_array_equal(rows.next_observation[h, :m], grouped[h, :, h + 1])
        if h > 0:
            np.testing.assert_array_equal(rows.observation[h, m:], grouped[h - 1, :, h])  # D'_h
        valid = np.asarray(rows.valid[h])
        assert (level_of(sampler.pure, np.asarray(rows.observation[h]))[valid] == h).all()
        assert (level_of(sampler.pure, np.asarray(rows.next_observation[h]))[valid] == h + 1).all()


def test_steps_count_until_the_second_deviation():
    assert deviation_steps(1, 50) == 50
    assert deviation_steps(3, 10) == 10 * (2 + 3 + 3)


def test_all_rows_are_the_transitions_by_level(sampler):
    trajectories = sampler.rollout(UniformPolicy(10), jax.random.key(5), 6)
    rows = all_rows(trajectories)
    assert rows.action.shape == (H, 6)
    np.testing.assert_array_equal(rows.observation[2], trajectories.observation[:, 2])
    np.testing.assert_array_equal(rows.next_observation[2], trajectories.observation[:, 3])
    np.testing.assert_array_equal(rows.reward[3], trajectories.reward[:, 3])


def test_deepest_good_level(sampler):
    opened = sampler.rollout(OraclePolicy(sampler.pure), jax.random.key(0), 3)
    assert deepest_good_level(sampler, opened) == H
    wrong = (int(sampler.pure.combination[0, 0]) + 1) % 10
    if wrong == int(sampler.pure.combination[0, 1]):
        wrong = (wrong + 1) % 10
    assert deepest_good_level(sampler, sampler.rollout(Constant(wrong), jax.random.key(0), 50)) == 0


class Tabled(eqx.Module):
    action: jax.Array

    def __call__(self, level, observation, key):
        return self.action


def test_a_mixture_draws_one_member_per_episode(sampler):
    mixture = MixturePolicy(Tabled(jnp.array([2, 5, 9])), jnp.int32(2))
    action = np.asarray(sampler.rollout(mixture, jax.random.key(0), 400).action)
    assert (action == action[:, :1]).all()
    assert set(action[:, 0]) == {2, 5}, "the third entry is not a member yet"
    assert 140 < (action[:, 0] == 2).sum() < 260


@pytest.mark.parametrize("deviate", [False, True])
def test_every_episode_has_keys_of_its_own_in_whichever_chunk_it_runs(monkeypatch, deviate):
    sampler = ScanSampler(CombinationLock(3, num_actions=3))
    deviation = jnp.arange(12, dtype=jnp.int32) % 3 if deviate else None
    whole = sampler.rollout(UniformPolicy(3), jax.random.key(4), 12, deviation)
    monkeypatch.setattr(samplers, "CHUNK", 4)
    chunks = sampler.rollout(UniformPolicy(3), jax.random.key(4), 12, deviation)
    for name in ("action", "reward", "latent"):
        np.testing.assert_array_equal(getattr(whole, name), getattr(chunks, name))
    np.testing.assert_allclose(whole.observation, chunks.observation, atol=1e-6)


def test_the_size_of_a_chunk_depends_on_the_number_of_episodes_alone(monkeypatch):
    lock, policy, key, sizes = CombinationLock(3, num_actions=3), UniformPolicy(3), jax.random.key(4), []
    run = samplers._scan_few
    monkeypatch.setattr(samplers, "_scan_few", lambda *args: sizes.append(args[3]) or run(*args))
    one, two = ScanSampler(lock), ScanSampler(lock)
    one.rollout(policy, key, 4)
    first, second = one.rollout(policy, key, 20), two.rollout(policy, key, 20)
    np.testing.assert_array_equal(first.observation, second.observation)
    assert sizes == [4, 5, 5, 5, 5, 5, 5, 5, 5]
    assert [chunk_size(n) for n in (5, 12, 40, 45, 999, 1000, 1100)] == [5, 12, 5, 45, 999, 500, 367]


UPDATES = 2


SMALL = EfficientConfig(strata=StrataConfig(rows=64, fit_rows=48))


@pytest.mark.parametrize("config", [None, pytest.param(SMALL, marks=pytest.mark.slow)])
def test_load_evaluate_learn_equals_learn(config, tmp_path):
    def new_agent() -> Agent:
        env = gym.make("briee/CombinationLock-v0", horizon=2, num_actions=3, instance_seed=2)
        return Agent(env, config=config)

    at_once = new_agent().learn(iterations=2 * UPDATES, **QUIET)
    new_agent().learn(iterations=UPDATES, **QUIET).save(tmp_path / "half.briee")
    loaded = load(tmp_path / "half.briee")
    actions = loaded.predict(some_observations(loaded, 50)[1], 1)
    assert len(np.unique(actions)) > 1, "the policy must depend on the observation to show anything"
    for episodes in (7, 20, 100):
        loaded.evaluate(episodes)
    loaded.learn(iterations=UPDATES, **QUIET)
    assert equal(loaded.state, at_once.state)
    assert untimed(loaded) == untimed(at_once)


LOCK = CombinationLock(4, num_actions=3, instance_seed=5)


class LinearPolicy(eqx.Module):
    """Looks at the level and the observation."""

    weights: jax.Array

    def __call__(self, level, observation, key):
        noise = jax.random.gumbel(key, (self.weights.shape[0],))
        return jnp.argmax(self.weights @ observation * (level + 1) + noise).astype(jnp.int32)


POLICY = LinearPolicy(jnp.asarray(np.random.default_rng(0).normal(size=(3, 8)), jnp.float32))


@pytest.mark.parametrize(("num_envs", "deviate"), [(4, False), (4, True)])
def test_same_keys_same_data_as_the_compiled_scan(num_envs, deviate):
    deviation = jnp.arange(10, dtype=jnp.int32) % 4 if deviate else None
    scan = ScanSampler(LOCK).rollout(POLICY, jax.random.key(3), 10, deviation)
    host = HostSampler(PureVectorEnv(LOCK, num_envs)).rollout(POLICY, jax.random.key(3), 10, deviation)
    # What follows the second uniform action does not count.
    ends = np.full(10, 4) if deviation is None else np.minimum(np.asarray(deviation) + 2, 4)
    for episode, end in enumerate(ends):
        for name, last in (("action", end), ("reward", end), ("latent", end + 1)):
            one, other = (np.asarray(getattr(data, name))[episode, :last] for data in (scan, host))
            np.testing.assert_array_equal(one, other, err_msg=name)
        np.testing.assert_allclose(
            scan.observation[episode, : end + 1], host.observation[episode, : end + 1], rtol=1e-6, atol=1e-6
        )
    assert jax.tree.map(jnp.shape, scan) == jax.tree.map(jnp.shape, host)
    assert jax.tree.map(lambda x: x.dtype, scan) == jax.tree.map(lambda x: x.dtype, host)


@pytest.mark.parametrize("partitionable", [True, False])
def test_keys_are_those_of_the_compiled_scan(partitionable):
    """However JAX splits keys."""
    with jax.threefry_partitionable(partitionable):
        *keys, seeds = _keys(jax.random.key(3), 7)
        expected = jax.random.key_data(episode_keys(jax.random.key(3), jnp.arange(7)))
        np.testing.assert_array_equal(keys, expected)
        assert len(np.unique(seeds)) == 7


def test_same_distribution_through_foreign_seeds():
    """Through scalar shells the host draws with other seeds: p > 1e-4 for each of 9 statistics.

    A correct sampler fails with probability below 1e-3; the keys are fixed, so it does not fail now and then.
    """
    n = 1000
    scan = ScanSampler(LOCK).rollout(UniformPolicy(3), jax.random.key(1), n)
    shells = gym.vector.SyncVectorEnv([lambda: PureEnv(LOCK)] * 50)
    host = HostSampler(shells).rollout(UniformPolicy(3), jax.random.key(2), n)

    def p_of_counts(one, other):
        values = np.unique(np.concatenate([one, other]))
        return chi2_contingency([[np.sum(x == v) for v in values] for x in (one, other)])[1]

    p_values = []
    for level in range(1, 4):
        path = [np.asarray(d.latent)[:, level] * 3 + np.asarray(d.action)[:, level] for d in (scan, host)]
        p_values.append(p_of_counts(*path))
        p_values.append(p_of_counts(*(np.asarray(d.reward)[:, level] for d in (scan, host))))
        one, other = (np.asarray(d.observation)[:, level, level] for d in (scan, host))
        p_values.append(ks_2samp(one, other)[1])
    assert min(p_values) > 1e-4, p_values


def test_a_call_is_a_function_of_policy_and_key_alone():
    def sampler(num_envs):
        envs = gym.make_vec(
            "FrozenLake-v1", num_envs=num_envs, vectorization_mode="sync", wrappers=[RichObservation]
        )
        return HostSampler(envs, 10)

    one = sampler(3)
    first = one.rollout(UniformPolicy(4), jax.random.key(0), 8)
    other = one.rollout(UniformPolicy(4), jax.random.key(1), 8)
    again = one.rollout(UniformPolicy(4), jax.random.key(0), 8)
    wider = sampler(5).rollout(UniformPolicy(4), jax.random.key(0), 8)
    assert eqx.tree_equal(first, again)
    assert eqx.tree_equal(first, wider)
    assert not eqx.tree_equal(first, other)


def test_early_ends_and_unknown_latents():
    data = HostSampler(Countdown(2), 4).rollout(UniformPolicy(2), jax.random.key(0), 3)
    assert data.observation.shape == (3, 5, 3)
    np.testing.assert_array_equal(data.observation[0, :, -1], [0, 0, 0, 1, 1])
    np.testing.assert_array_equal(data.reward, [[1, 1, 0, 0]] * 3)
    assert (np.asarray(data.latent) == -1).all()


def test_latents_of_rich_observations_are_kept_up_to_the_end():
    env = RichObservation(gym.make("FrozenLake-v1", is_slippery=False))
    sampler = HostSampler(env, 12)
    assert sampler.optimal_return == 1.0
    data = sampler.rollout(UniformPolicy(4), jax.random.key(0), 30)
    latent, over = np.asarray(data.latent), np.asarray(data.observation[..., -1]) == 1
    assert (latent[over] == -1).all()
    assert (latent[~over] >= 0).all()
    assert over.any()


def test_attributes():
    sampler = HostSampler(gym.make_vec("CartPole-v1", num_envs=2), 20)
    assert (sampler.horizon, sampler.num_actions, sampler.observation_shape) == (20, 2, (5,))
    assert sampler.optimal_return is None
    assert sampler.pure is None
    assert HostSampler(gym.make_vec("CartPole-v1", num_envs=2), 20, optimal_return=20.0).optimal_return == 20
    wrapped = EpisodicVector(gym.make_vec("briee/CombinationLock-v0", num_envs=2))
    assert HostSampler(wrapped).observation_shape == (17,)
    assert HostSampler(PureVectorEnv(LOCK, 2)).pure is LOCK


def test_a_raising_environment_names_itself_and_the_step():
    envs = gym.vector.SyncVectorEnv([lambda: Countdown(9, fault="raise", fault_step=3)] * 2)
    with pytest.raises(EnvironmentStepError, match="failed at step 3: OSError: the sensor is unplugged"):
        HostSampler(envs, 5).rollout(UniformPolicy(2), jax.random.key(0), 4)


class Always:
    """A policy that also has a form in NumPy, which counts how often it was asked."""

    def __init__(self, action: int):
        self.action, self.levels = action, []

    def __call__(self, level, observation, key):
        raise AssertionError("the compiled form was asked")

    def on_host(self, rng: np.random.Generator):
        def act(level: int, observation: np.ndarray) -> np.ndarray:
            self.levels.append((level, len(observation)))
            return np.full(len(observation), self.action)

        return act


def test_the_form_in_numpy_is_asked_for_the_episodes_that_are_kept():
    vector = gym.vector.SyncVectorEnv([lambda: NoisyGrid(size=3)] * 4)
    policy: Any = Always(2)
    data = HostSampler(vector).rollout(policy, jax.random.key(0), 6)
    assert policy.levels == [(h, 4) for h in range(6)] + [(h, 2) for h in range(6)]
    assert (np.asarray(data.action) == 2).all()


def test_deviations_replace_the_actions_of_the_form_in_numpy():
    vector = gym.vector.SyncVectorEnv([lambda: NoisyGrid(size=3)] * 8)
    deviation: Any = jax.numpy.array([0, 1, 2, 3] * 10)
    policy: Any = Always(3)
    data = HostSampler(vector).rollout(policy, jax.random.key(0), 40, deviation, whole=True)
    action, level = np.asarray(data.action), np.arange(6)
    deviates = (level == deviation[:, None]) | (level == deviation[:, None] + 1)
    assert (action[~deviates] == 3).all()
    counts = np.bincount(action[deviates], minlength=4)
    assert counts.min() > 8  # 80 uniform draws


def test_only_the_copies_that_are_needed_are_reset():
    copies = [NoisyGrid(size=3) for _ in range(6)]
    resets = np.zeros(6, int)

    class Counted(gym.Wrapper):
        def __init__(self, index: int):
            super().__init__(copies[index])
            self.index = index

        def reset(self, **kwargs):
            resets[self.index] += 1
            return super().reset(**kwargs)

    sampler = HostSampler(gym.vector.SyncVectorEnv([lambda i=i: Counted(i) for i in range(6)]))
    resets[:] = 0
    sampler.rollout(UniformPolicy(4), jax.random.key(0), 2)
    assert resets.tolist() == [1, 1, 0, 0, 0, 0]


def test_images_and_vectors_of_the_grids_fit_their_spaces():
    for env in (NoisyGrid(), ImageGrid()):
        seen, _ = env.reset(seed=1)
        assert env.observation_space.contains(seen)
        for action in (0, 2) * (env.size - 1):
            seen, reward, over, _, _ = env.step(action)
        assert (reward, over) == (1.0, True)
        assert env.observation_space.contains(seen)


@pytest.mark.parametrize(
    ("env", "workers", "why"),
    [("lock", 5, "compiled, not stepped in processes"), ("grids/Noisy-v0", 2, "at least 5 workers, got 2")],
)
def test_workers_that_do_not_fit_are_one_sentence(env, workers, why):
    with pytest.raises(ValueError, match=why):
        make_sampler(env, None, {}, env_workers=workers)


@pytest.mark.slow
def test_workers_change_no_number():
    here = make_sampler("grids/Noisy-v0", None, {"size": 3})
    there = make_sampler("grids/Noisy-v0", None, {"size": 3}, env_workers=5)
    assert (here.horizon, here.optimal_return) == (there.horizon, there.optimal_return)
    one, two = (sampler.rollout(UniformPolicy(4), jax.random.key(3), 12) for sampler in (here, there))
    jax.tree.map(np.testing.assert_array_equal, one, two)
    there.close()  # type: ignore[union-attr]
