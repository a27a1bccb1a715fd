"""Low-rank MDPs: the simplex lock goes through the same path, with features that are not one-hot."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from briee.algorithms.paper.buffers import Transitions
from briee.algorithms.paper.collection import all_rows
from briee.algorithms.paper.config import BonusConfig, BrieeConfig
from briee.algorithms.paper.lsvi import lsvi
from briee.algorithms.paper.reward_free import RewardFree
from briee.envs.registry import make
from briee.numerics.linalg import at_level
from briee.rollout.policies import UniformPolicy
from briee.rollout.samplers import ScanSampler
from small_runs import bonus_of

H, A, K = 2, 3, 3


@pytest.fixture(scope="module")
def sampler():
    return ScanSampler(make("lock-simplex", horizon=H, num_actions=A, instance_seed=1))


class TrueFeatures:
    """psi* of the simplex lock at one level: weights of the latent states, on the simplex."""

    def __init__(self, pure, level: int):
        self.pure, self.level = pure, level

    def __call__(self, observation):
        return self.pure.ground_truth_features(self.level, observation)


def test_true_features_are_weights_that_are_not_one_hot(sampler):
    rows = all_rows(sampler.rollout(UniformPolicy(A), jax.random.key(0), 200))
    psi = np.asarray(jax.vmap(TrueFeatures(sampler.pure, 1))(rows.observation[1]))
    np.testing.assert_allclose(psi.sum(axis=1), 1.0, rtol=1e-5)
    assert (psi >= 0).all()
    assert np.median(psi.max(axis=1)) < 0.999


def test_bonus_and_plan_are_the_dense_ones_for_soft_features(sampler):
    """Against phi = psi ⊗ e_a written out in float64: neither LSVI nor the bonus needs one-hot psi."""
    paper = BrieeConfig.paper(H)
    soft = replace(paper.features, temperature=2.0, first_temperature=2.0)
    algorithm = RewardFree(sampler, replace(paper, features=soft))
    decoder = algorithm.random_decoders(jax.random.key(1))
    rows: Transitions = all_rows(sampler.rollout(UniformPolicy(A), jax.random.key(2), 100))
    lam, alpha = 1.0, 0.3
    bonus = bonus_of(rows, decoder, BonusConfig(alpha=alpha, cap=None), lam, A)
    q = lsvi(rows, decoder, lam, A, bonus)
    V = np.zeros(100)
    for h in reversed(range(H)):
        psi = np.asarray(jax.vmap(at_level(decoder, h))(rows.observation[h]), np.float64)
        assert np.median(psi.max(axis=1)) < 0.999, "soft"
        phi = np.einsum("nk,na->nak", psi, np.eye(A)[rows.action[h]]).reshape(100, A * K)
        Sigma = phi.T @ phi + lam * np.eye(A * K)
        target = V + np.asarray(rows.reward[h], np.float64)
        w = np.linalg.solve(Sigma, phi.T @ target).reshape(A, K)
        np.testing.assert_allclose(q.weights[h], w, rtol=1e-3, atol=1e-5)
        every = np.einsum("nk,ab->nabk", psi, np.eye(A)).reshape(100, A, A * K)
        norm = np.sqrt(np.einsum("nai,ij,naj->na", every, np.linalg.inv(Sigma), every))
        got = jax.vmap(lambda s, h=h: q(jnp.int32(h), s))(rows.observation[h])
        np.testing.assert_allclose(got, psi @ w.T + alpha * norm, rtol=1e-3, atol=1e-5)
        if h > 0:
            V = np.asarray(jax.vmap(lambda s, h=h: q(jnp.int32(h), s).max())(rows.next_observation[h - 1]))


def test_the_simplex_lock_is_explored_and_planned_like_any_other(sampler):
    paper = BrieeConfig.paper(H)
    few = {"feature_steps": 32, "discriminator_steps": 32, "feature_batch": 64, "discriminator_batch": 64}
    config = replace(
        paper,
        collect=replace(paper.collect, buffer_size=400),
        replearn=replace(paper.replearn, hidden_sizes=(16,), rounds=4, **few),
        workers=1,
    )
    algorithm = RewardFree(sampler, config)
    state = algorithm.init(jax.random.key(3))
    for _ in range(2):
        state = algorithm.update(state)
    soft = np.asarray(algorithm.decode(state, 1, state.buffers.rows.observation[1, :50]))
    np.testing.assert_allclose(soft.sum(axis=1), 1.0, rtol=1e-5)
    assert np.isfinite(state.greedy.weights).all()
    plan = algorithm.plan_for(state, lambda level, s: jnp.where(jnp.arange(A) == 2, 1.0, 0.0))
    episodes = sampler.rollout(plan, jax.random.key(4), 50)
    assert (np.asarray(episodes.action) == 2).mean() > 0.95
