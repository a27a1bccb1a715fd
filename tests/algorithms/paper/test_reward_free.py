"""Algorithm 4: exploration is blind to rewards, the world kept is the argmin, planning answers any reward."""

import csv
import math
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from briee.algorithms.paper import lsvi as least_squares
from briee.algorithms.paper.briee import BrieeAlgorithm
from briee.algorithms.paper.config import BrieeConfig
from briee.algorithms.paper.lsvi import arrival_rewards
from briee.algorithms.paper.reward_free import RewardFree, plan_reward, start_value
from briee.algorithms.paper.reward_functions import ActionReward, ByLevel, as_reward, check_reward
from briee.envs.adapters.third_party import load_from_file
from briee.envs.lock import CombinationLock
from briee.numerics.linalg import at_level, ridge
from briee.rollout.samplers import ScanSampler
from held_out_rewards import TrueLatentReward, held_out_rewards, judge

H = 2
RESULTS = Path(__file__).parents[3] / "results" / "reward_free"


def config() -> BrieeConfig:
    paper = BrieeConfig.paper(H)
    return replace(
        paper,
        collect=replace(paper.collect, buffer_size=1000),
        replearn=replace(paper.replearn, hidden_sizes=(32,), rounds=10),
        workers=1,
    )


@pytest.fixture(scope="module")
def algorithm():
    return RewardFree(ScanSampler(CombinationLock(horizon=H, num_actions=4, instance_seed=3)), config())


@pytest.fixture(scope="module")
def history(algorithm):
    """States after iterations 1 to 6."""
    states = [algorithm.update(algorithm.init(jax.random.key(0)))]
    for _ in range(5):
        states.append(algorithm.update(states[-1]))
    return states


def test_exploration_sees_no_reward(algorithm, history):
    """Ten times the reward: the same data, features and exploring policy, another plan for the reward."""
    rich = CombinationLock(horizon=H, num_actions=4, instance_seed=3, final_reward=10.0, anti_reward=1.0)
    other = RewardFree(ScanSampler(rich), algorithm.config)
    state = other.update(other.update(other.init(jax.random.key(0))))
    np.testing.assert_array_equal(state.buffers.rows.action, history[1].buffers.rows.action)
    np.testing.assert_array_equal(state.optimistic.weights, history[1].optimistic.weights)
    assert not np.array_equal(state.buffers.rows.reward, history[1].buffers.rows.reward)
    assert not np.array_equal(state.greedy.weights, history[1].greedy.weights)


def test_algorithm_1_does_see_the_reward(algorithm, history):
    aware = BrieeAlgorithm(algorithm.sampler, algorithm.config)
    state = aware.update(aware.init(jax.random.key(0)))
    np.testing.assert_array_equal(state.buffers.rows.action, history[0].buffers.rows.action)
    assert not np.array_equal(state.optimistic.weights, history[0].optimistic.weights)


def test_the_world_is_that_of_the_smallest_value(history):
    values = [float(start_value(state.optimistic, state.buffers.rows)) for state in history]
    for n, state in enumerate(history, start=1):
        best = int(np.argmin(values[:n]))
        assert int(state.world.iteration) == best + 1
        assert float(state.world.value) == pytest.approx(values[best])
        for kept, then in (
            (state.world.rows, history[best].buffers.rows),
            (state.world.decoder, history[best].decoder),
            (state.world.bonus, history[best].optimistic.bonus),
        ):
            assert jax.tree.all(jax.tree.map(np.array_equal, kept, then))
    assert len({int(state.world.iteration) for state in history}) > 1, "the world was replaced at least once"


