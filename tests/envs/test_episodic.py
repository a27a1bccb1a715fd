"""Episodic and its encoder: H steps of arrays from any Gymnasium environment, or one clear sentence."""

from __future__ import annotations

import threading
from functools import partial
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode

from briee.envs.adapters.encoding import Downsampled, ObservationEncoder, UnsupportedSpaceError
from briee.envs.adapters.episodic import EnvironmentStepError, Episodic, EpisodicVector, episodic, waiting
from briee.envs.adapters.third_party import own_optimum, sure_return
from countdown import Countdown

# check_env says so of every wrapper; that an environment has one is no fault of it.
WRAPPED = "ignore:.*is different from the unwrapped version.*"


def vector(mode=AutoresetMode.NEXT_STEP, asynchronous=False, lengths=(2, 5, 3), **kwargs):
    makers = [partial(Countdown, n, **kwargs) for n in lengths]
    if asynchronous:
        return gym.vector.AsyncVectorEnv(makers, autoreset_mode=mode, context="forkserver")
    return gym.vector.SyncVectorEnv(makers, autoreset_mode=mode)


@pytest.mark.parametrize("truncate", [False, True])
def test_an_early_end_is_padded_with_an_absorbing_observation(truncate):
    env = Episodic(Countdown(2, truncate=truncate), 4)
    rows = [env.reset(seed=0)[0]]
    outcomes = []
    for _ in range(4):
        observation, reward, terminated, truncated, info = env.step(0)
        rows.append(observation)
        original = (info["original_terminated"], info["original_truncated"])
        outcomes.append((reward, terminated, truncated, original))
    np.testing.assert_array_equal(rows, [[1, 1, 0], [2, 2, 0], [3, 3, 0], [0, 0, 1], [0, 0, 1]])
    end = (not truncate, truncate)
    assert outcomes == [
        (1.0, False, False, (False, False)),
        (1.0, False, False, end),
        (0.0, False, False, (False, False)),
        (0.0, True, False, (False, False)),
    ]
    with pytest.raises(gym.error.ResetNeeded, match="the 4 steps of this episode are over"):
        env.step(0)


def test_a_long_episode_is_cut_at_the_horizon():
    env = Episodic(Countdown(100), 3)
    env.reset(seed=0)
    flags = [env.step(0)[2:4] for _ in range(3)]
    assert flags == [(False, False), (False, False), (True, False)]
    assert env.reset()[0].tolist() == [1, 1, 0]


@pytest.mark.parametrize(
    ("mode", "asynchronous"),
    [(AutoresetMode.NEXT_STEP, False), (AutoresetMode.SAME_STEP, False), (AutoresetMode.NEXT_STEP, True)],
)
def test_vectors_give_what_single_environments_give(mode, asynchronous):
    batch: Any = episodic(vector(mode, asynchronous), 6)
    assert isinstance(batch, EpisodicVector)
    singles = [Episodic(Countdown(n), 6) for n in (2, 5, 3)]
    try:
        for seed in (1, 2):  # twice: the vector's own autoreset must not leak into the next episodes
            observation, _ = batch.reset(seed=seed)
            np.testing.assert_array_equal(observation, [env.reset(seed=seed)[0] for env in singles])
            for _ in range(6):
                observation, reward, terminated, truncated, info = batch.step(np.zeros(3, int))
                assert observation in batch.observation_space
                expected: list[Any] = [env.step(0) for env in singles]
                np.testing.assert_array_equal(observation, [e[0] for e in expected])
                np.testing.assert_array_equal(reward, [e[1] for e in expected])
                np.testing.assert_array_equal(terminated, [e[2] for e in expected])
                assert not truncated.any()
                for key in ("original_terminated", "original_truncated"):
                    np.testing.assert_array_equal(info[key], [e[4][key] for e in expected])
    finally:
        batch.close()


def test_seeds_reach_the_environment():
    env = Episodic(gym.make("CartPole-v1"), 5)
    one, same, other = (env.reset(seed=s)[0] for s in (1, 1, 2))
    np.testing.assert_array_equal(one, same)
    assert (one != other).any()


