"""HOMER and MusIK: what their classifiers merge, the small locks that they open; PSDP and roll-ins."""

from dataclasses import replace
from typing import Any

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from briee.agent.agent import Agent
from briee.algorithms.baselines.fitting import Layers, regress
from briee.algorithms.baselines.homer import Stored, abstraction, fitted_q_iteration
from briee.algorithms.baselines.musik import inverse_kinematics
from briee.algorithms.baselines.psdp import (
    Chains,
    Gathered,
    Members,
    QPolicy,
    chain_of,
    gather,
    no_policy,
    psdp,
)
from briee.algorithms.baselines.rival_config import HomerConfig, MusikConfig, PsdpConfig, RegressionConfig
from briee.envs.finite_block import FiniteBlockMDP
from briee.envs.gym_shells import PureVectorEnv
from briee.envs.lock import CombinationLock
from briee.numerics.linalg import at_level, ridge
from briee.rollout.host import HostSampler
from briee.rollout.samplers import ScanSampler

FAST = {"episodes_per_level": 600, "learning_rate": 1e-2, "epochs": 60, "restarts": 3}
PAPER = replace(HomerConfig.paper(3), psdp=PsdpConfig(300), **FAST)
LINEAR = RegressionConfig("linear", steps=400, batch=128, learning_rate=1e-2)
PREFIX_PSDP = replace(PAPER, planner="prefix-psdp")
RELEASED = replace(HomerConfig.released(3), psdp=PsdpConfig(1, LINEAR), **FAST)


def chain(n: int = 800) -> Gathered:
    """Three states follow one: action 0 leads to states 0 and 1 in equal parts, action 1 to state 2.

    States 0 and 1 are kinematically inseparable backwards: no past tells them apart.
    """
    rng = np.random.default_rng(3)
    action, coin = rng.integers(2, size=n), rng.integers(2, size=n)
    after = np.where(action == 0, coin, 2)
    x, next_x = np.ones((n, 3)), np.eye(3)[after] + 0.1 * rng.normal(size=(n, 3))
    zero = jnp.zeros(n)
    rows = jnp.asarray(x, jnp.float32), jnp.asarray(action), zero, jnp.asarray(next_x, jnp.float32)
    return Gathered(*rows, zero, rows[3], zero, jnp.zeros(n, jnp.int32), zero)


@pytest.mark.parametrize("forward", [False, True])
def test_the_classifier_recovers_kinematic_inseparability(forward):
    config = replace(PAPER, forward_abstraction=forward)
    phi = abstraction(chain(), config, 2, jax.random.key(0))
    first, second, third = np.asarray(phi(jnp.eye(3))).argmax(axis=1)
    assert first == second != third


def corners(n: int = 800) -> tuple[Gathered, jnp.ndarray]:
    """Action 0 leads to the corners (1, 1) and (-1, -1), action 1 to the other two: no line separates them.
    The member of the cover is the action."""
    rng = np.random.default_rng(5)
    action, sign = rng.integers(2, size=n), rng.choice([-1, 1], size=n)
    after = np.stack([sign, np.where(action == 0, sign, -sign)], axis=1)
    next_x = jnp.asarray(after + 0.1 * rng.normal(size=(n, 2)), jnp.float32)
    zero, action = jnp.zeros(n), jnp.asarray(action)
    rows = Gathered(jnp.ones((n, 2)), action, zero, next_x, zero, next_x, zero, action, zero)
    return rows, jnp.asarray([[1.0, 1.0], [-1.0, -1.0], [1.0, -1.0], [-1.0, 1.0]])


def test_a_hidden_layer_finds_abstract_states_that_no_line_separates():
    rows, points = corners()
    linear, network = (
        np.asarray(abstraction(rows, replace(PAPER, decoder_size=size), 2, jax.random.key(0))(points))
        for size in (0, 32)
    )
    first, same, other, its_same = network.argmax(axis=1)
    assert first == same != other == its_same
    first, same, other, its_same = linear.argmax(axis=1)
    assert not first == same != other == its_same


def test_musik_finds_predecessors_of_states_that_no_line_separates():
    rows, _ = corners()
    config = replace(MusikConfig.paper(3), num_latents=2, decoder_size=32, steps=600, squash=False)
    _, parent = inverse_kinematics(rows, config, 2, jax.random.key(0))
    assert sorted(parent.tolist()) == [0, 1]


