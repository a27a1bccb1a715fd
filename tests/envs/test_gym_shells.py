"""The Gymnasium shells: valid, seeded, equal to one another and to the pure functions; what they draw."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import jax
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from briee import envs
from briee.envs import render
from briee.envs.lock import CombinationLock

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
