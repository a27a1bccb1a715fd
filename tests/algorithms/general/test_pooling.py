"""Pooled states: clusters over all steps, and the choice between them and the states of each level."""

import jax
import numpy as np
import pytest

from briee.agent.agent import Agent
from briee.algorithms.general import world_stage
from briee.algorithms.general.algorithm import General
from briee.algorithms.general.config import DataConfig, GeneralConfig
from briee.algorithms.general.pooled import find_clusters, usual_radius
from briee.algorithms.general.pooling import labels, left_open, mixes_steps, prediction, recurrence
from briee.algorithms.general.world import OFF, POOLED, Model
from briee.envs.grids import ImageGrid, NoisyGrid
from briee.envs.lock import CombinationLock
from briee.rollout.host import HostSampler
from briee.rollout.samplers import ScanSampler, evaluate
from briee.testing import check_agent


def walk(rng: np.random.Generator, episodes: int = 30, steps: int = 12, places: int = 9) -> np.ndarray:
    """Places of random walks on a ring."""
    moves = rng.integers(-1, 2, (episodes, steps))
    start = rng.integers(0, places, (episodes, 1))
    return (np.concatenate([start, moves], 1).cumsum(1)) % places


def seen(place: np.ndarray, rng: np.random.Generator, dimension: int = 20, loud: float = 0.0) -> np.ndarray:
    """Noisy vectors of places; some directions of the noise may be loud."""
    vectors = np.random.default_rng(5).standard_normal((place.max() + 1, dimension))
    scale = np.full(dimension, 0.1)
    scale[:3] += loud
    return (vectors[place] + scale * rng.standard_normal((*place.shape, dimension))).astype(np.float32)


@pytest.mark.parametrize("loud", [0.0, 0.4])
def test_clusters_are_the_places(loud):
    rng = np.random.default_rng(0)
    place = walk(rng)
    x = seen(place, rng, loud=loud).reshape(-1, 20)
    found = find_clusters(x, 100, rng)
    assert found.fits
    assert len(found.centre) == 9
    label = labels(found, x)
    assert len(np.unique(np.stack([label, place.ravel()], 1), axis=0)) == 9
    _, distance = found.nearest(x)
    assert np.median(distance) == pytest.approx(20, rel=0.25)  # white: E coordinates of unit variance
    assert (distance < usual_radius(20)).mean() > 0.99


def test_repeated_observations_are_states_of_their_own():
    rng = np.random.default_rng(0)
    x = seen(walk(rng), rng)
    x[:, 8:] = 0.0
    found = find_clusters(x.reshape(-1, 20), 100, rng)
    assert len(found.single) == 1
    label = labels(found, x.reshape(-1, 20)).reshape(x.shape[:2])
    assert (label[:, 8:] == len(found.centre)).all()
    assert (label[:, :8] < len(found.centre)).all()


def test_recurrence_tells_places_from_levels():
    rng = np.random.default_rng(0)
    place = walk(rng)
    assert recurrence(place) > 0.95
    assert recurrence(place + 9 * np.arange(13)) == 0.0
    assert mixes_steps(seen(place, rng), rng)
    assert not mixes_steps(seen(place + 9 * np.arange(13), rng), rng)


def test_the_prediction_is_the_information_in_state_and_action():
    rng = np.random.default_rng(0)
    action = rng.integers(0, 2, (400, 5))
    label = np.concatenate([np.zeros((400, 1), int), action], 1)  # the action is the next state
    nothing = np.zeros_like(action)
    assert prediction(label, action, nothing, stepped=False) == pytest.approx(np.log(2), abs=0.02)
    assert prediction(rng.integers(0, 2, (400, 6)), action, nothing, stepped=True) == pytest.approx(
        0, abs=0.02
    )
    assert prediction(0 * label, action, action, stepped=True) == pytest.approx(np.log(2), abs=0.02)


def test_what_is_left_open_tells_noise_from_continuous_motion():
    rng = np.random.default_rng(0)
    place = walk(rng, 60)
    x = seen(place, rng)
    found = find_clusters(x.reshape(-1, 20), 100, rng)
    assert abs(left_open(found, x, labels(found, x.reshape(-1, 20)).reshape(place.shape), rng)) < 0.1
    drift = x + 0.1 * rng.standard_normal((60, 1, 20)).astype(np.float32)  # the same within an episode
    found = find_clusters(drift.reshape(-1, 20), 100, rng)
    label = labels(found, drift.reshape(-1, 20)).reshape(place.shape)
    assert left_open(found, drift, label, rng) > 0.15


def learned(env, updates: int, seed: int = 21):
    algorithm = General(HostSampler(env), GeneralConfig())
    state = algorithm.init(jax.random.key(seed))
    for _ in range(updates):
        state = algorithm.update(state)
    returns = evaluate(algorithm.sampler, algorithm.policy(state), jax.random.key(5), 10)
    return algorithm, state, returns


def test_a_noisy_grid_is_learned_with_pooled_states():
    algorithm, state, returns = learned(NoisyGrid(size=5), 4)
    np.testing.assert_array_equal(returns, 1.0)
    assert algorithm.metrics(state)["representation"] == POOLED
    assert algorithm.metrics(state)["states_most"] == 26  # and the one after the end


def test_a_grid_of_images_is_learned_with_pooled_states():
    algorithm, state, returns = learned(ImageGrid(), 4)
    np.testing.assert_array_equal(returns, 1.0)
    assert algorithm.metrics(state)["states_most"] == 17


def test_compiled_policy_and_host_give_the_same_states():
    algorithm, state, _ = learned(NoisyGrid(size=4), 3)
    policy, x = world_stage.policy(state.world, "greedy", algorithm.config), state.data.observation[:20, 3]
    known, compiled = jax.vmap(policy.state, (None, 0))(jax.numpy.int32(3), jax.numpy.asarray(x))
    model = Model.of(state.world)
    assert np.asarray(known).all()
    assert [model.state_of[name] for name in model.names(x, 3, grow=False)] == compiled.tolist()
    decoded = np.asarray(algorithm.decode(state, 3, jax.numpy.asarray(x)))
    np.testing.assert_array_equal(decoded.argmax(1), compiled)


def test_an_unseen_place_becomes_a_state_while_acting():
    rng = np.random.default_rng(0)
    _, state, _ = learned(NoisyGrid(size=4), 2)
    model = Model.of(state.world)
    before = len(model.keys)
    far = 50 + 0.1 * rng.standard_normal((4, 41)).astype(np.float32)
    assert len(set(model.states(model.names(far, 2), 2))) == 1
    assert len(model.keys) == before + 1


def test_a_lock_keeps_the_states_of_each_level():
    algorithm = General(ScanSampler(CombinationLock(horizon=4, instance_seed=2)), GeneralConfig())
    state = algorithm.init(jax.random.key(0))
    for _ in range(3):
        state = algorithm.update(state)
    assert int(state.world.mode) == OFF


def test_the_contract_of_an_agent_holds_with_pooled_states():
    config = GeneralConfig(world_states=256, data=DataConfig(episodes=128))
    agent = check_agent(
        lambda seed: Agent(NoisyGrid(size=3), algorithm="general", config=config, seed=seed), iterations=2
    )
    assert agent.history[-1]["representation"] == POOLED
