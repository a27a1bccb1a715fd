"""The general algorithm: the contract of an algorithm, and that it opens locks without being told K."""

import dataclasses
import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from briee.agent.agent import Agent
from briee.algorithms.general.algorithm import General
from briee.algorithms.general.config import DataConfig, ExploreConfig, GeneralConfig
from briee.algorithms.general.decoders import labels
from briee.algorithms.general.reward_plans import reward_table
from briee.algorithms.general.state import reward_bins, slots
from briee.cli.main import main
from briee.envs.lock import CombinationLock
from briee.envs.registry import make
from briee.rollout.host import HostSampler
from briee.rollout.samplers import ScanSampler, evaluate
from briee.testing import check_agent, equal
from briee.training.directory import read_table
from held_out_rewards import TrueLatentReward, held_out_rewards, judge

H = 5


@pytest.fixture(scope="module")
def algorithm() -> General:
    config = GeneralConfig(data=DataConfig(episodes=128))
    return General(ScanSampler(CombinationLock(horizon=H, instance_seed=2)), config)


@pytest.fixture(scope="module")
def trained(algorithm):
    state = algorithm.init(jax.random.key(0))
    for _ in range(8):
        state = algorithm.update(state)
    return state


def test_the_contract_of_an_agent_holds():
    env = CombinationLock(horizon=2, num_actions=3, instance_seed=3)
    config = GeneralConfig(data=DataConfig(episodes=64))
    agent = check_agent(lambda seed: Agent(env, algorithm="general", config=config, seed=seed), iterations=2)
    assert agent.iterations == 4


def test_a_small_lock_is_opened_without_the_number_of_states(algorithm, trained):
    returns = evaluate(algorithm.sampler, algorithm.policy(trained), jax.random.key(5), 20)
    np.testing.assert_array_equal(returns, 1.0)
    assert trained.decoders.states.tolist() == [2, 3, 3, 3, 3]  # nobody falls before the first action
    assert algorithm.metrics(trained)["states_most"] == 3


def test_an_update_is_a_pure_function_of_the_state(algorithm, trained):
    before = jax.tree.map(np.copy, replace(trained, key=jax.random.key_data(trained.key)))
    assert equal(algorithm.update(trained), algorithm.update(trained))
    assert equal(before, replace(trained, key=jax.random.key_data(trained.key)))


