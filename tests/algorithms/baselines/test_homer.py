"""HOMER and MusIK: what their classifiers merge, and the small locks that they open."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from briee.agent.agent import Agent
from briee.algorithms.baselines.homer import Stored, abstraction, fitted_q_iteration
from briee.algorithms.baselines.musik import inverse_kinematics
from briee.algorithms.baselines.psdp import PsdpConfig
from briee.algorithms.baselines.rival_config import HomerConfig, MusikConfig, RegressionConfig
from briee.algorithms.baselines.roll_in import Gathered
from briee.envs.lock import CombinationLock

FAST = {"episodes_per_level": 600, "learning_rate": 1e-2, "epochs": 60, "restarts": 3}
PAPER = replace(HomerConfig.paper(3), psdp=PsdpConfig(300), **FAST)
LINEAR = RegressionConfig("linear", steps=400, batch=128, learning_rate=1e-2)
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
    ],
)
def test_both_presets_open_a_small_lock(config, episodes):
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


def test_heads_play_the_action_that_leads_to_their_state():
    """Action 2 of three leads from x = 0 to x' = e_0, the others to e_1; member 1 alone is in x = 0."""
    rng = np.random.default_rng(0)
    action, member = rng.integers(3, size=900), rng.integers(2, size=900)
    won = (action == 2) & (member == 1)
    x = jnp.asarray(np.eye(2)[member], jnp.float32)
    next_x = jnp.asarray(np.where(won[:, None], [1.0, 0.0], [0.0, 1.0]), jnp.float32)
    zero = jnp.zeros(900)
    rows = Gathered(x, jnp.asarray(action), zero, next_x, zero, next_x, zero, jnp.asarray(member), zero)
    config = replace(MUSIK, num_latents=2, steps=300, learning_rate=1e-2)
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
