"""Worlds whose states are the same at every step: exact and pooled states, sparse tables, plans on them."""

from dataclasses import replace
from typing import Any

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from briee.agent.agent import Agent
from briee.algorithms.general import world_stage
from briee.algorithms.general.algorithm import General
from briee.algorithms.general.config import DataConfig, GeneralConfig
from briee.algorithms.general.exact import compiled_hash, hashes, repeated_share, whole
from briee.algorithms.general.pooled import find_clusters, usual_radius
from briee.algorithms.general.pooling import labels, left_open, mixes_steps, prediction, recurrence
from briee.algorithms.general.world import EXACT, OFF, POOLED, STEPS, Model, no_world
from briee.algorithms.general.world_plan import plan_discovery, plan_reward, random_share
from briee.algorithms.general.world_stage import add_episodes, at_steps, begin, scattered, step_evidence
from briee.envs.adapters.third_party import own_optimum
from briee.envs.finite_block import FiniteBlockMDP
from briee.envs.grids import ImageGrid, NoisyGrid
from briee.envs.lock import CombinationLock
from briee.rollout.host import HostSampler
from briee.rollout.samplers import ScanSampler, evaluate, make_sampler
from briee.rollout.trajectories import Trajectories
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


def pooled_on(env, updates: int, seed: int = 21):
    algorithm = General(HostSampler(env), GeneralConfig())
    state = algorithm.init(jax.random.key(seed))
    for _ in range(updates):
        state = algorithm.update(state)
    returns = evaluate(algorithm.sampler, algorithm.policy(state), jax.random.key(5), 10)
    return algorithm, state, returns


def test_a_noisy_grid_is_learned_with_pooled_states():
    algorithm, state, returns = pooled_on(NoisyGrid(size=5), 4)
    np.testing.assert_array_equal(returns, 1.0)
    assert algorithm.metrics(state)["representation"] == POOLED
    assert algorithm.metrics(state)["states_most"] == 26  # and the one after the end


def test_a_grid_of_images_is_learned_with_pooled_states():
    algorithm, state, returns = pooled_on(ImageGrid(), 4)
    np.testing.assert_array_equal(returns, 1.0)
    assert algorithm.metrics(state)["states_most"] == 17


def test_compiled_policy_and_host_give_the_same_states():
    algorithm, state, _ = pooled_on(NoisyGrid(size=4), 3)
    policy, x = world_stage.policy(state.world, "greedy", algorithm.config), state.data.observation[:20, 3]
    known, compiled = jax.vmap(policy.state, (None, 0))(jax.numpy.int32(3), jax.numpy.asarray(x))
    model = Model.of(state.world)
    assert np.asarray(known).all()
    assert [model.state_of[name] for name in model.names(x, 3, grow=False)] == compiled.tolist()
    decoded = np.asarray(algorithm.decode(state, 3, jax.numpy.asarray(x)))
    np.testing.assert_array_equal(decoded.argmax(1), compiled)


def test_an_unseen_place_becomes_a_state_while_acting():
    rng = np.random.default_rng(0)
    _, state, _ = pooled_on(NoisyGrid(size=4), 2)
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


def lake(**settings: Any) -> gym.Env:
    return gym.make("FrozenLake-v1", is_slippery=False, **settings)


def learned(env: str, horizon: int, updates: int, seed: int = 21, **arguments: Any):
    algorithm = General(make_sampler(env, horizon, arguments), GeneralConfig())
    state = algorithm.init(jax.random.key(seed))
    for _ in range(updates):
        state = algorithm.update(state)
    return algorithm, state


def trajectories(x: np.ndarray) -> Trajectories:
    """Episodes with these observations, of action 0 and without a reward."""
    E, levels = x.shape[:2]
    nothing = jnp.zeros((E, levels - 1))
    return Trajectories(jnp.asarray(x), nothing.astype(int), nothing, jnp.zeros((E, levels), int))