def test_every_leaf_keeps_its_shape(algorithm, trained):
    shapes = lambda state: [(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(state)]  # noqa: E731
    assert shapes(algorithm.init(jax.random.key(0))) == shapes(trained)


def test_a_full_store_keeps_the_rare_episodes(algorithm, trained):
    assert int(trained.episodes) == 160
    assert int(trained.data.size) == 128
    cells = algorithm.cells(trained).counts.sum(-1)
    assert (cells[:, 1:4] > 0).sum() >= 0.9 * (2 * 10 + 4 * 3 * 10)  # hardly a cell was lost


def test_the_compiled_policy_and_the_host_give_the_same_labels(algorithm, trained):
    policy = algorithm.policy(trained, "optimistic")
    for h in range(H):
        x = trained.data.observation[:50, h]
        compiled = jax.vmap(policy.label, (None, 0))(jnp.int32(h), jnp.asarray(x))
        np.testing.assert_array_equal(compiled, labels(trained.decoders, h, x))
    assert slots(trained.decoders) == 8


def test_environments_on_the_host_are_learned_too():
    vector: Any = gym.make_vec("briee/CombinationLock-v0", num_envs=5, horizon=3, num_actions=3)
    host = General(HostSampler(vector, 3), GeneralConfig())
    compiled = General(ScanSampler(vector.unwrapped.pure), GeneralConfig())
    states = []
    for algorithm in (host, compiled):
        state = algorithm.init(jax.random.key(1))
        for _ in range(3):
            state = algorithm.update(state)
        states.append(state)
    np.testing.assert_array_equal(states[0].data.action, states[1].data.action)
    np.testing.assert_array_equal(states[0].decoders.states, states[1].decoders.states)


def test_rewards_are_binned_by_value_or_by_quantile():
    assert reward_bins(np.array([0.0, 1.0, 0.1, 0.0])).tolist() == [0, 2, 1, 0]
    many = reward_bins(np.linspace(0, 1, 101))
    assert many.min() == 0
    assert many.max() == 5
    assert (np.diff(many) >= 0).all()


def test_rounds_must_divide_the_episodes():
    config = GeneralConfig()
    with pytest.raises(ValueError, match=r"episodes must be a multiple of rounds \(3\), got 20"):
        replace(config, explore=replace(config.explore, rounds=3))


def test_large_images_keep_the_shape_of_every_leaf():
    env = CombinationLock(horizon=2, num_actions=3, emission="image", image_size=36, instance_seed=1)
    algorithm = General(ScanSampler(env), GeneralConfig())
    state = first = algorithm.init(jax.random.key(0))
    for _ in range(3):  # patches are drawn at the second update
        state = algorithm.update(state)
    assert state.decoders.patches.patch.any()
    assert [leaf.shape for leaf in jax.tree.leaves(state)] == [leaf.shape for leaf in jax.tree.leaves(first)]


def test_shared_labels_that_a_level_does_not_use_are_not_counted(algorithm, trained):
    label = trained.data.label.copy()
    n = int(trained.data.size)
    label[:n] = 1
    label[: n // 2, 0] = 2
    shared = replace(trained, transfer=np.asarray(0.9, np.float32), data=replace(trained.data, label=label))
    assert algorithm.metrics(shared)["states_most"] == 2
    assert algorithm.metrics(shared)["states_mean"] == pytest.approx((H + 1) / H)


@pytest.mark.slow
def test_levels_that_look_alike_share_a_regression():
    lock = CombinationLock(horizon=5, num_actions=3, emission="network", instance_seed=3)
    algorithm = General(ScanSampler(lock), GeneralConfig())
    state = first = algorithm.init(jax.random.key(3))
    for _ in range(12):
        state = algorithm.update(state)
    assert float(state.transfer) > 0.8
    assert equal(algorithm.update(state), algorithm.update(state))
    shapes = [jax.tree.map(np.shape, tree) for tree in (first, state)]
    assert jax.tree.all(jax.tree.map(lambda a, b: a == b, *shapes))
    returns = evaluate(algorithm.sampler, algorithm.policy(state), jax.random.key(4), 100)
    assert np.mean(returns) > 0.9


STEPS, A = 4, 5
CONFIG = GeneralConfig(data=DataConfig(episodes=256), explore=ExploreConfig(reward_free=True))


def explored(env, updates: int):
    algorithm = General(ScanSampler(env), CONFIG)
    state = algorithm.init(jax.random.key(3))
    for _ in range(updates):
        state = algorithm.update(state)
    return algorithm, state


@pytest.fixture(scope="module")
def found():
    return explored(CombinationLock(horizon=STEPS, num_actions=A, instance_seed=8), 8)


def test_every_reward_is_planned_near_its_optimum(found):
    algorithm, state = found
    rewards = held_out_rewards(algorithm.sampler.pure, random=4)
    outcomes = judge(algorithm, state, rewards, "greedy")
    assert len(outcomes) == 2 * STEPS + 5
    assert min(outcome.ratio for outcome in outcomes) >= 0.98
    assert max(outcome.uniform_ratio for outcome in outcomes) < 0.9
    assert max(outcome.plan_seconds for outcome in outcomes[1:]) < 1.0
    for (_, table), outcome in zip(rewards.items(), outcomes, strict=True):
        policy = algorithm.plan_for(state, TrueLatentReward(algorithm.sampler.pure, jnp.asarray(table)))
        assert float(algorithm.start_value(state, policy)) == pytest.approx(outcome.value, abs=0.1)


def test_exploration_does_not_look_at_the_reward(found):
    """The dense lock differs from the sparse one in its reward alone."""
    _, state = found
    _, other = explored(make("lock-dense", horizon=STEPS, num_actions=A, instance_seed=8), 8)
    assert other.data.reward.sum() != state.data.reward.sum()
    for name in ("observation", "action", "label"):
        np.testing.assert_array_equal(getattr(other.data, name), getattr(state.data, name))


def test_a_reward_free_run_ends_with_its_budget_alone(found):
    assert not found[0].capabilities.stops_when_solved
    assert General.capabilities.stops_when_solved
    assert General(found[0].sampler, GeneralConfig()).capabilities == General.capabilities


def test_an_agent_can_be_made_to_explore_without_rewards():
    lock = CombinationLock(horizon=2, num_actions=3)
    assert Agent(lock, reward_free=True).config.explore.reward_free
    assert Agent(lock, algo="reward-free", reward_free=True).algorithm.name == "reward-free"
    with pytest.raises(ValueError, match="preset 'paper' of briee has no reward_free, so it cannot be True"):
        Agent(lock, "paper", reward_free=True)


def test_the_reward_of_a_state_is_the_mean_over_its_observations():
    rows = np.array([[[1.0, 0.0], [3.0, 1.0], [7.0, 7.0]]])
    table = reward_table(rows, np.array([[2], [2], [0]]), 3)
    np.testing.assert_allclose(table, [[[7, 7], [0, 0], [2, 0.5]]])


def test_what_cannot_be_planned_is_said(found):
    algorithm, state = found
    with pytest.raises(ValueError, match="general plans for a reward without a bonus"):
        algorithm.plan_for(state, None, "optimistic")
    with pytest.raises(ValueError, match="nothing was explored yet"):
        algorithm.plan_for(algorithm.init(jax.random.key(0)), None)
    repeating = dataclasses.replace(state.world, mode=np.asarray(1, np.int32))
    with pytest.raises(ValueError, match="one table of states for all steps, for this reward alone"):
        algorithm.plan_for(dataclasses.replace(state, world=repeating), None)


def test_recorded_rewards_are_those_of_the_greedy_policy(found):
    algorithm, state = found
    plan = algorithm.plan_for(state, None)
    np.testing.assert_array_equal(plan.value, algorithm.policy(state).value)
    assert float(algorithm.start_value(state, plan)) == pytest.approx(1.0)


def test_the_commands(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    train = (
        "train lock --algo general --reward-free --horizon 2 --env.num_actions 3 --episodes 80 --run-dir run"
    )
    assert main(shlex.split(train)) == 0
    assert json.loads(Path("run/summary.json").read_text())["episodes"] == 80, "not when it is solved"
    Path("mine.py").write_text(
        "import jax.numpy as jnp\n"
        "def second(step, observation, action):\n    return (step == 1) * (action == 2) * 0.5\n"
        "def known(step, latent, action):\n    return latent.sum()\n"
    )
    for name, value in (("second", 0.5), ("known", 2.0)):
        capsys.readouterr()
        assert main(["plan", "run", "--reward", f"mine.py:{name}", "--json"]) == 0
        said = json.loads(capsys.readouterr().out)
        assert said["mean"] == pytest.approx(value)
        assert said["planned_value"] == pytest.approx(value)
        assert said["training_episodes"] == 80
    assert main(["plan", "run", "--reward", "mine.py:second", "--bonus"]) == 2
    assert "without a bonus" in capsys.readouterr().err


RESULTS = Path(__file__).parents[3] / "results" / "reward_free"


@pytest.mark.parametrize("seed", ["1", "12"])
def test_the_committed_outcomes_on_the_lock_of_horizon_25(seed):
    rows = [
        row for row in read_table(RESULTS / "held_out.csv") if (row["algo"], row["seed"]) == ("general", seed)
    ]
    by_episodes = {n: [row for row in rows if row["episodes"] == n] for n in ("500", "1000", "1500")}
    assert [len(own) for own in by_episodes.values()] == [61, 61, 61]
    worst = {n: min(float(row["ratio"]) for row in own) for n, own in by_episodes.items()}
    assert worst["500"] < 0.1
    assert min(worst["1000"], worst["1500"]) >= 0.9995, "1.000 on the page"
    assert sum(float(row["ratio"]) < 0.98 for row in by_episodes["500"]) == 11
    for own in by_episodes.values():
        assert max(float(row["plan_seconds"]) for row in own[1:]) < 0.07