def test_the_horizon_is_found_where_the_environment_has_one():
    assert Episodic(gym.make("FrozenLake-v1")).horizon == 100
    assert EpisodicVector(gym.make_vec("FrozenLake-v1", num_envs=2)).horizon == 100
    assert Episodic(gym.make("briee/CombinationLock-v0", horizon=4)).horizon == 4
    with pytest.raises(ValueError, match="horizon is missing: Countdown has no time limit, so give"):
        Episodic(Countdown())
    with pytest.raises(ValueError, match="horizon must be >= 1, got 0"):
        Episodic(Countdown(), 0)


def test_optimal_return_comes_from_the_table_the_lock_or_the_user():
    plain = gym.make("FrozenLake-v1", is_slippery=False)
    assert Episodic(plain, 6).optimal_return == 1.0
    assert Episodic(plain, 5).optimal_return == 0.0  # the goal is six steps away
    assert Episodic(gym.make("briee/CombinationLock-v0")).optimal_return == 1.0
    assert Episodic(Countdown(), 3).optimal_return is None
    assert Episodic(Countdown(), 3, optimal_return=3.0).optimal_return == 3.0


def test_what_is_sure_comes_from_the_table():
    assert sure_return(gym.make("FrozenLake-v1", is_slippery=False), 6) == 1.0
    assert sure_return(gym.make("FrozenLake-v1"), 12) == 0.0  # it may slip at every step
    assert sure_return(Countdown(), 3) is None


@pytest.mark.filterwarnings(WRAPPED)
@pytest.mark.parametrize("env_id", ["FrozenLake-v1", "Taxi-v4", "CliffWalking-v1"])
def test_check_env_without_a_warning(env_id):
    check_env(Episodic(gym.make(env_id), 10), skip_render_check=True)


# -- encoding


@pytest.mark.parametrize(
    ("space", "value", "expected"),
    [
        (spaces.Box(-1, 1, (2, 2), np.float32), [[1, 0], [0, -1]], [1, 0, 0, -1, 0]),
        (spaces.Discrete(3, start=5), 6, [0, 1, 0, 0]),
        (spaces.MultiDiscrete([2, 3]), [1, 2], [0, 1, 0, 0, 1, 0]),
        (spaces.MultiBinary(3), [1, 0, 1], [1, 0, 1, 0]),
        (spaces.Tuple([spaces.Discrete(2), spaces.Box(0, 9, (1,))]), (1, [4]), [0, 1, 4, 0]),
        (spaces.Box(0, 255, (3,), np.uint8), [0, 51, 255], [0, 0.2, 1, 0]),
    ],
)
def test_vectors_are_encoded_part_by_part(space, value, expected):
    encoder = ObservationEncoder(space)
    single = encoder(value)
    np.testing.assert_allclose(single, np.array(expected, np.float32))
    assert single in encoder.space
    assert encoder.absorbing in encoder.space
    assert encoder.absorbing.tolist() == [0] * (len(expected) - 1) + [1]


@pytest.mark.parametrize("n", [500, 2000])
def test_large_discrete_spaces_are_one_hot_too(n):
    encoder = ObservationEncoder(spaces.Discrete(n))
    encoded = encoder(np.array([n - 1, 0]), batch=2)
    assert encoded.shape == (2, n + 1)
    assert encoded.argmax(axis=1).tolist() == [n - 1, 0]
    assert encoded.sum() == 2
    for outside in (-1, n):
        with pytest.raises(ValueError, match=rf"\[0, {outside}\] lies outside Discrete\({n}\)"):
            encoder(np.array([0, outside]), batch=2)


@pytest.mark.parametrize("shape", [(4, 5, 3), (4, 5)])
def test_images_are_scaled_and_keep_their_shape(shape):
    space = spaces.Box(0, 255, shape, np.uint8)
    encoder = ObservationEncoder(space)
    image = np.full(shape, 51, np.uint8)
    np.testing.assert_allclose(encoder(image), np.full(shape, 0.2, np.float32))
    assert encoder.space.high.max() == 1
    assert not encoder.absorbing.any()
    assert ObservationEncoder(space, image_scale=51)(image).max() == 1
    with pytest.raises(ValueError, match="image_scale must be > 0, got 0"):
        ObservationEncoder(space, image_scale=0)


DICT = spaces.Dict(
    {
        "image": spaces.Box(0, 255, (3, 3, 3), np.uint8),
        "direction": spaces.Discrete(4),
        "mission": spaces.Text(20),
    }
)


