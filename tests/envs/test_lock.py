"""The combination lock against its definition in Section 5 of the paper."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from briee import envs
from briee.envs.lock import CombinationLock


def test_observation_dimension_is_the_papers():
    dims = {h: CombinationLock(h).observation_shape[0] for h in (1, 4, 6, 12, 13, 25, 50, 100)}
    assert dims == {1: 8, 4: 8, 6: 16, 12: 16, 13: 32, 25: 32, 50: 64, 100: 128}


def test_combination_depends_on_the_instance_seed_alone():
    one, same, other = (CombinationLock(20, instance_seed=s) for s in (1, 1, 2))
    assert (np.asarray(one.combination) == np.asarray(same.combination)).all()
    assert (np.asarray(one.combination) != np.asarray(other.combination)).any()
    wide = np.asarray(CombinationLock(2000, instance_seed=3, noise=0.0).combination[:, :2])
    assert set(wide.ravel()) == set(range(10))
    assert abs((wide[:, 0] == wide[:, 1]).mean() - 0.1) < 0.04


def test_another_instance_does_not_recompile():
    traces = []

    @jax.jit
    def first(pure, key):
        traces.append(1)
        return pure.initial(key).latent

    first(CombinationLock(6, instance_seed=1), jax.random.key(0))
    first(CombinationLock(6, instance_seed=2), jax.random.key(0))
    assert len(traces) == 1


def test_start_is_uniform_over_the_good_lanes(roll, policies, assert_frequency):
    data = roll(CombinationLock(4, num_actions=3, switch_probability=0.1), policies["uniform"], 20_000)
    assert set(np.unique(data.latent[:, 0])) == {0, 1}
    assert_frequency(data.latent[:, 0] == 0, 0.5)


@pytest.mark.parametrize("switch", [0.5, 0.2])
def test_transition_frequencies(roll, policies, assert_frequency, switch):
    lock = CombinationLock(4, num_actions=3, switch_probability=switch, instance_seed=4)
    data = roll(lock, policies["uniform"], 20_000)
    combination = np.asarray(lock.combination)
    for level in range(4):
        here, after, action = data.latent[:, level], data.latent[:, level + 1], data.action[:, level]
        right = (here < 2) & (action == combination[level, here])
        assert (after[~right] == 2).all()
        assert (after[right] < 2).all()
        if right.sum() > 200:
            assert_frequency(after[right] != here[right], switch)
            for lane in (0, 1):
                if (right & (here == lane)).sum() > 200:
                    assert_frequency(after[right & (here == lane)] != lane, switch)


def test_rewards_of_the_sparse_lock(roll, policies, assert_frequency):
    lock = CombinationLock(4, num_actions=3, instance_seed=1)
    data = roll(lock, policies["uniform"], 20_000)
    before, after = data.latent[:, :-1] < 2, data.latent[:, 1:] < 2
    fell = before & ~after
    assert set(np.unique(data.reward[fell])) == {0.0, np.float32(0.1)}
    assert_frequency(data.reward[fell] > 0, 0.5)
    assert (data.reward[:, :-1][after[:, :-1]] == 0).all()
    assert (data.reward[:, -1][after[:, -1]] == 1).all()
    assert (data.reward[~before & ~after] == 0).all()
    assert not data.terminal[:, :-1].any()
    assert data.terminal[:, -1].all()


def test_rewards_of_the_dense_lock(roll, policies):
    lock = envs.make("lock-dense", horizon=4, num_actions=2)
    data = roll(lock, policies["uniform"], 2_000)
    after = data.latent[:, 1:] < 2
    expected = np.where(after, [0.1, 0.1, 0.1, 1.0], 0.0)
    np.testing.assert_array_equal(data.reward, expected.astype(np.float32))


def test_simplex_lock_resamples_the_latent_from_the_observation(roll, policies, assert_frequency):
    lock = envs.make("lock-simplex", horizon=6, num_actions=2, temperature=0.6)
    data = roll(lock, policies["uniform"], 20_000)
    features = jax.jit(jax.vmap(jax.vmap(lock.ground_truth_features), (None, 0)))
    weights = features(jnp.arange(6), data.observation[:, :-1])
    source = data.source[:, 1:]
    # Calibration: among steps whose weight lies in a bin, the latent is that often the one acted on.
    for latent in range(3):
        w = np.asarray(weights[..., latent])
        hits = source == latent
        for low in (0.0, 0.2, 0.4, 0.6):
            inside = (w >= low) & (w < low + 0.2)
            if inside.sum() > 2_000:
                assert_frequency(hits[inside], float(w[inside].mean()))
    right = (data.action == np.asarray(lock.combination)[np.arange(6), source]) & (source < 2)
    assert ((data.latent[:, 1:] < 2) == right).all()
    fell = (source < 2) & ~right
    assert_frequency(data.reward[fell] > 0.05, 0.5)
    assert (data.reward[(source == 2)] == 0).all()


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"noise_coordinates": "first"},
        {"rotation": "per_level"},
        {"distractors": 5, "distractor_std": 3.0},
        {"num_good": 4, "rare_probability": 0.1},
    ],
)
def test_inverse_rotation_recovers_latent_level_and_noise(arguments):
    lock: Any = CombinationLock(6, noise=0.1, instance_seed=2, **arguments)
    latents = jnp.arange(lock.num_latents)
    levels = jnp.arange(7)
    keys = jax.random.split(jax.random.key(0), 400)

    def coordinates(level, observation):  # R_h⁻¹ s, the vectors before the rotation
        basis = lock.emission.basis
        return basis[level if len(basis) > 1 else 0] @ observation / len(observation)

    @jax.jit
    def emit_and_invert(lock):
        emit = jax.vmap(jax.vmap(jax.vmap(lock.emit, (None, None, 0)), (None, 0, None)), (0, None, None))
        observation = emit(latents, levels, keys)  # [Z, 7, 400, dim]
        decoders = (coordinates, lock.ground_truth_features)
        return [jax.vmap(jax.vmap(jax.vmap(f, (None, 0))), (None, 0))(levels, observation) for f in decoders]

    inverted, decoded = (np.asarray(x) for x in emit_and_invert(lock))
    Z = lock.num_latents
    truth = np.zeros((Z, 7, 1, inverted.shape[-1]), np.float32)
    truth[np.arange(Z), :, 0, np.arange(Z)] = 1
    truth[:, np.arange(7), 0, Z + np.arange(7)] = 1
    error = inverted - truth
    std = np.asarray(lock.emission.std)
    samples = 400  # the same noise for every (latent, level)
    # Six standard errors of a mean and of a standard deviation: false alarm below 1e-7 per coordinate.
    assert (np.abs(error.mean(axis=(0, 1, 2))) <= 6 * std / np.sqrt(samples) + 1e-5).all()
    assert (np.abs(error.std(axis=(0, 1, 2)) - std) <= 6 * std / np.sqrt(2 * samples) + 1e-5).all()
    assert (decoded.argmax(-1) == np.arange(Z)[:, None, None]).all()


def test_noise_is_bounded_as_the_observation_space_says():
    lowest = jnp.nextafter(jnp.float32(-1), jnp.float32(0))
    extreme = float(jnp.sqrt(2.0) * jax.lax.erf_inv(lowest))
    assert -envs.emission.NORMAL_BOUND < extreme < -5


def test_dense_optimum_is_the_papers():
    assert envs.make("lock-dense").optimal_return == pytest.approx(3.9, abs=1e-9)


@pytest.mark.parametrize("name", ["lock", "lock-dense"])
def test_optimal_return_equals_the_right_policys(roll, policies, name):
    lock = envs.make(name, horizon=8)
    data = roll(lock, policies["right"], 200)
    np.testing.assert_allclose(data.reward.sum(axis=1), lock.optimal_return, rtol=1e-5)


def test_simplex_optimum_equals_the_monte_carlo_return_of_its_policy(roll):
    lock = envs.make("lock-simplex", horizon=30, instance_seed=1)
    q = jnp.asarray(lock.latent_model().q_values(lock.noise_features()), jnp.float32)

    def optimal(pure, state, observation, key):
        return jnp.argmax(pure.ground_truth_features(state.level, observation) @ q[state.level])

    returns = roll(lock, optimal, 20_000).reward.sum(axis=1)
    five_errors = 5 * returns.std() / np.sqrt(returns.size)
    assert abs(returns.mean() - lock.optimal_return) < five_errors


@pytest.mark.parametrize("instance_seed", [0, 1, 12])
def test_simplex_optimum_counts_the_way_back_from_the_bad_state(instance_seed):
    """The latent state is resampled in the bad state too, once in about 60 steps to a good lane; without that
    way back the optimum would be lower by 0.05."""
    lock = envs.make("lock-simplex", horizon=30, instance_seed=instance_seed)
    features = lock.noise_features()
    assert features is not None
    assert 0.66 < lock.optimal_return < 0.71
    assert 0.015 < 1 - features[2, :, 2].mean() < 0.02
    features[2] = np.eye(3)[2]
    assert 0.61 < lock.latent_model().optimal_return(features) < 0.65


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"horizon": 0}, "horizon must be >= 1, got 0"),
        ({"num_actions": 1}, "num_actions must be >= 2, got 1"),
        ({"noise": -0.1}, "noise must be >= 0, got -0.1"),
        ({"switch_probability": 1.5}, r"switch_probability must be in \[0, 1\], got 1.5"),
        ({"anti_reward_probability": -1}, r"anti_reward_probability must be in \[0, 1\], got -1"),
        ({"failure_probability": float("nan")}, "failure_probability must be a finite number, got nan"),
        ({"rare_probability": 2}, r"rare_probability must be in \[0, 1\], got 2"),
        ({"final_reward": float("inf")}, "final_reward must be a finite number, got inf"),
        ({"temperature": 0.0}, "temperature must be > 0, got 0.0"),
        ({"noise_coordinates": "some"}, "noise_coordinates must be 'all' or 'first', got 'some'"),
        (
            {"rotation": "none"},
            "'stationary' or 'per_level' for emission='vector', got 'none'",
        ),
        ({"emission": "sound"}, "emission must be 'vector', .* or 'image', got 'sound'"),
        ({"instance_seed": -1}, "instance_seed must be >= 0, got -1"),
        ({"num_good": 0}, "num_good must be >= 1, got 0"),
        ({"distractors": -1}, "distractors must be >= 0, got -1"),
        ({"colour": "red"}, "'lock' has no argument 'colour'"),
    ],
)
def test_bad_arguments_get_a_sentence(arguments, sentence):
    with pytest.raises(ValueError, match=sentence):
        envs.make("lock", **arguments)
