"""Rollouts: what is collected, at which level, with which actions; evaluation changes no later number."""

import equinox as eqx
import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import chisquare

from briee.agent.agent import Agent
from briee.agent.loading import load
from briee.algorithms.efficient.config import EfficientConfig, StrataConfig
from briee.algorithms.paper.collection import all_rows, collect_deviations, deviation_steps
from briee.envs.lock import CombinationLock
from briee.rollout import samplers
from briee.rollout.policies import MixturePolicy, UniformPolicy
from briee.rollout.samplers import ScanSampler, chunk_size, deepest_good_level, evaluate
from briee.testing import QUIET, equal, some_observations, untimed

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


def new_agent() -> Agent:
    env = gym.make("briee/CombinationLock-v0", horizon=2, num_actions=3, instance_seed=2)
    return Agent(env, algo="efficient", config=EfficientConfig(strata=StrataConfig(rows=64, fit_rows=48)))


def test_load_evaluate_learn_equals_learn(tmp_path):
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
