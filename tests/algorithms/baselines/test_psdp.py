"""PSDP: exact dynamic programming with plenty of data, on both samplers, for rewards and for indicators."""

from typing import Any

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from briee.algorithms.baselines.fitting import Layers, regress
from briee.algorithms.baselines.psdp import no_policy, psdp
from briee.algorithms.baselines.rival_config import PsdpConfig, RegressionConfig
from briee.algorithms.baselines.roll_in import Chains, Members, QPolicy, chain_of, gather
from briee.envs.finite_block import FiniteBlockMDP
from briee.envs.gym_shells import PureVectorEnv
from briee.numerics.linalg import at_level, ridge
from briee.rollout.host import HostSampler
from briee.rollout.samplers import ScanSampler

RIDGE = RegressionConfig("ridge", lam=1e-3)


def world(horizon: int = 3) -> FiniteBlockMDP:
    return FiniteBlockMDP(horizon, num_latents=3, num_actions=2, emissions=2, instance_seed=4)


def uniform_cover(sampler) -> Members:
    """One member that has no preferences."""
    return Members(no_policy(sampler, RIDGE, 1), jnp.int32(1))


def test_psdp_is_dynamic_programming_with_plenty_of_data():
    sampler = ScanSampler(world())
    block = sampler.knowledge.exact
    assert block is not None
    cover = uniform_cover(sampler)
    config = PsdpConfig(20_000, RIDGE)
    q, played = psdp(sampler, lambda level: cover, sampler.horizon, jax.random.key(0), config)
    exact = block.latent.q_values()
    eye = jnp.eye(block.truth.shape[1])
    for h in range(sampler.horizon):
        found = np.asarray(at_level(q, h)(eye))
        np.testing.assert_allclose(found, exact[h][block.truth[h]], atol=0.03)
    assert [int(steps) for _, steps in played] == [3, 3, 3]


def test_an_indicator_leads_to_its_state():
    """The policy for 1{z_H = k} reaches k as often as the best policy of the latent model does."""
    sampler = ScanSampler(world())
    block = sampler.knowledge.exact
    assert block is not None
    last, target = 2, 1
    own = jnp.asarray(block.truth[last] == target, jnp.float32)
    cover = uniform_cover(sampler)
    config = PsdpConfig(10_000, RIDGE)
    q, _ = psdp(sampler, lambda level: cover, last, jax.random.key(1), config, lambda rows: rows.end @ own)
    value = np.eye(block.num_latents)[target]
    for step in reversed(block.latent.transition[:last]):
        value = (step @ value).max(axis=1)
    played = sampler.rollout(QPolicy(q), jax.random.key(2), 4000)
    assert np.mean(np.asarray(played.latent)[:, last] == target) == pytest.approx(
        block.latent.initial @ value, abs=0.03
    )


@pytest.mark.parametrize("last", [2, 3])
def test_both_samplers_gather_the_same_rows(last):
    pure = world()
    scan, host = ScanSampler(pure), HostSampler(PureVectorEnv(pure, 8))
    q = no_policy(scan, RIDGE, 2)
    q = jax.tree.map(lambda leaf: jax.random.normal(jax.random.key(3), leaf.shape), q)
    cover, out = Members(q, jnp.int32(2)), QPolicy(jax.tree.map(lambda leaf: leaf[0], q))
    (one, steps), (two, _) = (gather(s, cover, 1, jax.random.key(5), 20, out, last) for s in (scan, host))
    assert steps == last
    for name in ("x", "action", "reward", "next_x", "to_go", "end", "total", "member"):
        np.testing.assert_allclose(getattr(one, name), getattr(two, name), atol=1e-6, err_msg=name)
    assert set(np.unique(one.member)) == {0, 1}


def test_psdp_needs_no_pure_environment():
    env = gym.make_vec("FrozenLake-v1", num_envs=4, is_slippery=False, vectorization_mode="sync")
    sampler = HostSampler(env, horizon=2)
    q, played = psdp(
        sampler, lambda level: uniform_cover(sampler), 2, jax.random.key(0), PsdpConfig(8, RIDGE)
    )
    assert len(played) == 2
    assert jax.tree.leaves(q)[0].shape == (2, 17, 4)  # 16 fields and the end


def test_ridge_and_the_trained_linear_function_agree():
    rng = np.random.default_rng(0)
    x, action = jnp.asarray(rng.normal(size=(400, 3)), jnp.float32), jnp.asarray(rng.integers(2, size=400))
    target = jnp.where(action == 0, x[:, 0] + 1.0, 2.0 - x[:, 1])
    numbers: dict[str, Any] = {"steps": 800, "learning_rate": 0.03, "hidden_size": 50}
    fits = [
        regress(RegressionConfig(kind, lam=1e-4, **numbers), x, action, target, 2, jax.random.key(1))
        for kind in ("ridge", "linear", "mlp")
    ]
    truth = np.stack([x[:, 0] + 1.0, 2.0 - x[:, 1]], axis=1)
    for fit, tolerance in zip(fits, (1e-3, 1e-2, 0.5), strict=True):
        np.testing.assert_allclose(fit(x), truth, atol=tolerance)
    gram = np.asarray(x[:50].T @ x[:50])
    solution = ridge(jnp.asarray(gram)[None], jnp.ones((1, 3, 1)), 1.0)[0, :, 0]
    np.testing.assert_allclose((gram + np.eye(3)) @ solution, 1.0, atol=1e-3)


def test_a_chain_follows_the_parents_back():
    parent = jnp.array([[0, 0], [1, 0], [0, 1], [1, 1]])
    np.testing.assert_array_equal(chain_of(parent, 3)[:, :3], [[1, 0, 0], [0, 1, 1]])
    heads = Layers((jnp.zeros((4, 1, 4)),), (jnp.tile(jnp.array([5.0, 0, 0, 5.0]), (4, 1)),))
    cover = Chains(heads, chain_of(parent, 3), jnp.int32(2))
    acts = [int(cover.act(0, t, jnp.zeros(1), jax.random.key(0))) for t in range(3)]
    assert acts == [1, 0, 0]  # head 0 prefers action 0, head 1 action 1
