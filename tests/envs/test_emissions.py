"""Emissions that are not blobs after a linear map, exogenous coordinates and heavy tails."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from briee import envs
from briee.envs.block import confusion
from briee.envs.emission import IMAGES, KINDS, decodability, draw_noise, noise_bound
from briee.envs.emission_images import digit_images
from briee.envs.emission_kinds import RolesEmission, draw_roles
from briee.envs.lock import CombinationLock
from briee.envs.random_block import RandomBlockMDP
from briee.protocols import Knowledge
from briee.rollout.policies import UniformPolicy
from briee.rollout.samplers import ScanSampler, evaluate

SHAPES = {"vector": (16,), "modes": (20,), "rings": (12,), "network": (20,)} | {
    "digits": (8, 8, 1),
    "shapes": (12, 12, 1),
    "image": (28, 28, 1),
}


def emitted(pure: Any, latent: int, level: int, samples: int = 300) -> np.ndarray:
    """Observations of one latent state."""
    keys = jax.random.split(jax.random.key(5), samples)
    return np.asarray(jax.jit(jax.vmap(lambda key: pure.emit(latent, level, key)))(keys))


def test_vectors_are_what_they_were():
    """The default emission, from its formula and the keys of an episode."""
    lock: Any = CombinationLock(6, instance_seed=3)
    key = jax.random.key(11)
    state = lock.initial(key)
    basis, (_, noise) = lock.emission.basis[0], jax.random.split(key)
    expected = (
        basis[state.latent] + basis[3] + jnp.sqrt(jnp.float32(16)) * 0.1 * jax.random.normal(noise, (16,))
    )
    assert (state.emission == expected).all()
    assert state.exogenous is None
    following = lock.transition(state, jnp.int32(2), key)
    noise = jax.random.split(key, 3)[2]
    expected = (
        basis[following.latent] + basis[4] + jnp.sqrt(jnp.float32(16)) * 0.1 * jax.random.normal(noise, (16,))
    )
    assert (following.emission == expected).all()


@pytest.mark.parametrize("kind", KINDS)
def test_every_emission_of_the_lock_can_be_decoded(kind):
    lock: Any = CombinationLock(5, 3, emission=kind, instance_seed=2)
    assert lock.observation_shape == SHAPES[kind]
    assert lock.optimal_return == 1.0
    assert decodability(lock.emission, level=3, samples=100) >= 0.99
    assert type(lock.emission) is type(RandomBlockMDP(2, 3, emission=kind).emission)


def test_a_state_has_several_modes_and_a_shape_moves():
    modes = emitted(CombinationLock(2, 3, emission="modes", noise=0.0, modes=4), 1, 1)
    assert len(np.unique(modes, axis=0)) == 4
    shapes = emitted(CombinationLock(2, 3, emission="shapes", noise=0.0), 1, 1, 2_000)
    assert len(np.unique(shapes, axis=0)) == 100
    assert len(np.unique(shapes.sum(axis=(1, 2, 3)))) == 1


def test_no_linear_map_tells_rings_apart():
    lock: Any = CombinationLock(2, 3, emission="rings", instance_seed=1)
    rows = [emitted(lock, latent, 1) for latent in range(3)]
    train, test = (np.concatenate([part[half] for part in rows]) for half in (slice(150), slice(150, None)))
    target = np.repeat(np.eye(3), 150, axis=0)
    weights = np.linalg.lstsq(train, target, rcond=None)[0]
    assert ((test @ weights).argmax(1) == target.argmax(1)).mean() < 0.45, "their means are all zero"
    radius = np.linalg.norm(rows[0] @ np.asarray(lock.emission.basis[0]).T[:, :3], axis=1)
    assert abs(radius.mean() - 1.0 - int(lock.emission.roles[1, 0])) < 0.03
    assert abs(radius.std() - 0.1) < 0.02


def test_levels_share_what_the_rotation_says():
    rng = np.random.default_rng(0)
    assert draw_roles(rng, "stationary", 9, 3, 10).shape == (1, 3)
    permuted = np.asarray(draw_roles(rng, "permuted", 9, 3, 10))
    own = np.asarray(draw_roles(rng, "per_level", 9, 3, 10))
    assert permuted.shape == own.shape == (9, 3)
    assert all(set(row) == set(permuted[0]) for row in permuted)
    assert len({frozenset(row) for row in own.tolist()}) > 3
    assert len({tuple(row) for row in permuted.tolist()}) > 1
    shared: Any = CombinationLock(4, emission="network")
    apart: Any = CombinationLock(4, emission="network", rotation="per_level")
    assert shared.emission.network.first.shape[0] == 1
    assert apart.emission.network.first.shape[0] == 5
    assert (apart.emission.network.first[0] != apart.emission.network.first[1]).all()


def test_episodes_are_determined_by_seed_and_instance():
    for kind in ("modes", "shapes"):
        one, same, other = (CombinationLock(3, 3, emission=kind, instance_seed=s) for s in (1, 1, 2))
        first, again, another = (emitted(lock, 0, 2, 20) for lock in (one, same, other))
        assert (first == again).all()
        assert (first != another).any()


def test_evaluation_shows_other_digits():
    images = digit_images()
    assert images.shape == (2, 10, 87, 8, 8)
    assert len(np.unique(images.reshape(-1, 64), axis=0)) == 1740, "no image is in both halves"
    lock: Any = CombinationLock(3, 3, emission="digits", instance_seed=4)
    apart = lock.held_out
    for pure, half in ((lock, 0), (apart, 1)):
        digit = int(lock.emission.roles[2, 1])
        known = {image.tobytes() for image in images[half, digit]}
        shown = {image.tobytes() for image in emitted(pure, 1, 2)[..., 0]}
        assert shown <= known
        assert len(shown) > 60
    assert decodability(apart.emission, level=2, samples=50) == 1.0
    asked: Any = CombinationLock(3, 3, emission="digits", instance_seed=4, held_out=True)
    assert int(asked.emission.half) == 1
    assert CombinationLock(3, 3, emission="shapes").held_out is None


def test_evaluate_plays_the_environment_held_out():
    sampler = ScanSampler(CombinationLock(2, 2, emission="digits", anti_reward=0.0))
    other = CombinationLock(2, 2, emission="digits", anti_reward=0.0, final_reward=7.0)
    sampler._knowledge = Knowledge(held_out=other)
    returns = evaluate(sampler, UniformPolicy(2), jax.random.key(0), 40)
    assert set(returns) == {0.0, 7.0}


def test_exogenous_coordinates_are_slow_and_ignore_the_actions(roll, policies):
    lock: Any = CombinationLock(4, 3, exogenous=17, rotation="per_level", instance_seed=5)
    assert lock.observation_shape == (20,)
    emission = lock.emission
    data = roll(lock, policies["uniform"], 4000)
    basis = np.asarray(emission.basis)
    assert basis.shape == (5, 20, 20)
    parts = np.einsum("ehd,hkd->ehk", data.observation, basis)
    state, process = parts[..., :3], parts[..., 3:]
    assert np.abs(state.argmax(-1) == data.latent).all()
    assert np.abs((state - np.eye(3)[data.latent]).std() - 0.1) < 0.005
    assert np.abs(process.std(axis=(0, 2)) - 1.0).max() < 0.03
    for lag in (1, 3):
        correlation = (process[:, lag:] * process[:, :-lag]).mean()
        assert abs(correlation - 0.95**lag) < 0.03
    fell = data.latent[:, 1] == 2
    assert np.abs(process[fell, 1].mean(0) - process[~fell, 1].mean(0)).max() < 0.25
    decode = jax.jit(jax.vmap(emission.decode, (None, 0)))
    assert (np.asarray(decode(2, data.observation[:, 2])) == data.latent[:, 2]).all()
    low, high = lock.observation_bounds
    assert low < data.observation.min()
    assert data.observation.max() < high


def test_heavy_tails_are_students():
    from scipy.stats import kstest, t

    drawn = np.asarray(draw_noise(jax.random.key(1), (20_000,), 2.5))
    assert kstest(drawn, t(2.5).cdf).pvalue > 1e-4
    assert np.abs(drawn).max() < noise_bound(2.5) < 2_000
    assert kstest(drawn, "norm").pvalue < 1e-6


def test_the_optimum_behind_heavy_tails_is_that_of_the_best_decoder(roll):
    lock: Any = CombinationLock(4, 3, degrees_of_freedom=2.5, noise=0.12, anti_reward=0.0)
    errors = confusion(lock)
    np.testing.assert_allclose(errors.sum(axis=2), 1.0, atol=1e-6)
    assert 0.9 < errors[:, range(3), range(3)].min() < 0.999
    right = lambda pure, state, seen, key: pure.right_action(  # noqa: E731
        pure.emission.decode(state.level, seen), state.level
    )
    data = roll(lock, right, 8_000)
    returns = data.reward.sum(axis=1)
    assert 0.8 < lock.optimal_return < 0.995
    assert abs(returns.mean() - lock.optimal_return) < 0.02
    gaussian = CombinationLock(4, 3, noise=0.12, anti_reward=0.0)
    assert gaussian.optimal_return == 1.0


@pytest.mark.parametrize(
    "arguments",
    [{"emission": "network"}, {"emission": "digits"}, {"exogenous": 4}, {"degrees_of_freedom": 2.5}],
)
def test_gymnasium_accepts_them(arguments):
    env = gym.make("briee/CombinationLock-v0", horizon=3, **arguments)
    check_env(env.unwrapped, skip_render_check=True)
    made = gym.make("briee/RandomBlockMDP-v0", horizon=2, num_latents=3, **arguments)
    first, again = (made.reset(seed=3)[0] for _ in range(2))
    assert made.observation_space.contains(first)
    assert (first == again).all()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"emission": "blobs"}, "emission must be 'vector', .* or 'image', got 'blobs'"),
        ({"emission": "vector", "rotation": "permuted"}, "rotation must be 'stationary' or 'per_level'"),
        ({"emission": "rings", "rotation": "none"}, "'per_level' for emission='rings', got 'none'"),
        ({"emission": "digits", "exogenous": 3}, "need an emission of vectors, not emission='digits'"),
        ({"emission": "rings", "degrees_of_freedom": 2.5}, "need emission='vector' or 'modes', got 'rings'"),
        ({"degrees_of_freedom": 0.0}, "degrees_of_freedom must be > 0, got 0.0"),
        ({"emission": "modes", "distractors": 3}, "distractors need emission='vector'"),
        (
            {"exogenous": 2, "exogenous_correlation": 1.0},
            r"must be in \[0, 1\), got 1.0",
        ),
        ({"held_out": True}, "held_out needs emission='digits', got 'vector'"),
        ({"emission": "modes", "modes": 0}, "modes must be >= 1, got 0"),
        ({"emission": "shapes", "num_good": 8}, "has 8 shapes, too few for 9 latent states"),
        ({"emission": "digits", "num_good": 10}, "has 10 digits, too few for 11 latent states"),
        ({"emission": "modes", "temperature": 0.2}, "needs emission='vector' with normal noise alone"),
    ],
)
def test_what_does_not_go_together_is_refused(arguments, sentence):
    with pytest.raises(ValueError, match=sentence):
        envs.make("lock", horizon=3, **arguments)


def test_images_are_images_and_roles_have_roles():
    for kind in KINDS:
        lock: Any = CombinationLock(2, 3, emission=kind)
        assert (len(lock.observation_shape) == 3) == (kind in IMAGES)
        assert isinstance(lock.emission, RolesEmission) == (kind not in ("vector", "image"))