def test_every_leaf_of_the_state_is_an_array_and_keeps_its_shape(algorithm, history):
    before = algorithm.init(jax.random.key(0))
    shapes = lambda state: [(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(state)]  # noqa: E731
    assert shapes(before) == shapes(history[-1])
    assert jax.tree.structure(before) == jax.tree.structure(history[-1])


def test_planning_before_exploring_is_refused(algorithm):
    with pytest.raises(ValueError, match="nothing was explored"):
        algorithm.plan_for(algorithm.init(jax.random.key(0)), None)


@pytest.mark.parametrize("kind", ["greedy", "optimistic"])
def test_planning_is_lsvi_with_the_reward_as_a_function(algorithm, history, kind):
    """Q_h = w_h^T phi + r_h + b_h, where w_h regresses the maximum of Q_{h+1} at s', in float64."""
    world, A, lam = history[-1].world, algorithm.sampler.num_actions, algorithm.config.lsvi.lam
    reward = TrueLatentReward(algorithm.sampler.pure, jax.random.uniform(jax.random.key(3), (H, 3, A)))
    q = plan_reward(world, reward, algorithm.config.lsvi, A, kind).q
    V = np.zeros(world.rows.action.shape[1])
    for h in reversed(range(H)):
        rows, decoder = at_level(world.rows, h), at_level(world.decoder, h)
        psi = np.asarray(jax.vmap(decoder)(rows.observation), np.float64)
        for action in range(A):
            own = np.asarray(rows.valid & (rows.action == action))
            Sigma = psi[own].T @ psi[own] + lam * np.eye(psi.shape[1])
            w = np.linalg.solve(Sigma, psi[own].T @ V[own])
            np.testing.assert_allclose(q.weights[h, action], w, rtol=1e-3, atol=1e-5)
        arrivals = world.rows.next_observation[h - 1]
        values = jax.vmap(lambda s, h=h: reward(jnp.int32(h), s))(arrivals)
        values += jax.vmap(decoder)(arrivals) @ q.weights[h].T
        if kind == "optimistic":
            values += jax.vmap(lambda s, h=h, d=decoder: world.bonus(jnp.int32(h), d(s)))(arrivals)
        found = jax.vmap(lambda s, h=h: q(jnp.int32(h), s))(arrivals)
        np.testing.assert_allclose(found, values, rtol=1e-4, atol=1e-6)
        V = np.asarray(values.max(axis=1), np.float64)


def test_many_rewards_are_planned_near_the_optimum(algorithm, history):
    rewards = held_out_rewards(algorithm.sampler.pure, random=3)
    assert len(rewards) == 1 + 2 * H + 3
    outcomes = judge(algorithm, history[-1], rewards, "greedy")
    assert min(outcome.ratio for outcome in outcomes) >= 0.95
    assert max(outcome.uniform_ratio for outcome in outcomes[:5]) < 0.6, (
        "without planning they are not solved"
    )


def test_a_new_python_function_is_planned_for_without_another_compilation(algorithm, history, monkeypatch):
    algorithm.plan_for(history[-1], lambda level, s: jnp.zeros(4))  # compiles what all rewards share
    traced = []
    monkeypatch.setattr(least_squares, "ridge", lambda *args: traced.append(0) or ridge(*args))
    algorithm.plan_for(history[-1], lambda level, s: jnp.where(jnp.arange(4) == 2, s[0] ** 2, 0.1))
    assert traced == []
    other = replace(algorithm.config, lsvi=replace(algorithm.config.lsvi, lam=2.0))
    RewardFree(algorithm.sampler, other).plan_for(history[-1], lambda level, s: jnp.zeros(4))
    assert len(traced) == 1, "another regression is another program"


def test_a_reward_of_the_decoded_state(algorithm, history):
    """The reward of latent state k of the learned decoder is earned where the decoder says k."""
    world = history[-1].world
    table = jnp.zeros((H, 3, 4)).at[1, 1, :].set(1.0)
    reward = as_reward(lambda step, latent: latent @ table[step], 4, ByLevel(world.decoder))
    rows = world.rows.observation[1, :50]
    psi = algorithm.decode(replace(history[-1], decoder=world.decoder), 1, rows)
    earned = jax.vmap(lambda s: reward(jnp.int32(1), s))(rows)
    np.testing.assert_allclose(earned, np.repeat(psi[:, 1:2], 4, axis=1), rtol=1e-6)
    assert algorithm.plan_for(history[-1], reward).q.weights.shape == (H, 4, 3)


def test_functions_of_an_action_and_of_a_file(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "def go(level, s, action):\n    return (action == 2) * s[0] * (level + 1.0)\n\nzero = 0\n"
    )
    reward = as_reward(load_from_file(f"{file}:go", "function"), 4)
    assert isinstance(reward, ActionReward)
    np.testing.assert_allclose(reward(jnp.int32(1), jnp.array([3.0, 0.0])), [0, 0, 6, 0])
    values = arrival_rewards(reward, jnp.ones((2, 5, 2)))
    np.testing.assert_allclose(values[:, 0], [[0, 0, 2, 0], [0, 0, 0, 0]])
    for place, sentence in (
        (f"{file}:nothing", r"mine\.py has no function 'nothing': it has go"),
        (f"{file}:zero", r"mine\.py has no function 'zero': it has go"),
        (f"{tmp_path / 'absent.py'}:go", r"FILE\.py:function with a file that exists, got '.*absent\.py:go'"),
        ("go", "with a file that exists, got 'go'"),
    ):
        with pytest.raises(ValueError, match=sentence):
            load_from_file(place, "function")
    (tmp_path / "broken.py").write_text("1 / 0")
    with pytest.raises(ValueError, match="ZeroDivisionError"):
        load_from_file(f"{tmp_path / 'broken.py'}:go", "function")
    with pytest.raises(ValueError, match="not 1 arguments"):
        as_reward(lambda s: s, 4)


def test_a_function_of_the_parameter_latent_gets_the_decoded_state(history):
    world = history[-1].world
    decoder = ByLevel(world.decoder)
    reward = as_reward(lambda step, latent, action: latent[1] * (action == 2) * (step == 1), 4, decoder)
    table = jnp.zeros((H, 3, 4)).at[1, 1, 2].set(1.0)
    for level in range(H):
        for s in world.rows.observation[level, :5]:
            expected = at_level(world.decoder, level)(s) @ table[level]
            np.testing.assert_allclose(reward(jnp.int32(level), s), expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("function", "sentence"),
    [
        (lambda step, s, a: 1.0 if s[0] > 0 else 0.0, "jnp.where"),
        (lambda step, s, a: np.asarray(s)[0], "jax.numpy"),
        (lambda step, s, a: s, r"one number, one per action, got shape \(5,\)"),
        (lambda step, s: s, r"4 numbers, one per action, got shape \(5,\)"),
        (lambda step, s, a: s @ jnp.ones(3), "TypeError"),
        (lambda step, s, a: undefined, "NameError"),  # type: ignore[name-defined]
    ],
)
def test_what_is_wrong_with_a_reward_is_one_sentence(function, sentence):
    with pytest.raises(ValueError, match=sentence) as caught:
        check_reward(as_reward(function, 4), (5,), 4)
    assert "\n" not in str(caught.value)


def last_outcomes(seed: int) -> list[dict[str, str]]:
    """The committed outcomes after the last iteration."""
    with (RESULTS / "held_out.csv").open() as file:
        rows = [
            row for row in csv.DictReader(file) if (row["algo"], row["seed"]) == ("reward-free", str(seed))
        ]
    return [row for row in rows if row["episodes"] == rows[-1]["episodes"]]


@pytest.mark.parametrize("seed", [1, 12])
def test_the_committed_outcomes_on_the_lock_of_horizon_six(seed):
    """After one reward-free run at least 20 rewards reach 0.95 of the optimum, each planned within 1 s."""
    rows = [row for row in last_outcomes(seed) if row["kind"] == "greedy"]
    assert len(rows) >= 20
    assert len({row["reward"] for row in rows}) == len(rows)
    assert min(float(row["ratio"]) for row in rows) >= 0.95
    assert max(float(row["plan_seconds"]) for row in rows[1:]) < 1.0


def test_both_pages_quote_the_committed_outcomes():
    rows = []
    for seed in (1, 12):
        rows += last_outcomes(seed)
    pages = [(RESULTS.parents[1] / "docs" / name).read_text() for name in ("reward_free.md", "theory.md")]
    for kind, seconds in (("greedy", "0.04"), ("optimistic", "0.06")):
        own = [row for row in rows if row["kind"] == kind]
        worst = math.floor(1000 * min(float(row["ratio"]) for row in own)) / 1000
        assert all(f"{worst:.3f}" in page for page in pages)
        assert max(float(row["plan_seconds"]) for row in own) < float(seconds)
        assert f"less than {seconds} s" in pages[0]
