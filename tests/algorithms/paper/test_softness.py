"""The temperature of the decoders: it is found where it matters, and stays as it is elsewhere."""

from dataclasses import replace
from itertools import pairwise

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from briee.algorithms.paper.briee import BrieeAlgorithm
from briee.algorithms.paper.buffers import Transitions
from briee.algorithms.paper.collection import all_rows
from briee.algorithms.paper.config import BrieeConfig, HeldOutConfig
from briee.algorithms.paper.decoders import Decoder, linear_decoder
from briee.algorithms.paper.held_out_game import Played
from briee.algorithms.paper.level_features import learn_level, units_of, with_levels
from briee.algorithms.paper.softness import OFTEN, is_due, often_tried, softness
from briee.algorithms.paper.starts import psi
from briee.envs.emission import VectorEmission
from briee.envs.lock import CombinationLock
from briee.rollout.policies import UniformPolicy
from briee.rollout.samplers import ScanSampler

H, A, SCALE = 4, 2, 10.0
"""Two actions: a uniform policy sees every latent state at every level. SCALE: logits of clusters."""
CONFIG = HeldOutConfig(rounds=4)
SHARPEST = CONFIG.temperatures[0]


def lock(temperature: float | None, **arguments) -> CombinationLock:
    return CombinationLock(H, A, instance_seed=5, temperature=temperature, **arguments)


def rows_of(env: CombinationLock, episodes: int, seed: int) -> Transitions:
    trajectories = ScanSampler(env).rollout(UniformPolicy(A), jax.random.key(seed), episodes, whole=True)
    return jax.tree.map(np.asarray, all_rows(trajectories))


def decoders(env: CombinationLock, scale: float = SCALE) -> Decoder:
    """softmax(SCALE scores), where scores are e_z + noise: true clusters, as sharp as the game makes them."""
    assert isinstance(env.emission, VectorEmission)
    scores, dimension = env.emission.scores, env.observation_shape[0]
    keys = jax.random.split(jax.random.key(0), H)
    blank = jax.vmap(lambda key: linear_decoder(key, (dimension,), 3, 1.0))(keys)
    blank = replace(blank, bias=jnp.zeros((H, 3)))
    found = []
    for h in range(H):
        A_h = np.asarray(jax.jacobian(lambda s, h=h: scores(h, s))(jnp.zeros(dimension)))
        found.append(Played(scale * np.column_stack([A_h, np.zeros(3)]), 0.0, 1, True))
    return with_levels(blank, jnp.zeros(H), range(H), found)[0]


@pytest.mark.parametrize("seed", range(3))
def test_the_softness_of_a_low_rank_lock_is_found(seed):
    env = lock(0.5)
    factor = softness(decoders(env), rows_of(env, 4000, seed), CONFIG, A)
    assert 0.6 <= factor / (SCALE * 0.5) < 1.5, f"found {factor}, true {SCALE * 0.5}"


@pytest.mark.parametrize("seed", range(5))
def test_a_block_lock_keeps_the_sharpest_features(seed):
    env = lock(None, failure_probability=0.2)
    for episodes in (100, 1000, 4000):
        assert softness(decoders(env), rows_of(env, episodes, seed), CONFIG, A) == SHARPEST


def test_features_that_are_soft_enough_are_not_softened_further():
    env = lock(0.5)
    assert softness(decoders(env, scale=2.0), rows_of(env, 4000, 0), CONFIG, A) == 1.0


def test_few_rows_and_a_single_level_leave_the_temperature():
    env = lock(0.5)
    rows = rows_of(env, OFTEN - 1, 0)
    assert softness(decoders(env), rows, CONFIG, A) == SHARPEST, "no cell has enough rows"
    empty = eqx.tree_at(lambda rows: rows.valid, rows, np.zeros_like(rows.valid))
    assert softness(decoders(env), empty, CONFIG, A) == SHARPEST, "no level has a row"
    decoder, row = jax.tree.map(lambda leaf: leaf[:1], (decoders(env), rows))
    assert softness(decoder, row, CONFIG, A) == SHARPEST
    assert softness(decoders(env), rows_of(env, 4000, 0), HeldOutConfig(temperatures=(1.5,)), A) == 1.5


def test_rows_count_if_their_cell_was_tried_often():
    label = np.array([0] * OFTEN + [0] * (OFTEN - 1) + [2] * OFTEN)
    action = np.array([1] * OFTEN + [0] * (OFTEN - 1) + [0] * OFTEN)
    expected = [True] * OFTEN + [False] * (OFTEN - 1) + [True] * OFTEN
    np.testing.assert_array_equal(often_tried(label, action), expected)


def test_the_temperature_is_measured_as_often_as_the_data_grows_by_a_quarter():
    due = [n for n in range(1, 401) if is_due(n)]
    assert due[:4] == [2, 3, 4, 5]
    assert len(due) < 26
    assert all(later <= 1.25 * n + 1 for n, later in pairwise(due))


