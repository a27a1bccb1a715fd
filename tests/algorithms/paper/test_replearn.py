"""RepLearn: its gradients, its two players, its termination, and what it learns on one level."""

from dataclasses import replace
from itertools import permutations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from briee.algorithms.paper.buffers import Transitions
from briee.algorithms.paper.config import RepLearnConfig
from briee.algorithms.paper.decoders import linear_decoder
from briee.algorithms.paper.replearn import (
    Discriminator,
    discriminator_objective,
    first_discriminators,
    least_squares_loss,
    replearn,
)
from briee.envs.lock import CombinationLock
from briee.numerics.linalg import block_gram, block_moment, predict, ridge

A, K = 10, 3
LOCK = CombinationLock(horizon=4, instance_seed=5)
CONFIG = RepLearnConfig(rounds=12, hidden_sizes=(64,), discriminator_steps=96)
LEARN = eqx.filter_jit(replearn)


def one_level(rows: int, bad: float, seed: int, level: int = 1) -> tuple[Transitions, np.ndarray]:
    """Transitions of one level with uniform actions; a share `bad` of them from the bad state."""
    rng = np.random.default_rng(seed)
    latent = np.where(rng.uniform(size=rows) < bad, 2, rng.integers(2, size=rows))
    action = rng.integers(A, size=rows)
    good = (latent < 2) & (action == np.asarray(LOCK.combination)[level][latent])
    after = np.where(good, rng.integers(2, size=rows), 2)
    emit = jax.vmap(LOCK.emit, (0, None, 0))
    keys = jax.random.split(jax.random.key(seed), 2 * rows)
    true = jnp.ones(rows, bool)
    data = Transitions(
        observation=emit(jnp.asarray(latent), level, keys[:rows]),
        action=jnp.asarray(action, jnp.int32),
        reward=jnp.zeros(rows),
        next_observation=emit(jnp.asarray(after), level + 1, keys[rows:]),
        on_policy=true,
        valid=true,
    )
    return data, latent


def decoders(seed: int):
    keys = jax.random.split(jax.random.key(seed), 2)
    return [linear_decoder(k, LOCK.observation_shape, K, 1.0) for k in keys]


class Truth(eqx.Module):
    """psi* of level 1."""

    lock: CombinationLock

    def __call__(self, observation):
        return self.lock.ground_truth_features(jnp.int32(1), observation)


class Blind(eqx.Module):
    """Features that see nothing."""

    bias: jax.Array

    def __call__(self, observation):
        return jnp.full(K, 1 / K) + 0 * self.bias


def accuracy(decoder, data: Transitions, latent: np.ndarray) -> float:
    """Share of rows decoded right, under the best renaming of the decoded states."""
    decoded = np.argmax(np.asarray(jax.vmap(decoder)(data.observation)), axis=1)
    return max(np.mean(np.array(names)[decoded] == latent) for names in permutations(range(K)))


def test_the_lock_of_these_tests_tells_its_good_states_apart():
    assert LOCK.combination[1, 0] != LOCK.combination[1, 1]


def test_no_gradient_flows_through_the_solve_and_none_is_missing():
    """Envelope theorem: the gradient equals the one that differentiates the ridge solution as well."""
    rng = np.random.default_rng(0)
    psi, values = jnp.asarray(rng.dirichlet(np.ones(K), 50)), jnp.asarray(rng.normal(size=(50, 2)))
    action, weight, lam = jnp.asarray(rng.integers(4, size=50)), jnp.full(50, 1 / 50), 0.01

    def through_the_solve(psi, values):
        w = ridge(block_gram(psi, action, weight, 4), block_moment(psi, action, weight, values, 4), lam)
        return (weight @ (predict(w, psi, action) - values) ** 2 + lam * (w**2).sum((0, 1))).sum()

    def stopped(psi, values):
        return least_squares_loss(psi, action, weight, values, lam, 4).sum()

    assert stopped(psi, values) == pytest.approx(float(through_the_solve(psi, values)), rel=1e-6)
    for ours, exact in zip(
        jax.grad(stopped, (0, 1))(psi, values), jax.grad(through_the_solve, (0, 1))(psi, values), strict=True
    ):
        np.testing.assert_allclose(ours, exact, rtol=1e-3, atol=1e-6)


def test_a_discriminator_is_bounded_and_has_the_layers_it_was_asked_for():
    f = Discriminator(16, (32, 8), jax.random.key(0))
    assert [w.shape for w in f.weights] == [(16, 32), (32, 8), (8, 1)]
    assert float(jnp.abs(f(1e3 * jax.random.normal(jax.random.key(1), (50, 16)))).max()) <= 1.0


