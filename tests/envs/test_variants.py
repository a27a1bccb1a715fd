"""The lock's variants by argument, and random block MDPs."""

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