def chain(n: int) -> Model:
    """States 0 .. n - 1; action 1 goes right, action 0 stays; only the last step right is rewarded."""
    model = Model(2, 2 * n, stepped=False)
    states = model.states(list(range(n)), 1)
    model.states([0], 0)
    for s in states[:-1]:
        model.add(s, 0, s, 0.0, 1)
        model.add(s, 1, s + 1, float(s == n - 2), 1)
    return model


def test_numpy_and_jax_give_the_same_hashes():
    x = np.random.default_rng(0).standard_normal((40, 17)).astype(np.float32)
    x[::3, :5] = 0.0
    for level in (0, 3):
        compiled = jax.vmap(compiled_hash, (0, None))(jnp.asarray(x), jnp.int32(level))
        np.testing.assert_array_equal(compiled, hashes(x, level))
    assert len(np.unique(whole(hashes(x)))) == 40
    assert not (hashes(x) == hashes(x, 1)).all(1).any()
    np.testing.assert_array_equal(hashes(-np.zeros((1, 3), np.float32)), hashes(np.zeros((1, 3), np.float32)))


def test_one_hot_vectors_never_share_a_hash():
    assert len(np.unique(whole(hashes(np.eye(2000, dtype=np.float32))))) == 2000


def test_the_repeated_share_counts_observations_seen_before():
    fresh = np.array([[1, 2, 3, 2], [1, 2, 9, 8]], np.uint64)
    assert repeated_share(np.zeros(0, np.uint64), fresh) == pytest.approx(2 / 6)  # the second 2 twice
    assert repeated_share(np.array([9, 8], np.uint64), fresh) == pytest.approx(4 / 6)


def test_tables_survive_the_checkpoint():
    model = chain(5)
    world = replace(no_world(16, 4, 2, 3), mode=np.asarray(EXACT, np.int32))
    again = Model.of(model.stored(world))
    for name in ("keys", "depth", "starts", "cell", "tries", "sums", "source", "target", "times"):
        assert getattr(again, name) == getattr(model, name)
    np.testing.assert_array_equal(again.curve, model.curve)


def test_a_full_table_takes_no_further_states():
    model = Model(2, 3, stepped=False)
    assert model.states([7, 8, 9, 10, 7], 0) == [0, 1, 2, -1, 0]
    assert model.full


def test_the_plan_is_the_finite_horizon_optimum():
    model = chain(6)
    assert plan_reward(model, 5).value == pytest.approx(1.0, abs=1e-5)
    assert plan_reward(model, 4).value == pytest.approx(0.0)
    assert plan_reward(model, 5).action[:, :5].diagonal().tolist() == [1] * 5


@pytest.mark.parametrize("horizon", [3, 30])
def test_the_plan_on_true_counts_is_the_optimum_of_a_random_world(horizon):
    """Against value iteration on the table of the slippery lake."""
    env: Any = gym.make("FrozenLake-v1")
    model = Model(4, 80, stepped=False)
    names = [*range(16), 99]
    model.states(names, 1)
    model.states([0], 0)
    for s, actions in env.unwrapped.P.items():
        for a, rows in actions.items():
            over = env.unwrapped.desc.ravel()[s] in b"GH"
            for _, y, r, _ in rows if not over else [(1, 16, 0.0, True)] * 3:
                model.add(s, a, int(y), float(r), 1)
    for a in range(4):
        model.add(16, a, 16, 0.0, 1)
    assert plan_reward(model, horizon).value == pytest.approx(own_optimum(env, horizon), abs=1e-4)
    assert plan_reward(model, horizon, optimism=1.0).value > plan_reward(model, horizon).value


def test_discoveries_are_sought_where_something_is_untried():
    model = chain(6)
    values, chance = plan_discovery(model, 10, prior=2.0)
    assert chance == pytest.approx(0.999**5)  # the last state was never left
    assert values[:5].argmax(1).tolist() == [1] * 5
    for a in (0, 1) * 9:
        model.add(5, a, 5, 0.0, 1)
    assert plan_discovery(model, 10, prior=2.0)[1] == pytest.approx(0.25)  # (0 + 2 / 2) / (2 + 2) at one try


