"""LSVI-UCB: its algebra against NumPy, its two memories, its features, and that it opens locks."""

from dataclasses import replace
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.spatial.distance import pdist

from briee.algorithms.baselines.config import LsviRffConfig, LsviUcbConfig
from briee.algorithms.baselines.lsvi_data import Counts, Episodes, GroundTruth, fourier_features
from briee.algorithms.baselines.lsvi_ucb import LsviUcb, LsviUcbRff
from briee.envs.lock import CombinationLock
from briee.protocols import Knowledge
from briee.rollout.policies import UniformPolicy
from briee.rollout.samplers import ScanSampler, evaluate

H, A = 2, 3
CONFIG = replace(LsviUcbConfig.paper(H), episodes_per_update=50, buffer_size=600)


@pytest.fixture(scope="module")
def sampler():
    return ScanSampler(CombinationLock(horizon=H, num_actions=A, instance_seed=3))


@pytest.fixture(scope="module")
def trained(sampler):
    algorithm = LsviUcb(sampler, CONFIG)
    state = algorithm.init(jax.random.key(0))
    for _ in range(4):
        state = algorithm.update(state)
    return algorithm, state


def tabular_ucb(count, reward, beta, lam, clip, prior="zero"):
    """Optimistic values f64[H, Z, A] from counts [H, A, Z, Z] and sums of rewards [H, A, Z], by hand."""
    H, A, Z, _ = count.shape
    Q, value = np.zeros((H, Z, A)), np.zeros(Z)
    for h in reversed(range(H)):
        n = count[h].sum(-1)
        least = value[count[h].sum((0, 1)) > 0].min() if prior == "least" else 0.0
        mean = (reward[h] + count[h] @ value + lam * least) / (n + lam)
        Q[h] = np.minimum(mean + beta / np.sqrt(n + lam), clip).T
        value = Q[h].max(1)
    return Q


@pytest.mark.parametrize("prior", ["zero", "least"])
def test_with_one_hot_features_it_is_optimistic_value_iteration_on_counts(trained, sampler, prior):
    state = LsviUcb(sampler, replace(CONFIG, prior=prior)).plan(trained[1])
    assert isinstance(state.memory, Counts)
    count, reward = np.asarray(state.memory.count, float), np.asarray(state.memory.reward, float)
    assert count.sum() == 4 * 50 * H
    for weights, beta in ((state.optimistic, CONFIG.beta), (state.greedy, 0.0)):
        Q = tabular_ucb(count, reward, beta, CONFIG.lam, CONFIG.clip, prior)
        bonus = beta / np.sqrt(count.sum(-1) + CONFIG.lam)
        mine = np.minimum(np.asarray(weights) + bonus, CONFIG.clip).swapaxes(1, 2)
        np.testing.assert_allclose(mine, Q, atol=1e-4)
    norm = np.linalg.norm(np.asarray(state.factor), axis=-2)
    np.testing.assert_allclose(norm, 1 / np.sqrt(count.sum(-1) + CONFIG.lam), rtol=1e-5)


def test_episodes_and_counts_give_the_same_plan(sampler, trained):
    _, state = trained
    keeping = LsviUcb(sampler, CONFIG, psi=GroundTruth(sampler.pure), one_hot=False)
    other = keeping.init(jax.random.key(0))
    for _ in range(4):
        other = keeping.update(other)
    np.testing.assert_allclose(state.optimistic, other.optimistic, atol=1e-4)
    np.testing.assert_allclose(state.greedy, other.greedy, atol=1e-4)


def test_it_opens_a_lock_and_counts_its_episodes(sampler, trained):
    algorithm, state = trained
    assert (int(state.iteration), int(state.episodes), int(state.env_steps)) == (4, 200, 400)
    assert evaluate(sampler, algorithm.policy(state), jax.random.key(5), 100).min() == 1.0
    assert algorithm.metrics(state)["reached_level"] == H


def test_an_update_is_pure_and_keeps_all_shapes(trained):
    algorithm, state = trained
    once, again = algorithm.update(state), algorithm.update(state)
    np.testing.assert_array_equal(once.optimistic, again.optimistic)
    shapes = lambda state: [(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(state)]  # noqa: E731
    assert shapes(algorithm.init(jax.random.key(0))) == shapes(once)


def test_the_ring_keeps_the_newest_episodes():
    memory = Episodes(jnp.zeros((1, 4, 1)), jnp.zeros((1, 4), jnp.int32), jnp.zeros((1, 4)), jnp.int32(0), 2)
    for n in range(3):
        code = jnp.full((2, 2, 1), float(n))
        memory = memory.insert(code, jnp.full((1, 2), n), jnp.full((1, 2), float(n)))
    np.testing.assert_array_equal(memory.action[0], [2, 2, 1, 1])
    assert int(memory.chunks) == 2


def test_true_features_where_there_are_none_are_refused():
    blind = SimpleNamespace(horizon=2, num_actions=2, pure=None, knowledge=Knowledge())
    with pytest.raises(ValueError, match="ground-truth features"):
        LsviUcb(blind, CONFIG)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="reading must be one of"):
        replace(LsviRffConfig.paper(6), reading="both")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="do not sum to 1: prior must be 'zero', got 'least'"):
        replace(LsviRffConfig.paper(6), prior="least")


def test_random_fourier_features_are_the_gaussian_kernel():
    features = fourier_features(jax.random.key(0), 20_000, 4, 3, bandwidth=2.0, joint=True)
    x, y = jax.random.normal(jax.random.key(1), (2, 4))
    kernel = np.asarray(features(x) @ features(y).T)
    distance = float(((x - y) ** 2).sum()) + 2 * (1 - np.eye(3))  # [s; e_a] against [s'; e_b]
    np.testing.assert_allclose(kernel, np.exp(-distance / 8), atol=0.03)


def test_the_median_distance_of_the_lock_is_about_five():
    """The bandwidth by the median trick, within levels and over all of them."""
    sampler = ScanSampler(CombinationLock(horizon=6))
    data = np.asarray(sampler.rollout(UniformPolicy(10), jax.random.key(0), 100).observation[:, :6])
    within = [np.median(pdist(data[:, h])) for h in range(6)]
    assert 2 < np.median(within) < 5 < np.median(pdist(data[:30].reshape(180, -1))) < 9


@pytest.mark.parametrize("reading", ["joint", "product"])
def test_random_fourier_features_open_a_lock(sampler, reading):
    config = replace(LsviRffConfig.paper(H), buffer_size=4000, reading=reading)
    algorithm = LsviUcbRff(sampler, config)
    state, returns = algorithm.init(jax.random.key(0)), np.zeros(1)
    for _ in range(6):
        state = algorithm.update(state)
        returns = evaluate(sampler, algorithm.policy(state), jax.random.key(5), 100)
        if returns.min() == 1.0:
            break
    assert returns.min() == 1.0, f"after {int(state.episodes)} episodes the mean is {returns.mean()}"
