"""The host sampler against the compiled one."""

from __future__ import annotations

import equinox as eqx
import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import chi2_contingency, ks_2samp

from briee.envs.adapters.episodic import EnvironmentStepError, EpisodicVector
from briee.envs.adapters.rich import RichObservation
from briee.envs.gym_shells import PureEnv, PureVectorEnv
from briee.envs.lock import CombinationLock
from briee.rollout.host import HostSampler, _keys
from briee.rollout.policies import UniformPolicy
from briee.rollout.samplers import ScanSampler, episode_keys
from countdown import Countdown

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
