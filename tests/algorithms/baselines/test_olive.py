"""OLIVE: it eliminates exactly the functions whose Bellman errors it sees, and never the true one."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from briee.agent.agent import Agent
from briee.algorithms.baselines.olive import Olive, bellman_errors, enumerated_class, optimistic, survivors
from briee.algorithms.baselines.rival_config import OliveConfig
from briee.algorithms.baselines.roll_in import Gathered
from briee.envs.finite_block import FiniteBlockMDP
from briee.envs.lock import CombinationLock
from briee.rollout.samplers import ScanSampler

CONFIG = replace(OliveConfig.paper(3), threshold=0.05, eliminate_episodes=20_000, estimate_episodes=500)


def finite_lock(horizon: int = 3) -> FiniteBlockMDP:
    return FiniteBlockMDP(horizon, num_actions=3, lock=True, instance_seed=2)


def exact_rows(block, level: int) -> Gathered:
    """Rows that weigh as the exact distribution of (x, a, x') under uniform actions: counts of 10^-4."""
    state = block.initial
    for h in range(level):
        state = np.einsum("s,sat->t", state, block.transition[h]) / block.num_actions
    joint = state[:, None, None] * block.transition[level] / block.num_actions
    x, a, after = (part.ravel() for part in np.indices(joint.shape))
    count = np.round(joint.ravel() * 1e4).astype(int)
    x, a, after = (np.repeat(part, count) for part in (x, a, after))
    eye, zero = np.eye(joint.shape[0]), np.zeros(len(x))
    rows = (eye[x], a, block.reward[level][x, a], eye[after], zero, eye[after], zero, a, zero)
    return Gathered(*map(jnp.asarray, rows))


def test_elimination_finds_the_exact_bellman_errors():
    """Each pair's error is E[g(x, pi_g(x)) - r - max g'(x')], computed here from the tables."""
    block = finite_lock().block
    functions = enumerated_class(np.random.default_rng(1), block, 3, 2)
    for level in range(3):
        state = block.initial
        for h in range(level):
            state = np.einsum("s,sat->t", state, block.transition[h]) / block.num_actions
        found = bellman_errors(functions, level, exact_rows(block, level))
        S = np.arange(len(state))
        for i, f in enumerate(functions[level]):
            act = f.argmax(axis=1)
            for j in range(len(functions[level])):
                later = functions[level + 1, j].max(axis=1) if level < 2 else np.zeros(len(S))
                error = f[S, act] - block.reward[level][S, act] - block.transition[level][S, act] @ later
                assert found[i, j] == pytest.approx(state @ error, abs=2e-3)
        assert abs(found[0, 0]) < 2e-3  # the truth has none


def test_optimism_and_survivors_on_three_functions():
    """Two levels, three functions each; pair (2, *) is gone, and (1, 0) is all that is left of 1."""
    functions = np.array([[1.0, 2.0, 3.0], [5.0, 4.0, 3.0]])[:, :, None, None] * np.ones((1, 1, 2, 2))
    alive = np.ones((2, 3, 3), bool)
    alive[0, 2] = alive[0, 1, 1:] = False
    assert survivors(alive) == 3 + 1
    assert optimistic(functions, alive, np.zeros(2)).tolist() == [1, 0]
    alive[1, 0] = False  # the function 0 of the last level is gone, so 1 has no companion
    assert survivors(alive) == 2
    assert optimistic(functions, alive, np.zeros(2)).tolist() == [0, 1]


def test_the_true_function_survives_and_the_answer_is_nearly_optimal():
    agent = Agent(finite_lock(), algo="olive", config=CONFIG, seed=4).learn(
        iterations=25, until_solved=False, progress=False
    )
    assert agent.state.alive[:, 0, 0].all()  # type: ignore[attr-defined]
    assert agent.history[-1]["survivors"] < agent.history[0]["survivors"]
    assert agent.history[-1]["bellman_error"] <= 5 / 8 * CONFIG.epsilon
    assert agent.evaluate(200).mean >= 1 - CONFIG.epsilon


@pytest.mark.parametrize(
    ("env", "sentence"),
    [
        (CombinationLock(3), "olive enumerates functions of finitely many observations: finite-block and .*"),
        (finite_lock(5), "olive enumerates up to 4 levels, got horizon 5"),
    ],
)
def test_other_worlds_are_refused(env, sentence):
    with pytest.raises(ValueError, match=sentence):
        Olive(ScanSampler(env), CONFIG)


def test_state_shapes_are_those_of_the_first_state():
    algorithm = Olive(
        ScanSampler(finite_lock()), replace(CONFIG, eliminate_episodes=100, estimate_episodes=20)
    )
    state = algorithm.init(jax.random.key(0))
    after = algorithm.update(state)
    assert jax.tree.map(np.shape, state) == jax.tree.map(np.shape, after)