@pytest.mark.parametrize("temperatures", [(), (0.1, 0.0)])
def test_temperatures_that_are_none_are_refused(temperatures):
    with pytest.raises(ValueError, match=r"temperatures must be at least one number > 0, got \("):
        HeldOutConfig(temperatures=temperatures)


def test_sharp_features_leave_the_values_of_untried_cells_to_the_prior():
    """Nearly one-hot features give rows of a frequent state a little weight in the cell of a rare one. With
    the small ridge of `practical` that is enough to make up its value; sharper ones are not."""
    rng, n = np.random.default_rng(0), 2000
    scores = np.column_stack([np.ones(n), np.zeros(n)]) + 0.1 * rng.normal(size=(n, 2))
    V, lam = rng.normal(size=n), BrieeConfig.practical(50).lsvi.lam
    made_up = []
    for factor in (1.0, SHARPEST):
        features = psi(np.column_stack([SCALE * np.eye(2) / factor, np.zeros(2)]), scores)
        w = np.linalg.solve(features.T @ features + lam * np.eye(2), features.T @ V)
        made_up.append(abs(w[1] - w[0]))
    assert made_up[0] > 1, "comparable to the cap of the bonus, 2"
    assert made_up[1] < 0.1


@pytest.mark.parametrize(("temperature", "share"), [(0.2, 0.986), (0.5, 0.968), (1.0, 0.988)])
def test_hard_states_lose_a_few_percent_of_a_low_rank_lock(temperature, share):
    """The best policy that sees the true cluster alone, by dynamic programming: at temperature 0.5 no hard
    decoder comes within 3 % of the optimum, however many episodes it has."""
    env = CombinationLock(30, instance_seed=31, temperature=temperature)
    model, weights = env.latent_model(), env.noise_features()
    assert weights is not None
    V = np.zeros(3)
    for h in reversed(range(30)):
        Q = model.reward[h] + model.transition[h] @ V
        V = (weights.mean(1) @ Q).max(1)
    assert V[:2].mean() / env.optimal_return == pytest.approx(share, abs=0.001)


def test_the_game_is_played_with_the_configured_temperature_whatever_was_found():
    algorithm = BrieeAlgorithm(ScanSampler(lock(0.5)), replace(BrieeConfig.practical(H), workers=1))
    state = algorithm.update(algorithm.init(jax.random.key(1)))
    state = replace(state, iteration=np.asarray(6), growth=jnp.full(H, jnp.inf))
    assert not is_due(7)
    soft = replace(state, decoder=replace(state.decoder, temperature=3 * algorithm.temperature()))
    one, three = algorithm.play_held_out(state), algorithm.play_held_out(soft)
    assert np.asarray(one.rounds).all(), "all levels were learned"
    np.testing.assert_array_equal(one.decoder.network.A, three.decoder.network.A)
    np.testing.assert_array_equal(three.decoder.temperature, 3 * algorithm.temperature())
    np.testing.assert_allclose(one.decoder.temperature, SHARPEST * algorithm.temperature())
    assert algorithm.metrics(three)["temperature"] == 3
    s = state.buffers.rows.observation[1][:50]
    soft = psi(units_of(one.decoder, 1) * SHARPEST / 3, np.asarray(s, float))
    np.testing.assert_allclose(algorithm.decode(three, 1, s), soft, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("rows", [3, 200])
def test_states_without_noise_leave_features_that_can_be_sharpened(rows):
    """Three rows, or three observations that repeat, are clusters of no size. The sharpest features must not
    exceed what 32 bits can hold."""
    states = np.random.default_rng(0).normal(size=(3, 8))
    s = states[np.arange(rows) % 3].astype(np.float32)
    action = np.zeros((1, rows), np.int32)
    yes = np.ones((1, rows), bool)
    data = Transitions(*map(jnp.asarray, (s[None], action, np.zeros((1, rows)), s[None], yes, yes)))
    data = jax.tree.map(np.asarray, data)
    blank = linear_decoder(jax.random.key(0), (8,), 3, 1.0)
    blank = jax.tree.map(lambda leaf: leaf[None], replace(blank, bias=jnp.zeros(3)))
    level = jax.tree.map(lambda leaf: leaf[0], data)
    played = learn_level(level, np.arange(rows), blank, 0, jax.random.key(0), CONFIG, A)
    decoder = with_levels(blank, jnp.zeros(1), [0], [played])[0]
    soft = replace(decoder, temperature=decoder.temperature * SHARPEST).at(0, s)
    np.testing.assert_allclose(np.sort(soft, axis=1), np.tile([0.0, 0.0, 1.0], (rows, 1)), atol=1e-6)
    assert len(set(np.asarray(soft[:3]).argmax(1))) == 3