def test_the_objective_is_zero_for_true_features_and_positive_for_blind_ones():
    data, _ = one_level(1500, 0.4, seed=0)
    quick = replace(CONFIG, rounds=3, feature_steps=0, ell=None)
    rival = decoders(1)[1]
    truth = LEARN(jax.random.key(0), data, Truth(LOCK), rival, quick, A)
    blind = LEARN(jax.random.key(0), data, Blind(jnp.zeros(())), rival, quick, A)
    assert float(truth.gaps.max()) < 2e-3
    assert float(blind.gaps.max()) > 2e-2


def test_the_objective_is_the_difference_of_two_regressions():
    data, _ = one_level(300, 0.4, seed=1)
    psi, rival = (jax.vmap(d)(data.observation) for d in decoders(2))
    values, weight, lam = jnp.tanh(data.next_observation[:, 0]), jnp.full(300, 1 / 300), 1e-3

    def dense(psi):
        phi = np.einsum("nk,na->nak", psi, np.eye(A)[np.asarray(data.action)]).reshape(300, -1)
        w = np.linalg.solve(phi.T @ phi / 300 + lam * np.eye(phi.shape[1]), phi.T @ np.asarray(values) / 300)
        return np.mean((phi @ w - np.asarray(values)) ** 2) + lam * w @ w

    gap = discriminator_objective(psi, rival, data.action, weight, values, lam, A)
    assert float(gap) == pytest.approx(dense(psi) - dense(rival), abs=1e-5)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_features_decode_the_latent_states_of_one_level(seed):
    data, latent = one_level(1500, 0.5, seed)
    decoder, rival = decoders(seed + 10)
    assert accuracy(decoder, data, latent) < 0.9, "the start must not know the answer"
    result = LEARN(jax.random.key(seed), data, decoder, rival, CONFIG, A)
    fresh, fresh_latent = one_level(500, 0.5, seed + 100)
    assert accuracy(result.decoder, fresh, fresh_latent) > 0.97


def test_termination_triggers_and_can_be_turned_off():
    data, _ = one_level(1500, 0.4, seed=3)
    decoder, rival = decoders(3)
    stopped = LEARN(jax.random.key(0), data, decoder, rival, CONFIG, A)
    rounds = int(stopped.rounds)
    assert CONFIG.patience <= rounds < CONFIG.rounds
    last = np.asarray(stopped.gaps)[rounds - CONFIG.patience : rounds]
    assert CONFIG.ell is not None
    assert (last <= CONFIG.ell / 1500).all()
    assert np.isinf(np.asarray(stopped.gaps)[rounds:]).all()
    endless = LEARN(jax.random.key(0), data, decoder, rival, replace(CONFIG, ell=None), A)
    assert int(endless.rounds) == CONFIG.rounds


def test_the_released_order_starts_from_an_untrained_discriminator():
    """With no step for the discriminator at all, both orders are the same game."""
    data, _ = one_level(300, 0.4, seed=4)
    decoder, rival = decoders(4)
    short = replace(CONFIG, rounds=1, ell=None)
    first = LEARN(jax.random.key(0), data, decoder, rival, replace(short, first_player="features"), A)
    none = LEARN(jax.random.key(0), data, decoder, rival, replace(short, discriminator_steps=0), A)
    usual = LEARN(jax.random.key(0), data, decoder, rival, short, A)
    np.testing.assert_array_equal(first.decoder.network.A, none.decoder.network.A)
    assert not np.array_equal(first.decoder.network.A, usual.decoder.network.A)


def test_rows_that_are_not_valid_do_not_matter():
    data, _ = one_level(400, 0.4, seed=5)
    poison = eqx.tree_at(
        lambda d: (d.observation, d.next_observation, d.valid),
        data,
        (
            data.observation.at[200:].set(1e6),
            data.next_observation.at[200:].set(-1e6),
            data.valid.at[200:].set(False),
        ),
    )
    clean = eqx.tree_at(
        lambda d: (d.observation, d.next_observation),
        poison,
        (data.observation.at[200:].set(0), data.next_observation.at[200:].set(0)),
    )
    decoder, rival = decoders(5)
    short = replace(CONFIG, rounds=2)
    one, two = (LEARN(jax.random.key(0), d, decoder, rival, short, A) for d in (poison, clean))
    np.testing.assert_array_equal(one.decoder.network.A, two.decoder.network.A)


def test_discriminators_drawn_beforehand_are_those_of_the_game():
    """Bit for bit; and then no QR decomposition is left in the part that runs in parallel."""
    data, _ = one_level(300, 0.4, seed=6)
    decoder, rival = decoders(6)
    short, key = replace(CONFIG, rounds=2, ell=None), jax.random.key(0)
    first = eqx.filter_jit(first_discriminators)(key, data.next_observation.shape[-1], short)
    before, inside = (LEARN(key, data, decoder, rival, short, A, f) for f in (first, None))
    np.testing.assert_array_equal(before.decoder.network.A, inside.decoder.network.A)
    program = eqx.filter_make_jaxpr(replearn)
    qr = [str(program(key, data, decoder, rival, short, A, f)[0]).count(" qr[") for f in (first, None)]
    assert qr[0] == 0 < qr[1]
