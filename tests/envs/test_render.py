"""Images of episodes and the listing of environments."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from briee import envs
from briee.envs import render
from briee.envs.lock import CombinationLock

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
