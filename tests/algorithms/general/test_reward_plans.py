"""Rewards that come later: exploration that never looks at a reward, and plans that need no new episode."""

import dataclasses
import json
import shlex
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from briee.agent.agent import Agent
from briee.algorithms.general.algorithm import General
from briee.algorithms.general.config import DataConfig, ExploreConfig, GeneralConfig
from briee.algorithms.general.reward_plans import reward_table
from briee.cli.main import main
from briee.envs.lock import CombinationLock
from briee.envs.registry import make
from briee.rollout.samplers import ScanSampler
from briee.training.directory import read_table
from held_out_rewards import TrueLatentReward, held_out_rewards, judge

H, A = 4, 5
CONFIG = GeneralConfig(data=DataConfig(episodes=256), explore=ExploreConfig(reward_free=True))


def explored(env, updates: int):
    algorithm = General(ScanSampler(env), CONFIG)
    state = algorithm.init(jax.random.key(3))
    for _ in range(updates):
        state = algorithm.update(state)
    return algorithm, state


@pytest.fixture(scope="module")
def found():
    return explored(CombinationLock(horizon=H, num_actions=A, instance_seed=8), 8)


def test_every_reward_is_planned_near_its_optimum(found):
    algorithm, state = found
    rewards = held_out_rewards(algorithm.sampler.pure, random=4)
    outcomes = judge(algorithm, state, rewards, "greedy")
    assert len(outcomes) == 2 * H + 5
    assert min(outcome.ratio for outcome in outcomes) >= 0.98
    assert max(outcome.uniform_ratio for outcome in outcomes) < 0.9
    assert max(outcome.plan_seconds for outcome in outcomes[1:]) < 1.0
    for (_, table), outcome in zip(rewards.items(), outcomes, strict=True):
        policy = algorithm.plan_for(state, TrueLatentReward(algorithm.sampler.pure, jnp.asarray(table)))
        assert float(algorithm.start_value(state, policy)) == pytest.approx(outcome.value, abs=0.1)


def test_exploration_does_not_look_at_the_reward(found):
    """The dense lock differs from the sparse one in its reward alone."""
    _, state = found
    _, other = explored(make("lock-dense", horizon=H, num_actions=A, instance_seed=8), 8)
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
    rows = [row for row in read_table(RESULTS / "held_out_general.csv") if row["seed"] == seed]
    by_episodes = {n: [row for row in rows if row["episodes"] == n] for n in ("500", "1000", "1500")}
    assert [len(own) for own in by_episodes.values()] == [61, 61, 61]
    worst = {n: min(float(row["ratio"]) for row in own) for n, own in by_episodes.items()}
    assert worst["500"] < 0.1
    assert min(worst["1000"], worst["1500"]) >= 0.9995, "1.000 on the page"
    assert sum(float(row["ratio"]) < 0.98 for row in by_episodes["500"]) == 11
    for own in by_episodes.values():
        assert max(float(row["plan_seconds"]) for row in own[1:]) < 0.07