def test_dicts_are_flattened_or_chosen_from_and_text_is_left_out():
    value = {"image": np.full((3, 3, 3), 255, np.uint8), "direction": 2, "mission": "open the box"}
    with pytest.warns(UserWarning, match="observation 'mission' is text and is left out"):
        everything = ObservationEncoder(DICT)
    assert everything(value).shape == (27 + 4 + 1,)
    assert ObservationEncoder(DICT, keys="image")(value).shape == (3, 3, 3)
    assert ObservationEncoder(DICT, keys=("direction",))(value).tolist() == [0, 0, 1, 0, 0]
    batch = {"image": np.zeros((2, 3, 3, 3), np.uint8), "direction": np.array([0, 3]), "mission": ("a", "b")}
    assert ObservationEncoder(DICT, keys=["direction"])(batch, batch=2).tolist() == [
        [1, 0, 0, 0, 0],
        [0, 0, 0, 1, 0],
    ]


@pytest.mark.parametrize(
    ("space", "keys", "sentence"),
    [
        (DICT, ("colour",), "keys must be some of .*'image'.*, got .*'colour'"),
        (DICT, ("mission",), "text cannot be encoded, choose other keys"),
        (spaces.Discrete(3), ("image",), "need a Dict observation space"),
        (spaces.Text(4), None, "text cannot be encoded"),
        (spaces.Sequence(spaces.Discrete(2)), None, "is not supported; supported are Box, Discrete"),
    ],
)
def test_unsupported_observations_get_a_sentence(space, keys, sentence):
    with pytest.raises(UnsupportedSpaceError, match=sentence):
        ObservationEncoder(space, keys)


# -- bad environments


@pytest.mark.parametrize(
    ("actions", "kind"),
    [
        (spaces.Box(-1, 1, (1,)), "continuous"),
        (spaces.MultiDiscrete([2, 2]), "MultiDiscrete"),
    ],
)
def test_other_action_spaces_get_a_sentence(actions, kind):
    sentence = f"has {kind} actions, .*; supported are Discrete action spaces"
    with pytest.raises(UnsupportedSpaceError, match=sentence):
        Episodic(Countdown(actions=actions), 3)
    with pytest.raises(UnsupportedSpaceError, match=sentence):
        EpisodicVector(vector(actions=actions), 3)


FAULTS = [
    ("raise", "OSError: the sensor is unplugged"),
    ("nan", "observation has NaN entries"),
    ("shape", "shape"),
    ("reward", "a reward must be finite, got inf"),
]


@pytest.mark.parametrize(("fault", "cause"), FAULTS)
def test_a_faulty_step_names_the_environment_and_the_step(fault, cause):
    env = Episodic(Countdown(9, fault=fault), 5)
    env.reset(seed=0)
    env.step(0)
    with pytest.raises(EnvironmentStepError, match=f"environment Countdown failed at step 2: .*{cause}"):
        env.step(0)


@pytest.mark.parametrize(("fault", "cause"), [*FAULTS[:2], ("shape", "shape|broadcast"), FAULTS[3]])
def test_a_faulty_step_in_a_batch_names_the_environment_and_the_step(fault, cause):
    env = EpisodicVector(vector(lengths=(9, 9), fault=fault), 5)
    env.reset(seed=0)
    env.step(np.zeros(2, int))
    with pytest.raises(EnvironmentStepError, match=f"failed at step 2: .*({cause})"):
        env.step(np.zeros(2, int))


def test_environments_that_disagree_are_refused():
    makers = [lambda high=high: Countdown(space=spaces.Box(0, high, (2,), np.float32)) for high in (50, 60)]
    different = gym.vector.SyncVectorEnv(makers, observation_mode="different")
    with pytest.raises(UnsupportedSpaceError, match=r"environments 0 and 1 of the vector .* disagree: "):
        EpisodicVector(different, 3)


def test_disabled_autoreset_is_refused():
    with pytest.raises(ValueError, match="has autoreset disabled; supported are"):
        EpisodicVector(vector(AutoresetMode.DISABLED), 3)


