"""The Gymnasium shells, and what they draw; RichObservation: tabular environments as block MDPs."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import jax
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from briee import envs
from briee.envs import render
from briee.envs.adapters.episodic import Episodic
from briee.envs.adapters.rich import NoisyObservation, RichObservation, rich_observation
from briee.envs.lock import CombinationLock
from briee.rollout.host import HostSampler
from briee.rollout.policies import UniformPolicy

ROUNDING: Any = {"rtol": 1e-6, "atol": 1e-6}  # batches of other sizes compile to other orders of addition
DYNAMICS = [envs.ENVIRONMENTS[name].id for name in ("lock", "lock-simplex", "random-block")]
IDS = [entry.id for entry in envs.ENVIRONMENTS.values()]


def test_every_environment_is_registered_with_gymnasium():
    assert all(env_id in gym.registry for env_id in IDS)


@pytest.mark.parametrize("env_id", IDS)
def test_check_env_without_a_warning(env_id):
    check_env(gym.make(env_id, horizon=3).unwrapped)


@pytest.mark.parametrize("env_id", DYNAMICS)
def test_vector_shell_is_a_valid_vector_environment(env_id):
    env: Any = gym.make_vec(env_id, num_envs=3, horizon=3)
    assert env.single_action_space == gym.spaces.Discrete(env.unwrapped.pure.num_actions)
    observation, info = env.reset(seed=1)
    env.action_space.seed(0)
    for step in range(1, 8):
        assert observation in env.observation_space
        assert info["level"].tolist() == [(step - 1) % 4] * 3
        observation, reward, terminated, truncated, info = env.step(env.action_space.sample())
        assert reward.shape == terminated.shape == truncated.shape == (3,)
        assert terminated.tolist() == [step % 4 == 3] * 3  # then one step of autoreset
        assert not truncated.any()


@pytest.mark.parametrize("env_id", DYNAMICS)
def test_scalar_equals_vector_for_the_same_keys(env_id):
    vector: Any = gym.make_vec(env_id, num_envs=3, horizon=3)
    scalars = [gym.make(env_id, horizon=3) for _ in range(3)]
    actions = np.random.default_rng(0).integers(vector.unwrapped.pure.num_actions, size=(3, 3))
    batch, _ = vector.reset(seed=[7, 8, 9])
    single: list[Any] = [env.reset(seed=seed) for env, seed in zip(scalars, (7, 8, 9), strict=True)]
    np.testing.assert_allclose(batch, np.stack([s[0] for s in single]), **ROUNDING)
    for row in actions:
        batch, rewards, _, _, info = vector.step(row)
        single = [env.step(a) for env, a in zip(scalars, row, strict=True)]
        np.testing.assert_allclose(batch, np.stack([s[0] for s in single]), **ROUNDING)
        np.testing.assert_array_equal(rewards, np.array([s[1] for s in single], np.float32))
        assert info["latent"].tolist() == [s[4]["latent"] for s in single]


def test_vector_shell_equals_the_pure_functions():
    vector: Any = gym.make_vec("briee/CombinationLock-v0", num_envs=6, horizon=4, num_actions=2)
    pure = vector.unwrapped.pure
    keys = jax.random.split(jax.random.key(3), 6)
    state, expected = jax.jit(jax.vmap(lambda k: envs.episode_start(pure, k)))(keys)
    observation, _ = vector.reset(seed=3)
    np.testing.assert_allclose(observation, expected, **ROUNDING)
    step = jax.jit(jax.vmap(lambda s, a, k: envs.episode_step(pure, s, a, k)))
    for row in np.random.default_rng(1).integers(2, size=(4, 6)):
        state, expected, reward, done = step(state, row.astype(np.int32), keys)
        observation, rewards, terminated, _, _ = vector.step(row)
        np.testing.assert_allclose(observation, expected, **ROUNDING)
        np.testing.assert_array_equal(rewards, reward)
        np.testing.assert_array_equal(terminated, done)


def test_one_seed_one_stream_of_episodes():
    def first_observations(seed):
        env = gym.make("briee/CombinationLock-v0", horizon=3)
        return np.stack([env.reset(seed=seed)[0]] + [env.reset()[0] for _ in range(4)])

    one, same, other = (first_observations(s) for s in (5, 5, 6))
    np.testing.assert_array_equal(one, same)
    assert len(np.unique(np.concatenate([one, other]), axis=0)) == 10


def test_autoreset_continues_the_stream_of_each_environment():
    vector: Any = gym.make_vec("briee/CombinationLock-v0", num_envs=3, horizon=3)
    vector.reset(seed=[1, 2, 3])
    for _ in range(4):
        restarted = vector.step(np.array([0, 0, 0]))[0]
    scalar = gym.make("briee/CombinationLock-v0", horizon=3)
    scalar.reset(seed=2)
    np.testing.assert_allclose(restarted[1], scalar.reset()[0], **ROUNDING)


def test_actions_outside_the_space_and_missing_resets_get_a_sentence():
    env = gym.make("briee/CombinationLock-v0", horizon=3).unwrapped
    with pytest.raises(gym.error.ResetNeeded, match="call reset"):
        env.step(0)
    env.reset(seed=0)
    with pytest.raises(ValueError, match=r"action must be an integer in \[0, 10\), got 10"):
        env.step(10)
    for _ in range(3):
        env.step(0)
    with pytest.raises(gym.error.ResetNeeded, match="call reset"):
        env.step(0)
    vector: Any = gym.make_vec("briee/CombinationLock-v0", num_envs=3, horizon=3)
    with pytest.raises(gym.error.ResetNeeded):
        vector.step(np.array([0, 0, 0]))
    vector.reset(seed=0)
    with pytest.raises(ValueError, match=r"actions must be in \[0, 10\)"):
        vector.step(np.array([0, 0, -1]))
    with pytest.raises(ValueError, match="actions must be 3 integers"):
        vector.step(np.array([0, 1]))
    with pytest.raises(ValueError, match="num_envs must be >= 1, got 0"):
        gym.make_vec("briee/CombinationLock-v0", num_envs=0)


def test_unknown_names_list_the_known_ones():
    with pytest.raises(ValueError, match="unknown environment 'look': pure environments are lock, "):
        envs.make("look")


def test_values_have_the_type_of_the_argument():
    assert envs.make("lock", horizon=3, final_reward=2).optimal_return == 2.0
    assert envs.make("lock", temperature=None).temperature is None
    with pytest.raises(ValueError, match="horizon must be a whole number, got True"):
        envs.make("lock", horizon=True)


LOCK = CombinationLock(3, num_actions=12, instance_seed=1)


def trail_of_a_fall() -> render.Trail:
    """Right, then wrong, then nothing matters."""
    right = np.asarray(LOCK.combination)
    return render.Trail([0, 1, 2], [int(right[0, 0]), int(right[1, 1] + 1) % 12])


def test_text_shows_where_the_agent_is_and_what_was_right():
    trail = trail_of_a_fall()
    rows = [line.split() for line in render.ansi(LOCK, trail).splitlines()]
    assert rows[0] == ["level", "0", "1", "2", "3"]
    assert rows[1] == ["good", "0", "o", ".", ".", "."]
    assert rows[2] == ["good", "1", ".", "o", ".", "."]
    assert rows[3] == ["bad", "2", ".", ".", "@", "."]
    assert rows[4] == ["action", *map(str, trail.actions)]
    assert rows[5] == ["right", str(LOCK.combination[0, 0]), str(LOCK.combination[1, 1])]


def test_in_the_bad_state_no_action_is_right():
    trail = render.Trail([2, 2], [5])
    assert render.right_actions(LOCK, trail) == [None]
    assert render.ansi(LOCK, trail).splitlines()[-1].split() == ["right", "-"]


def test_image_marks_the_cells_of_the_way_and_the_actions():
    image = render.rgb_array(LOCK, trail_of_a_fall())
    cell = render.CELL
    assert image.shape == (4 * cell, 4 * cell, 3)
    assert image.dtype == np.uint8

    def colour(row, column):  # a point of the cell that no digit covers
        return tuple(image[row * cell + 4, column * cell + cell // 2].tolist())

    assert colour(0, 0) == colour(1, 1) == render.VISITED
    assert colour(2, 2) == render.HERE
    assert colour(1, 0) == render.GOOD
    assert colour(2, 0) == render.BAD
    assert colour(0, 3) == render.GOAL
    assert [colour(3, 0), colour(3, 1), colour(3, 2)] == [render.RIGHT, render.WRONG, render.PAPER]


def test_long_locks_are_shown_through_a_window():
    lock = CombinationLock(100)
    for level in (0, 50, 100):
        shown = render.window(lock, level)
        assert len(shown) == render.WINDOW
        assert level in shown
    trail = render.Trail([0] * 101, [0] * 100)
    assert render.rgb_array(lock, trail).shape[1] == render.WINDOW * render.CELL


def test_shells_render_what_happened():
    env: Any = gym.make("briee/CombinationLock-v0", horizon=3, render_mode="ansi")
    _, info = env.reset(seed=0)
    assert env.render().splitlines()[1 + info["latent"]].split()[2] == "@"
    env.step(4)
    assert env.render().splitlines()[4].split() == ["action", "4"]
    vector: Any = gym.make_vec("briee/RandomBlockMDP-v0", num_envs=2, horizon=3, render_mode="rgb_array")
    vector.reset(seed=0)
    vector.step(np.array([0, 1]))
    frames = vector.render()
    assert len(frames) == 2
    assert all(frame.dtype == np.uint8 and frame.ndim == 3 for frame in frames)


def test_bad_render_modes_get_a_sentence():
    with pytest.raises(ValueError, match="render_mode must be one of rgb_array, ansi, got 'human'"):
        envs.PureEnv(LOCK, "human")
    with pytest.raises(gym.error.ResetNeeded, match="call reset"):
        envs.PureEnv(LOCK, "ansi").render()
    assert envs.PureVectorEnv(LOCK, 2).render() is None


def test_the_listing_has_every_environment_with_its_numbers():
    rows = {row.name: row for row in envs.describe_all()}
    assert list(rows) == list(envs.ENVIRONMENTS)
    assert rows["lock"][1:7] == ("briee/CombinationLock-v0", 6, 10, 3, (16,), 1.0)
    assert rows["lock-dense"].optimal_return == pytest.approx(3.9)
    assert envs.describe("briee/CombinationLock-v0", horizon=100).observation_shape == (128,)


WRAPPED = "ignore:.*is different from the unwrapped version.*"
EMISSIONS = ["hadamard", "random", "image"]


@pytest.mark.filterwarnings(WRAPPED)
@pytest.mark.parametrize("emission", EMISSIONS)
def test_check_env_accepts_rich_observations(emission):
    check_env(RichObservation(gym.make("FrozenLake-v1"), emission), skip_render_check=True)


@pytest.mark.parametrize("emission", EMISSIONS)
def test_the_state_is_in_info_and_can_be_decoded(emission):
    env = RichObservation(gym.make("FrozenLake-v1", is_slippery=False), emission)
    plain = gym.make("FrozenLake-v1", is_slippery=False)
    assert env.decodability() == 1.0
    observation, info = env.reset(seed=0)
    state, _ = plain.reset(seed=0)
    for action in (2, 2, 1, 1, 1, 2):
        assert observation.shape == ((28, 28, 1) if emission == "image" else (16,))
        assert observation in env.observation_space
        assert info["latent"] == state
        assert env.ground_truth_features(observation).argmax() == state
        observation, reward, terminated, _, info = env.step(action)
        state = plain.step(action)[0]
    assert (reward, terminated, info["latent"]) == (1.0, True, 15)


@pytest.mark.parametrize("emission", EMISSIONS)
def test_emissions_of_a_state_differ_by_noise_alone(emission):
    env = RichObservation(gym.make("FrozenLake-v1"), emission, noise=0.1, templates=1)
    draws = np.stack([env.reset()[0] for _ in range(2000)])
    quiet = RichObservation(gym.make("FrozenLake-v1"), emission, noise=0.0, templates=1).reset()[0]
    if emission == "image":
        assert (np.abs(draws - quiet).max(axis=0) > 0).all()
        return
    # Noise 0.1 before a rotation of squared norm 16 is 0.4 after it; five standard errors.
    assert np.abs(draws.mean(axis=0) - quiet).max() < 5 * 0.4 / np.sqrt(2000)
    assert np.abs(draws.std(axis=0) - 0.4).max() < 5 * 0.4 / np.sqrt(4000)


def test_seeds_of_noise_and_of_instance_are_apart():
    def first(instance, seed):
        return RichObservation(gym.make("FrozenLake-v1"), "random", instance_seed=instance).reset(seed=seed)[
            0
        ]

    np.testing.assert_array_equal(first(0, 1), first(0, 1))
    assert np.abs(first(0, 1) - first(0, 2)).max() < 3
    assert np.abs(first(0, 1) - first(1, 1)).max() > 0.5


def test_taxi_has_five_hundred_states_and_an_optimum():
    env = Episodic(RichObservation(gym.make("Taxi-v4")), 20)
    assert env.observation_space.shape == (513,)
    assert env.optimal_return is not None
    assert 5 < env.optimal_return < 10
    observation, info = env.reset(seed=3)
    assert (
        RichObservation(gym.make("Taxi-v4")).ground_truth_features(observation[:-1]).argmax()
        == info["latent"]
    )


def test_vectors_of_rich_environments():
    wrappers: Any = [RichObservation, lambda env: Episodic(env, 8)]
    env = gym.make_vec("FrozenLake-v1", num_envs=3, vectorization_mode="sync", wrappers=wrappers)
    observation, info = env.reset(seed=0)
    assert observation.shape == (3, 17)
    assert info["latent"].tolist() == [0, 0, 0]
    env.action_space.seed(0)
    for step in range(1, 9):
        terminated = env.step(env.action_space.sample())[2]
        assert terminated.tolist() == [step == 8] * 3


def test_bad_arguments_get_a_sentence():
    with pytest.raises(ValueError, match="need a Discrete observation space, CartPole-v1 has a Box"):
        RichObservation(gym.make("CartPole-v1"))
    with pytest.raises(ValueError, match="emission must be one of hadamard, random, image, got 'smell'"):
        RichObservation(gym.make("FrozenLake-v1"), "smell")
    with pytest.raises(ValueError, match="noise must be >= 0, got -1"):
        RichObservation(gym.make("FrozenLake-v1"), noise=-1)


@pytest.mark.filterwarnings(WRAPPED, "ignore:.*Box observation space m.*value is.*infinity.*")
def test_noise_on_array_observations():
    plain, noisy = gym.make("CartPole-v1"), NoisyObservation(gym.make("CartPole-v1"), noise=0.3)
    check_env(noisy, skip_render_check=True)
    starts = np.stack([noisy.reset(seed=seed)[0] - plain.reset(seed=seed)[0] for seed in range(300)])
    assert starts.std() == pytest.approx(0.3, rel=0.1)  # 1200 draws: five standard errors
    np.testing.assert_array_equal(noisy.reset(seed=3)[0], noisy.reset(seed=3)[0])
    with pytest.raises(ValueError, match="noise needs a Box observation space of real numbers"):
        rich_observation(gym.make("FrozenLake-v1"), {"emission": "noise"})
    with pytest.raises(ValueError, match="noise must be >= 0, got -1"):
        rich_observation(plain, {"emission": "noise", "noise": -1})


# pyright: reportMissingImports=false
# The other projects are extras; their tests are skipped without them.


# pygame, which some of these import for drawing, warns about its own packaging.
others_warn = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


def minigrid(layout: str):
    """A fully observed MiniGrid whose layout is fixed, so that it is a block MDP."""
    pytest.importorskip("minigrid")
    from minigrid.wrappers import FullyObsWrapper

    class FixedLayout(gym.Wrapper):
        def reset(self, *, seed=None, options=None):
            return self.env.reset(seed=7, options=options)

    return FixedLayout(FullyObsWrapper(gym.make(f"MiniGrid-{layout}-v0")))


@others_warn
@pytest.mark.parametrize("layout", ["Empty-5x5", "DoorKey-5x5"])
def test_minigrid(layout):
    env = Episodic(minigrid(layout), 12, keys="image", image_scale=10)
    assert env.observation_space.shape == (5, 5, 3)
    one, other = (env.reset(seed=seed)[0] for seed in (0, 1))
    np.testing.assert_array_equal(one, other)
    data = HostSampler(env.env, 12, keys=("image", "direction"), image_scale=10).rollout(
        UniformPolicy(7), jax.random.key(0), 3
    )
    assert data.observation.shape == (3, 13, 5 * 5 * 3 + 4 + 1)
    assert float(data.observation.min()) >= 0
    assert float(data.observation.max()) <= 1


@others_warn
def test_minigrid_reaches_its_goal_and_is_absorbed():
    env = Episodic(minigrid("Empty-5x5"), 12, keys="image", image_scale=10)
    assert Episodic(minigrid("Empty-5x5"), keys="image").horizon == 100
    env.reset(seed=0)
    forward, right = 2, 1
    rewards = [env.step(action)[1] for action in (forward, forward, right, forward, forward)]
    assert rewards[-1] > 0
    assert sum(rewards[:-1]) == 0
    observation, reward, _, _, _ = env.step(forward)
    assert not observation.any()
    assert reward == 0


@others_warn
def test_minigrid_says_that_it_leaves_the_mission_out():
    with pytest.warns(UserWarning, match="'mission' is text and is left out"):
        Episodic(minigrid("Empty-5x5"), 12)


@others_warn
def test_deep_sea():
    pytest.importorskip("bsuite")
    shimmy = pytest.importorskip("shimmy")
    gym.register_envs(shimmy)
    env: Any = gym.make("bsuite/deep_sea-v0", size=10, disable_env_checker=True)
    sampler = HostSampler(env, 10, optimal_return=0.99)
    assert sampler.observation_shape == (101,)
    data = sampler.rollout(UniformPolicy(2), jax.random.key(0), 20)
    observation = np.asarray(data.observation)
    # One diver, one row deeper at each level; the last step leaves the sea.
    assert (observation[:, :10, :-1].sum(axis=2) == 1).all()
    depth = observation[:, :10, :-1].argmax(axis=2) // 10
    assert (depth == np.arange(10)).all()


@others_warn
@pytest.mark.parametrize("mode", ["sync", "vector_entry_point"])
def test_cartpole_is_no_block_mdp_and_runs_all_the_same(mode):
    env = gym.make_vec("CartPole-v1", num_envs=4, vectorization_mode=mode)
    sampler = HostSampler(env, 40)
    data = sampler.rollout(UniformPolicy(2), jax.random.key(0), 6)
    again = sampler.rollout(UniformPolicy(2), jax.random.key(0), 6)
    np.testing.assert_array_equal(data.observation, again.observation)
    over = np.asarray(data.observation[..., -1]) == 1
    assert over[:, -1].all(), "a random policy drops the pole within 40 steps, seeds fixed"
    assert (np.asarray(data.reward) == ~over[:, 1:]).all()


@others_warn
def test_frozen_lake_and_taxi_as_block_mdps():
    for env_id, states in (("FrozenLake-v1", 16), ("Taxi-v4", 500)):
        sampler = HostSampler(RichObservation(gym.make(env_id)), 15)
        data = sampler.rollout(UniformPolicy(sampler.num_actions), jax.random.key(0), 4)
        assert data.observation.shape[1:] == (16, 2 ** int(np.ceil(np.log2(states))) + 1)
        assert sampler.optimal_return is not None


@others_warn
@pytest.mark.parametrize("name", list(envs.ENVIRONMENTS))
def test_stable_baselines_accepts_the_registered_environments(name):
    checker = pytest.importorskip("stable_baselines3.common.env_checker")
    checker.check_env(gym.make(envs.ENVIRONMENTS[name].id, horizon=3).unwrapped)


# Its own networks want large images in uint8; these are small floats in [0, 1].
@others_warn
@pytest.mark.filterwarnings(
    "ignore:It seems that your observation .*is an image", "ignore:The minimal resolution for an image"
)
@pytest.mark.parametrize("emission", ["hadamard", "random", "image"])
def test_stable_baselines_accepts_the_wrappers(emission):
    checker = pytest.importorskip("stable_baselines3.common.env_checker")
    rich = RichObservation(gym.make("FrozenLake-v1"), emission)
    checker.check_env(Episodic(rich, 8))
    checker.check_env(rich)
