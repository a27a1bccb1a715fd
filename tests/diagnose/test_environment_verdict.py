"""The doctor: what it says is true of environments whose structure is known; the table of decoded states."""

import re
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from briee import envs
from briee.configuration import EvaluationConfig
from briee.diagnose.decoder_table import (
    decoder_accuracy,
    decoder_table,
    draw_decoder,
    draw_observations,
    match_states,
)
from briee.diagnose.environment_verdict import enough_latents, examine, level_facts, lines
from briee.diagnose.run_verdict import examine_decoders, next_steps
from briee.diagnose.state_count import count_states
from briee.envs.lock import CombinationLock
from briee.protocols import Algorithm, Capabilities
from briee.rollout.policies import UniformPolicy
from briee.rollout.samplers import ScanSampler


def block_data(num_latents: int, episodes: int = 2000, noise: float = 0.1):
    """One step of a block MDP with two actions: action 0 keeps the latent state, action 1 draws another."""
    rng = np.random.default_rng(0)
    first = rng.integers(0, num_latents, episodes)
    action = rng.integers(0, 2, (episodes, 1))
    second = np.where(action[:, 0] == 0, first, rng.integers(0, num_latents, episodes))
    rotation = np.linalg.qr(rng.normal(size=(8, 8)))[0]
    emit = np.stack([np.eye(8)[first], np.eye(8)[second]], axis=1) @ rotation
    return emit + noise * rng.normal(size=emit.shape), action


@pytest.mark.parametrize("num_latents", [2, 3, 5])
def test_latent_states_are_counted_by_what_follows_them(num_latents):
    facts = level_facts(*block_data(num_latents), 0, 2, seed=0)
    assert facts.rank + 1 == num_latents
    assert 0.3 < facts.explained < 0.6  # all of the variance after one action of two, but for the noise


@pytest.mark.parametrize(("num_latents", "enough"), [(2, False), (4, False), (5, True), (8, True)])
def test_too_few_latent_states_are_diagnosed_and_too_many_are_not(num_latents, enough):
    facts = level_facts(*block_data(5), 0, 2, seed=0)
    (finding,) = enough_latents([facts], num_latents)
    assert finding.mark == ("note" if enough else "warning")  # random play confirms no number
    assert ("too small" in finding.text) == (not enough)


def test_one_latent_state_and_no_variation_explain_nothing():
    observations, action = block_data(1)
    assert level_facts(observations, action, 0, 2, seed=0).explained < 0.02
    assert level_facts(np.zeros_like(observations), action, 0, 2, seed=0).rank == 0


def test_an_easy_lock_and_continuous_dynamics_are_told_apart():
    lock = gym.make("briee/CombinationLock-v0", horizon=2, num_actions=3)
    found = examine(lock, episodes=600)
    said = repr(found)
    assert said == "\n".join(lines(found)), "a notebook shows what the command prints"
    assert "lock: 3 actions, observations of shape (8,), episodes of 2 steps" in said
    assert "observations form up to 3 clusters at a level" in said
    assert "the optimal return is 1" in said
    assert "continuous" not in said
    pole = "\n".join(lines(examine(gym.make_vec("CartPole-v1", num_envs=16), 8, episodes=200)))
    assert "looks like continuous dynamics" in pole


def test_finitely_many_observations_are_counted_and_are_not_continuous():
    lake = gym.make("FrozenLake-v1", is_slippery=False)
    said = "\n".join(lines(examine(lake, 4, episodes=200)))
    seen = re.search(r"random play saw at most (\d+) different observations at a level", said)
    assert seen is not None
    assert 7 <= int(seen[1]) <= 11  # cells within three steps, and the mark of an episode that is over
    assert "continuous" not in said


@pytest.mark.parametrize(("states", "noise"), [(2, 0.1), (12, 0.1), (36, 0.1), (36, 0.3)])
def test_clusters_of_observations_are_counted(states, noise):
    rng = np.random.default_rng(0)
    codes, first = rng.normal(size=(states, 40)), rng.integers(0, states, 1500)
    action, jump = rng.integers(0, 4, 1500), rng.integers(0, states, (states, 4))
    now, later = (codes[z] + noise * rng.normal(size=(1500, 40)) for z in (first, jump[first, action]))
    assert count_states(now, action, later) == states


def test_continuous_observations_and_clusters_that_drift_are_no_states():
    rng = np.random.default_rng(0)
    action, plain = rng.integers(0, 2, 1500), rng.normal(size=(1500, 3))
    assert count_states(plain, action, plain + 0.1) is None
    lattice = 10.0 * rng.integers(0, 5, (1500, 1)) + rng.normal(size=(1500, 3))
    assert count_states(lattice, action, lattice + action[:, None]) is None


def test_what_cannot_be_used_is_refused():
    with pytest.raises(ValueError, match="Pendulum-v1 has continuous actions"):
        examine(gym.make("Pendulum-v1"))


class Seeing(Algorithm[Any]):
    """Decoders of a lock that know its latent states, but for some that they merge."""

    name = "seeing"
    capabilities = Capabilities(decodes=True)

    def __init__(self, names):
        self.sampler = ScanSampler(CombinationLock(horizon=3, num_actions=4, instance_seed=1))
        self.names = jnp.asarray(names)

    def policy(self, state, kind):
        return UniformPolicy(4)

    def decode(self, state, level, observations):
        lock: Any = self.sampler.pure
        seen = jax.vmap(lambda s: lock.ground_truth_features(level, s))(observations)
        return seen @ jax.nn.one_hot(self.names, int(self.names.max()) + 1)


@pytest.mark.parametrize(
    ("names", "sentence"),
    [
        ([0, 1, 2], r"\+ decoded state .* nothing speaks against num_latents=3"),
        ([0, 1, 5], r"\+ .* nothing speaks against num_latents=6, of which a level uses at most 3"),
        ([0, 0, 1], r"! num_latents=2 is too small, .* at level 1 .* merges latent states"),
        ([0, 0, 2], r"\xb7 at level 0 .* it uses 1 of num_latents=3, so it needs more data or training"),
    ],
)
def test_merged_latent_states_of_a_run_are_noticed(names, sentence):
    (said,) = lines(examine_decoders(Seeing(names), None))
    assert re.match(sentence, said), said


class Few(Seeing):
    """The same decoders after some episodes, with a target of 1."""

    config = SimpleNamespace(evaluation=EvaluationConfig())


@pytest.mark.parametrize(
    ("names", "episodes", "cause", "options"),
    [
        (
            [0, 0, 1],
            5000,
            r"num_latents=2 (is|looks) too small: .* the observation predicts",
            "--num-latents",
        ),
        ([0, 1, 2], 5000, r"5,000 episodes were not enough", None),
        ([0, 0, 1], 60, r"60 episodes were not enough", None),
    ],
)
def test_the_cause_of_a_failed_run_comes_with_something_to_try(names, episodes, cause, options):
    state: Any = SimpleNamespace(episodes=np.int64(episodes))
    best = next_steps(Few(names), state, 1.0)[0]
    assert re.match(cause, best.cause), best
    assert best.more == (options is None)
    assert best.options[:1] == (() if options is None else (options,))


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
