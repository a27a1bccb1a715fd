"""The decoders' table, its accuracy and its figure, against decoders whose quality is known."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from briee import envs
from briee.diagnose.decoder_table import (
    decoder_accuracy,
    decoder_table,
    draw_decoder,
    draw_observations,
    match_states,
)
from briee.protocols import Algorithm
from briee.rollout.samplers import ScanSampler


class Known(Algorithm[Any]):
    """Decodes a lock by its ground truth, then renames the states at each level."""

    def __init__(self, pure, rename):
        self.sampler, self.pure, self.rename = ScanSampler(pure), pure, rename

    def decode(self, state, level, observations):
        truth = jax.vmap(lambda x: self.pure.ground_truth_features(level, x))(observations)
        return self.rename(level, truth)

    def decode_levels(self, state, observations):
        return jnp.stack([self.decode(state, h, rows) for h, rows in enumerate(observations)])


@pytest.fixture(scope="module")
def lock():
    return envs.make("lock", horizon=4, instance_seed=3)


@pytest.fixture(scope="module")
def observations(lock):
    return draw_observations(lock, jax.random.key(0), 20)


def table_of(lock, observations, rename):
    return decoder_table(Known(lock, rename), None, observations)


def test_observations_have_the_shape_of_the_environment(lock, observations):
    assert observations.shape == (4, 3, 20, *lock.observation_shape)


def test_permuted_truth_is_perfect_and_the_permutation_is_found(lock, observations):
    orders = [np.random.default_rng(h).permutation(3) for h in range(4)]
    table = table_of(lock, observations, lambda level, truth: truth[:, orders[level]])
    assert decoder_accuracy(table) == 1.0
    for level, order in enumerate(orders):
        np.testing.assert_array_equal(match_states(table.average[level]), np.argsort(order))
    np.testing.assert_allclose(table.average.sum(-1), 1, atol=1e-6)


def test_surplus_states_do_not_count_as_errors(lock, observations):
    split = lambda level, truth: jnp.concatenate([0.4 * truth, 0.6 * truth], axis=1)  # noqa: E731
    assert decoder_accuracy(table_of(lock, observations, split)) == 1.0


def test_a_blind_decoder_is_as_good_as_the_largest_group(lock, observations):
    table = table_of(lock, observations, lambda level, truth: jnp.ones_like(truth))
    largest = [
        max(np.bincount(group[reachable])) / reachable.sum()
        for group, reachable in zip(table.group, table.reachable, strict=True)
    ]
    assert decoder_accuracy(table) == pytest.approx(np.mean(largest))
    assert not table.reachable[0, 2]
    assert table.reachable[1:].all()


def test_states_with_one_transition_law_count_as_one(lock, observations):
    merge = lambda level, truth: jnp.stack([truth[:, 0] + truth[:, 1], truth[:, 2]], axis=1)  # noqa: E731
    table = table_of(lock, observations, merge)
    same = table.group[:, 0] == table.group[:, 1]
    np.testing.assert_array_equal(same, [a == b for a, b in np.asarray(lock.combination)[:, :2]])
    expected = [1.0 if together else (0.5 if level == 0 else 2 / 3) for level, together in enumerate(same)]
    assert decoder_accuracy(table) == pytest.approx(np.mean(expected))


def test_fewer_decoded_states_leave_some_unmatched():
    np.testing.assert_array_equal(match_states(np.asarray([[0.9, 0.1], [0.2, 0.3], [0.1, 0.9]])), [0, -1, 1])


def test_the_figure_is_drawn(lock, observations, tmp_path):
    draw_decoder(table_of(lock, observations, lambda level, truth: truth), tmp_path / "d.png", "a lock")
    assert (tmp_path / "d.png").read_bytes().startswith(b"\x89PNG")