def test_a_state_seen_only_at_the_end_promises_no_discovery():
    model = Model(1, 8, stepped=False)
    for h in range(4):
        model.states([h], h)
    for s in range(3):
        model.add(s, 0, s + 1, 0.0, s)
    assert plan_discovery(model, 4, prior=1e-9)[1] == pytest.approx(0.999**3)
    assert plan_discovery(model, 3, prior=1e-9)[1] < 1


def test_rewards_that_fall_with_the_step_are_taken_early():
    """As in MiniGrid: waiting costs nothing but time."""
    model = Model(2, 8, stepped=False)
    model.states([0], 0)
    model.states([1], 1)
    for h in range(6):
        model.add(0, 0, 0, 0.0, h)
        model.add(0, 1, 1, 1.0 - 0.1 * h, h)
        model.add(1, 0, 1, 0.0, h)
    plan = plan_reward(model, 8)
    assert plan.value == pytest.approx(1.0, abs=1e-5)
    assert plan.action[:, 0].tolist() == [1] * 8


def test_equal_values_prefer_what_was_tried_more():
    model = Model(3, 4, stepped=False)
    model.states([0], 0)
    for times, action in ((1, 0), (5, 2)):
        for _ in range(times):
            model.add(0, action, 0, 1.0, 0)
    assert plan_reward(model, 2).action[:, 0].tolist() == [2, 2]


def test_the_share_of_random_cells():
    assert random_share(chain(6)) == 0.5  # nothing was tried twice
    model = chain(6)
    for s in range(5):
        model.add(s, 1, s + 1, 0.0, 1)
    assert random_share(model) == pytest.approx(0.5 / 6)


def test_the_step_matters_only_where_the_data_say_so():
    rng = np.random.default_rng(0)
    action = rng.integers(0, 2, (40, 6))
    stationary, stepped = np.zeros((2, 40, 7), int)
    for h in range(6):
        stationary[:, h + 1] = rng.integers(0, 3, 40)
        stepped[:, h + 1] = (action[:, h] + h) % 2
    assert step_evidence(at_steps(stationary, action, 2)) < 5
    assert step_evidence(at_steps(stepped, action, 2)) > 20


def test_the_evidence_for_the_step_is_that_of_dirichlet_predictions():
    """A cell with successors 0, 0 and 1 at step 0 and 1 at step 1, whose frequencies are p = 1/2."""
    once = np.array([[4, 0, 0, 2], [4, 1, 0, 1], [4, 1, 1, 1], [7, 0, 2, 9], [7, 1, 2, 5]])
    first = (0.5 * 1.5 * 0.5) / (1 * 2 * 3)  # of 0, 0, 1 after each other
    assert step_evidence(once) == pytest.approx(np.log(first / 0.5**3))  # cell 7 was seen at one step only


def test_the_evidence_for_the_step_adds_up_over_rounds():
    """Five episodes show each cell about once at each step; only many rounds tell that the step matters."""
    rng = np.random.default_rng(0)
    world = replace(no_world(16, 3, 2, 4), mode=np.asarray(EXACT, np.int32))
    for _ in range(12):
        place, action = rng.integers(0, 4, (5, 4)), rng.integers(0, 2, (5, 3))
        for h in range(3):
            place[:, h + 1] = (place[:, h] + action[:, h] * (h + 1) + rng.integers(0, 2, 5)) % 4
        episodes = trajectories(np.eye(4, dtype=np.float32)[place])
        world = world_stage.counted(world, replace(episodes, action=jnp.asarray(action)))
    steps = world_stage.counted_steps(world)
    assert steps[:, 3].sum() == 12 * 5 * 3
    assert len(np.unique(steps[:, :3], axis=0)) == len(steps)
    assert step_evidence(steps) > 10


def test_a_full_table_of_steps_counts_no_more():
    world = replace(no_world(1, 6, 2, 1), mode=np.asarray(EXACT, np.int32))  # four slots
    for H, rows in ((3, 3), (6, 0)):
        episodes = trajectories(np.zeros((2, H + 1, 1), np.float32))
        assert len(world_stage.counted_steps(world_stage.counted(world, episodes))) == rows


