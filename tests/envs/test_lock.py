"""The lock against its definition in Section 5 of the paper; its variants by argument; random block MDPs."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from briee import envs
from briee.envs.emission import decodability
from briee.envs.lock import CombinationLock
from briee.envs.random_block import RandomBlockMDP


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


def optimal_latent_policy(q):
    """The optimal policy of the latent model, told the latent state."""
    q = jnp.asarray(q, jnp.float32)
    return lambda pure, state, observation, key: jnp.argmax(q[state.level, state.latent])


def assert_monte_carlo_agrees(roll, pure, episodes=20_000):
    """The optimal latent policy earns `optimal_return`, within five standard errors (false alarm < 1e-6)."""
    policy = optimal_latent_policy(pure.latent_model().q_values())
    data = roll(pure, policy, episodes)
    returns = data.reward.sum(axis=1)
    bound = 5 * returns.std() / np.sqrt(episodes) + 1e-4
    assert abs(returns.mean() - pure.optimal_return) <= bound
    return data


@pytest.mark.parametrize("horizon", [2, 6, 25])
def test_homer_rewards_have_their_published_optimum(horizon):
    assert envs.make("lock-homer", horizon=horizon).optimal_return == pytest.approx(4.0)


def test_all_the_variants_at_once_follow_their_latent_model(roll, policies, assert_frequency):
    lock = CombinationLock(
        4, 3, num_good=3, rare_probability=0.1, failure_probability=0.2, switch_probability=0.6, distractors=3
    )
    data = assert_monte_carlo_agrees(roll, lock)
    model = lock.latent_model()
    np.testing.assert_allclose(model.transition.sum(axis=-1), 1.0)
    for level in range(4):
        for latent in range(lock.num_latents):
            here = data.latent[:, level] == latent
            if here.sum() < 500:
                continue
            action = data.action[here, level]
            assert (action == action[0]).all()
            for target in range(lock.num_latents):
                probability = model.transition[level, latent, action[0], target]
                assert_frequency(data.latent[here, level + 1] == target, probability)
    assert (data.latent == 4).any(), "the rare lane is reached"
    assert lock.good(jnp.arange(5)).tolist() == [True, True, True, False, True]


def test_a_lane_of_probability_zero_is_never_entered(roll, policies):
    lock = CombinationLock(5, 2, rare_probability=0.0)
    data = roll(lock, policies["right"], 20_000)
    assert lock.num_latents == 4
    assert set(np.unique(data.latent)) == {0, 1}
    assert not lock.latent_model().reachable()[:, 3].any()
    assert lock.optimal_return == 1.0


def test_failure_lowers_the_optimum_geometrically():
    lock = CombinationLock(5, failure_probability=0.1, anti_reward=0.0)
    assert lock.optimal_return == pytest.approx(0.9**5, rel=1e-6)
    assert lock.latent_model().sure_return() == 0.0


def test_locks_without_failures_are_sure_to_open():
    for lock in (CombinationLock(5), CombinationLock(5, num_good=3), CombinationLock(5, step_reward=0.1)):
        assert lock.latent_model().sure_return() == pytest.approx(lock.optimal_return)


def test_one_lane_has_no_coin():
    model = CombinationLock(3, 2, num_good=1).latent_model()
    assert set(np.unique(model.transition)) == {0.0, 1.0}


def test_a_lucrative_fall_is_taken_into_account():
    """Anti-shaped reward above the final one: the optimum falls on purpose."""
    assert CombinationLock(3, 2, anti_reward=4.0).optimal_return == pytest.approx(2.0)


def test_rotations_per_level_differ_and_stationary_ones_do_not():
    per_level: Any = CombinationLock(4, rotation="per_level", noise=0.0)
    stationary: Any = CombinationLock(4, noise=0.0)
    key = jax.random.key(0)
    # Without its level part, a stationary observation of a latent state is the same at every level.
    basis = np.asarray(stationary.emission.basis[0])
    emit = jax.jit(lambda level: stationary.emit(0, level, key))
    plain = [np.asarray(emit(h)) - basis[3 + h] for h in range(5)]
    assert all((p == plain[0]).all() for p in plain)
    matrices = np.asarray(per_level.emission.basis)
    assert matrices.shape == (5, 8, 8)
    assert all((matrices[0] != m).any() for m in matrices[1:])
    gram = matrices @ matrices.transpose(0, 2, 1)
    np.testing.assert_allclose(gram, np.broadcast_to(8 * np.eye(8), gram.shape), atol=1e-4)


def test_images_show_several_templates_and_stay_decodable():
    lock = CombinationLock(3, emission="image", noise=0.3, rotation="per_level", templates=5)
    assert lock.observation_shape == (28, 28, 1)
    keys = jax.random.split(jax.random.key(0), 100)
    quiet = CombinationLock(3, emission="image", noise=0.0, rotation="per_level", templates=5)
    images = np.asarray(jax.jit(jax.vmap(lambda k: quiet.emit(0, 1, k)))(keys))
    assert len(np.unique(images, axis=0)) == 5
    noisy = np.asarray(jax.jit(jax.vmap(lambda k: lock.emit(0, 1, k)))(keys))
    assert noisy.min() >= 0
    assert noisy.max() <= 1
    assert decodability(lock.emission, level=2) == 1.0


def test_decodability_falls_with_the_noise():
    assert decodability(CombinationLock(3, noise=0.1).emission) == 1.0
    assert decodability(CombinationLock(3, noise=2.0).emission) < 0.8


def test_the_simplex_lock_refuses_images():
    with pytest.raises(ValueError, match="needs emission='vector'"):
        CombinationLock(3, temperature=0.2, emission="image")


@pytest.mark.parametrize("seed", [0, 1])
def test_random_block_mdp_follows_its_tables(roll, policies, assert_frequency, seed):
    pure = RandomBlockMDP(4, num_latents=4, num_actions=3, instance_seed=seed)
    model = pure.latent_model()
    reachable = model.reachable()
    assert not reachable.all(axis=1).any(), "one latent state of each level is out of reach"
    data = roll(pure, policies["uniform"], 20_000)
    for level in range(5):
        assert set(np.unique(data.latent[:, level])) <= set(np.flatnonzero(reachable[level]))
    for level in range(4):
        for latent in np.flatnonzero(reachable[level]):
            for action in range(3):
                here = (data.latent[:, level] == latent) & (data.action[:, level] == action)
                np.testing.assert_array_equal(
                    data.reward[here, level], np.float32(model.reward[level, latent, action])
                )
                if here.sum() > 500:
                    for target in range(4):
                        probability = model.transition[level, latent, action, target]
                        assert_frequency(data.latent[here, level + 1] == target, probability)
    assert (data.reward[:, :2] == 0).all(), "rewards come late"


def test_random_block_mdp_optimum_and_decoding(roll):
    pure = RandomBlockMDP(6, num_latents=6, instance_seed=3)
    data = assert_monte_carlo_agrees(roll, pure)
    decode = jax.jit(jax.vmap(pure.ground_truth_features, (None, 0)))
    for level in range(7):
        features = decode(level, data.observation[:200, level])
        assert (np.asarray(features).argmax(axis=1) == data.latent[:200, level]).all()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"horizon": 0}, "horizon must be >= 1, got 0"),
        ({"num_latents": 0}, "num_latents must be >= 1, got 0"),
        ({"unreachable": 4}, r"unreachable must be in \[0, num_latents\) = \[0, 4\), got 4"),
        ({"instance_seed": -3}, "instance_seed must be >= 0, got -3"),
    ],
)
def test_bad_random_blocks_get_a_sentence(arguments, sentence):
    with pytest.raises(ValueError, match=sentence):
        envs.make("random-block", **arguments)