def test_fitted_q_iteration_is_exact_on_tables():
    """Two steps, one state: action 1 pays 1 at the end, action 0 pays 0.25 at the start."""
    action = jnp.asarray(np.random.default_rng(0).integers(2, size=(2, 200)))
    x = jnp.ones((2, 200, 1))
    reward = jnp.stack([0.25 * (action[0] == 0), 1.0 * (action[1] == 1)])
    ridge = replace(PAPER, psdp=PsdpConfig(1, RegressionConfig("ridge", lam=1e-4)))
    blank = jax.tree.map(lambda leaf: jnp.zeros((2, *leaf.shape)), _linear(1, 2))
    q = fitted_q_iteration(Stored(x, action, reward, x), blank, ridge, 2, jax.random.key(0))
    found = np.asarray(jax.vmap(lambda q: q(jnp.ones(1)))(q))
    np.testing.assert_allclose(found, [[1.25, 1.0], [0.0, 1.0]], atol=1e-3)


def _linear(inputs: int, outputs: int):
    from briee.algorithms.baselines.fitting import new_layers

    return new_layers(jax.random.key(0), (inputs, outputs))


@pytest.mark.parametrize(
    ("config", "episodes"),
    [
        pytest.param(PAPER, 600 * 2 + 2 * 3 * 300 + 3 * 300 + 4 * 20, id="paper", marks=pytest.mark.slow),
        pytest.param(RELEASED, 600 * 3 + 4 * 20, id="released"),
        pytest.param(PREFIX_PSDP, 600 * 2 + 3 * 300 + 4 * 20, id="prefix-psdp"),
    ],
)
def test_all_planners_open_a_small_lock(config, episodes):
    lock = CombinationLock(horizon=3, num_actions=4, instance_seed=5)
    agent = Agent(lock, algo="homer", config=config, seed=7).learn(episodes=2 * episodes, progress=False)
    assert agent.solved
    assert agent.summary()["episodes_to_solve"] == episodes


def test_prefix_policies_must_be_linear():
    with pytest.raises(ValueError, match=r"prefix policies are linear, got .* 'mlp'"):
        replace(RELEASED, psdp=PsdpConfig(1, RegressionConfig("mlp")))


MUSIK = replace(
    MusikConfig.paper(3), episodes_per_level=600, steps=64, psdp=PsdpConfig(200, RegressionConfig("ridge"))
)


@pytest.mark.parametrize("fitted", [False, True])
def test_heads_play_the_action_that_leads_to_their_state(fitted):
    """Action 2 of three leads from x = 0 to x' = e_0, the others to e_1; member 1 alone is in x = 0."""
    rng = np.random.default_rng(0)
    action, member = rng.integers(3, size=900), rng.integers(2, size=900)
    won = (action == 2) & (member == 1)
    x = jnp.asarray(np.eye(2)[member], jnp.float32)
    next_x = jnp.asarray(np.where(won[:, None], [1.0, 0.0], [0.0, 1.0]), jnp.float32)
    zero = jnp.zeros(900)
    rows = Gathered(x, jnp.asarray(action), zero, next_x, zero, next_x, zero, jnp.asarray(member), zero)
    config = replace(MUSIK, num_latents=2, steps=300, learning_rate=1e-2, fitted_index=fitted)
    heads, parent = inverse_kinematics(rows, config, 3, jax.random.key(0))
    best = np.asarray(heads(jnp.array([0.0, 1.0])).reshape(2, 3)).argmax(axis=1)
    assert (2 in best, list(best).count(2)) == (True, 1)
    assert int(parent[list(best).index(2)]) == 1


def test_it_opens_a_small_lock_within_its_budget():
    lock = CombinationLock(horizon=3, num_actions=4, instance_seed=5)
    agent = Agent(lock, algo="musik", config=MUSIK, seed=7).learn(episodes=4000, progress=False)
    assert agent.solved
    assert agent.summary()["episodes_to_solve"] == 2 * 600 + 3 * 200 + 4 * 20


def test_a_budget_that_ends_too_early_still_gives_a_policy():
    lock = CombinationLock(horizon=3, num_actions=4, instance_seed=5)
    agent = Agent(lock, algo="musik", config=MUSIK, seed=7).learn(episodes=1300, progress=False)
    assert agent.episodes == 1400  # the level that was begun is completed
    assert agent.evaluate(5).returns.shape == (5,)


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