class Shown(gym.Env):
    """Shows what it is given, whatever the actions."""

    action_space = spaces.Discrete(2)

    def __init__(self, space: gym.Space, *shown: Any):
        self.observation_space, self.shown = space, shown

    def reset(self, *, seed=None, options=None):
        self.at = 0
        return self.shown[0], {}

    def step(self, action):
        self.at += 1
        return self.shown[min(self.at, len(self.shown) - 1)], 0.0, False, False, {}


@pytest.mark.parametrize("axis", [0, 2])
def test_images_are_averaged_over_squares_the_last_ones_smaller(axis):
    pixels = np.moveaxis(np.arange(5 * 6 * 3, dtype=np.uint8).reshape(5, 6, 3), 2, axis)
    env = Downsampled(Shown(spaces.Box(0, 255, pixels.shape, np.uint8), pixels), 4)
    image = np.moveaxis(env.reset()[0], axis, 2)
    assert env.reset()[0] in env.observation_space
    assert image.shape == (2, 2, 3)
    whole = np.moveaxis(pixels, axis, 2) / 255
    np.testing.assert_allclose(image[0, 0], whole[:4, :4].mean((0, 1)), rtol=1e-6)
    np.testing.assert_allclose(image[1, 1], whole[4:, 4:].mean((0, 1)), rtol=1e-6)


def test_the_images_of_a_dict_are_averaged_and_the_rest_is_kept():
    space = spaces.Dict(grey=spaces.Box(0, 255, (4, 4), np.uint8), kind=spaces.Discrete(3))
    env = Downsampled(Shown(space, {"grey": np.full((4, 4), 51, np.uint8), "kind": 2}), 2)
    seen = Episodic(env, 1).reset()[0]
    np.testing.assert_allclose(seen, [*[0.2] * 4, 0, 0, 1, 0], rtol=1e-6)


def test_what_is_no_image_is_not_averaged():
    with pytest.raises(UnsupportedSpaceError, match=r"downsample is for images, not for .*Discrete\(3\)"):
        Downsampled(Shown(spaces.Discrete(3), 0), 2)
    with pytest.raises(ValueError, match="downsample must be >= 1, got 0"):
        Downsampled(Shown(spaces.Box(0, 255, (4, 4), np.uint8), np.zeros((4, 4), np.uint8)), 0)


def test_a_part_of_a_dict_that_changes_its_shape_is_named():
    space = spaces.Dict(place=spaces.Box(-1, 1, (2,)))
    shown = [{"place": np.zeros(2, np.float32)}, {"place": np.zeros(3, np.float32)}]
    env = EpisodicVector(gym.vector.SyncVectorEnv([lambda: Shown(space, *shown)] * 2), 3)
    env.reset(seed=0)
    with pytest.raises(
        EnvironmentStepError, match=r"at step 1: .*\['place'\] has shape \(3,\), but .* \(2,\)"
    ):
        env.step(np.zeros(2, int))


def test_a_step_that_does_not_return_is_named_while_it_lasts():
    entered, go_on = threading.Event(), threading.Event()

    class Slow(Countdown):
        def step(self, action):
            entered.set()
            go_on.wait(60)
            return super().step(action)

    env = EpisodicVector(gym.vector.SyncVectorEnv([lambda: Slow(5)]), 3)
    env.reset(seed=0)
    thread = threading.Thread(target=env.step, args=(np.zeros(1, int),))
    thread.start()
    entered.wait(60)
    assert waiting(0) == "environment Slow (copy 0 of 1) has not returned from step 1"
    assert waiting(1000) == ""
    go_on.set()
    thread.join()
    assert waiting(0) == ""


def test_the_optimum_of_a_toy_mdp_is_that_of_its_tables():
    """State 1 pays, state 2 ends; from 0 only state 3 leads to 1, and 1 can be kept."""
    toy = SimpleNamespace(
        config={"relevant_init_state_dist": [1, 0, 0, 0]}, rewardable_sequences={(1,): 1.0}, delay=0,
        sequence_length=1, transition_matrix=np.array([[3, 2], [1, 0], [2, 2], [1, 0]]),
        is_terminal_state=lambda state: state == 2, reward_scale=2.0, reward_shift=0.0, term_state_reward=0.0,
    )  # fmt: skip
    env: Any = SimpleNamespace(unwrapped=toy)
    assert own_optimum(env, 5) == 8.0
    toy.sequence_length = 2
    assert own_optimum(env, 5) is None