def test_noise_and_ended_episodes_are_no_exact_states():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((5, 21, 3)).astype(np.float32)
    x[:, 4:] = 0.0  # absorbed
    episodes = trajectories(x)
    empty = no_world(64, 20, 2, 3)
    assert begin(empty, episodes) is empty
    grid = replace(episodes, observation=jnp.asarray(np.round(x)))
    assert int(begin(empty, grid).mode) == EXACT


def test_with_the_step_equal_observations_are_several_states():
    episodes = trajectories(np.zeros((1, 4, 2), np.float32))
    for stepped, states in ((False, 1), (True, 4)):
        model = Model(2, 8, stepped)
        add_episodes(model, episodes)
        assert len(model.keys) == states


def test_the_contract_of_an_agent_holds_on_the_host():
    agent = check_agent(lambda seed: Agent(lake(), algorithm="general", horizon=8, seed=seed), iterations=2)
    assert agent.history[-1]["representation"] == EXACT


@pytest.mark.slow
def test_the_contract_of_an_agent_holds_for_a_pure_world():
    env = FiniteBlockMDP(horizon=3, instance_seed=1)
    config = GeneralConfig(world_states=256)
    agent = check_agent(lambda seed: Agent(env, algorithm="general", config=config, seed=seed), iterations=2)
    assert agent.history[-1]["representation"] == EXACT
    assert isinstance(agent.algorithm.sampler, ScanSampler)


@pytest.mark.parametrize(
    ("env", "horizon", "arguments", "updates"),
    [("FrozenLake-v1", 20, {"is_slippery": False}, 4), ("CliffWalking-v1", 50, {}, 4)],
)
def test_noise_free_grids_need_no_learning(env, horizon, arguments, updates):
    algorithm, state = learned(env, horizon, updates, **arguments)
    returns = evaluate(algorithm.sampler, algorithm.policy(state), jax.random.key(5), 4)
    assert returns.tolist() == pytest.approx([algorithm.sampler.optimal_return] * 4)
    assert algorithm.metrics(state)["representation"] == EXACT
    assert int(state.env_steps) == 20 * updates * horizon


def test_taxi_is_learned_in_a_few_updates():
    algorithm, state = learned("Taxi-v4", 60, 9)
    returns = evaluate(algorithm.sampler, algorithm.policy(state), jax.random.key(5), 100)
    assert returns.mean() > 6.5
    assert returns.min() > -20
    assert 300 < algorithm.metrics(state)["states_most"] <= 501


class Clock(gym.Env):
    """The same observation always; the right action alternates with the step."""

    observation_space = gym.spaces.Discrete(3)
    action_space = gym.spaces.Discrete(2)
    horizon = 6

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        self.time, self.place = 0, 0
        return self.place, {}

    def step(self, action):
        right = action == self.time % 2
        self.time += 1
        self.place = 1 if right and self.place < 2 else 2
        return self.place, float(self.time == 6 and self.place == 1), False, False, {}


def test_a_world_whose_step_matters_gets_states_with_the_step():
    algorithm = General(HostSampler(Clock()), GeneralConfig())
    state = algorithm.init(jax.random.key(3))
    for _ in range(8):
        state = algorithm.update(state)
    assert int(state.world.mode) == STEPS
    np.testing.assert_array_equal(
        evaluate(algorithm.sampler, algorithm.policy(state), jax.random.key(1), 5), 1
    )


def test_a_lock_whose_observations_repeat_at_every_step_is_opened():
    algorithm, state = learned("finite-lock", 3, 15, seed=31, num_actions=3, instance_seed=31)
    assert int(state.world.mode) == STEPS
    returns = evaluate(algorithm.sampler, algorithm.policy(state), jax.random.key(5), 20)
    np.testing.assert_array_equal(returns, 1.0)


@pytest.mark.parametrize(("tries", "new", "expected"), [(20, 19, True), (20, 14, False), (12, 12, False)])
def test_observations_whose_successors_never_recur_are_no_states(tries, new, expected):
    world = no_world(8, 3, 2, 4)
    world.curve[:, 1] = tries, new
    assert scattered(world) is expected
