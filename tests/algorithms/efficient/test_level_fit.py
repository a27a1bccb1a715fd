"""Variable projection: gradients, closed forms, and that one level is decoded from few rows."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from briee.algorithms.efficient import level_fit, state_decoder
from briee.algorithms.efficient.config import EfficientConfig
from briee.algorithms.efficient.level_fit import Problem, label_mass, objective, unpack
from briee.algorithms.efficient.state_decoder import TRUST, Noise, unfitted
from briee.algorithms.efficient.strata import Strata, arrivals

APART = EfficientConfig().fit.apart

# One compilation per shape costs less, in time and memory, than one for each operation.
close_parts = jax.jit(state_decoder.close_parts, static_argnums=(3, 4))
largest_cluster = jax.jit(state_decoder.largest_cluster, static_argnums=(2, 3))
discriminators = jax.jit(level_fit.discriminators, static_argnums=2)
fit_level = jax.jit(level_fit.fit_level, static_argnums=(4, 5))
covariance, likeliest_shrinkage = (
    jax.jit(state_decoder.covariance),
    jax.jit(state_decoder.likeliest_shrinkage),
)
estimate_noise = jax.jit(state_decoder.estimate_noise, static_argnums=(3, 4))
gaussian_decoder = jax.jit(state_decoder.gaussian_decoder, static_argnums=(5, 6))


def noise_of(x, label, num_latents: int) -> Noise:
    rows = jnp.asarray(x, jnp.float32)
    return estimate_noise(rows, jnp.asarray(label), jnp.ones(len(rows)), num_latents, APART)


def random_problem(seed: int, n=40, d=3, A=2, T=2) -> Problem:
    rng = np.random.default_rng(seed)
    w = np.arange(n) < n - 5
    mass = w * rng.random(n)
    rows = lambda x, weight: jnp.array(x * weight[:, None], jnp.float32)  # noqa: E731
    return Problem(
        x=rows(rng.normal(size=(n, d)), w),
        action=rows(np.eye(A)[rng.integers(0, A, n)], w),
        target=rows(rng.normal(size=(n, T)), w),
        weight=jnp.array(w, jnp.float32),
        itself=rows(rng.normal(size=(n, d)), np.sqrt(mass)),
        mass=jnp.array(mass, jnp.float32),
    )


def slow_objective(parameters, problem: Problem, ridge: float, decay: float) -> float:
    """The same number by least squares with explicit ridge rows, in double precision."""
    A, b = (np.asarray(part, np.float64) for part in unpack(jnp.asarray(parameters), problem.x.shape[1]))
    x, action, target, w, itself, mass = (np.asarray(part, np.float64) for part in problem)

    def psi(x):
        e = np.exp(x @ A.T + b)
        return e / e.sum(1, keepdims=True)

    def smallest(features, target):
        k = features.shape[1]
        rows = np.vstack([features, np.sqrt(ridge) * np.eye(k)])
        goal = np.vstack([target, np.zeros((k, target.shape[1]))])
        return ((rows @ np.linalg.lstsq(rows, goal, rcond=None)[0] - goal) ** 2).sum()

    forward = sum(smallest(psi(x[mine]), target[mine]) for mine in (action > 0).T)
    compact = smallest(np.sqrt(mass)[:, None] * psi(x), itself)
    return (forward + compact) / w.sum() + decay * (A**2).sum()


@pytest.mark.parametrize("seed", range(3))
def test_the_objective_and_its_gradient_through_the_eliminated_weights(seed):
    K, problem = 3, random_problem(seed)
    rng = np.random.default_rng(seed)
    parameters = rng.normal(size=K * 4)
    goal = jax.jit(jax.value_and_grad(lambda p: objective(p, problem, 0.7, 0.1)))
    value, gradient = goal(jnp.array(parameters, jnp.float32))
    np.testing.assert_allclose(value, slow_objective(parameters, problem, 0.7, 0.1), rtol=1e-4)
    for _ in range(4):
        v = rng.normal(size=parameters.shape)
        ahead, behind = (slow_objective(parameters + s * 1e-4 * v, problem, 0.7, 0.1) for s in (1, -1))
        np.testing.assert_allclose(np.asarray(gradient) @ v, (ahead - behind) / 2e-4, rtol=1e-2, atol=1e-4)


def test_discriminators_are_the_directions_that_stand_out_of_white_noise():
    rng = np.random.default_rng(0)
    state = rng.integers(0, 2, 300)
    y = rng.normal(size=(300, 20))
    y[:, 7] += 6.0 * state
    values = np.asarray(discriminators(jnp.array(y, jnp.float32), jnp.ones(300), 2))
    assert abs(np.corrcoef(values[:, 0], state)[0, 1]) > 0.9
    assert (values[:, 1] ** 2).mean() < 0.01 * (values[:, 0] ** 2).mean()
    assert 0.5 < (values**2).mean() <= 1.0


@pytest.mark.parametrize(("n", "D"), [(60, 128), (500, 32)])
def test_where_there_is_only_noise_nothing_is_to_be_predicted(n, D):
    y = np.random.default_rng(0).normal(size=(n, D))
    values = np.asarray(discriminators(jnp.array(y, jnp.float32), jnp.ones(n), 4))
    assert (values**2).mean() < 0.05


def test_rare_labels_weigh_as_much_as_common_ones_and_single_rows_do_not():
    label = jnp.array([0] * 500 + [1] * 40 + [2])
    mass = np.asarray(label_mass(label, jnp.ones(541), 4))
    np.testing.assert_allclose(mass.sum(), 541, rtol=1e-4)
    common, rare, single = (mass[np.asarray(label) == c].sum() for c in (0, 1, 2))
    assert 0.7 < rare / common < 1.0
    assert single / common < 0.1


def test_loud_directions_do_not_lift_the_quiet_ones():
    """Noise of 10 loud coordinates must not hide states that differ in a quiet one."""
    rng = np.random.default_rng(0)
    scale = np.repeat([1.0, 0.1], [10, 22])
    noise = noise_of(rng.normal(size=(200, 32)) * scale, jnp.zeros(200, int), 3)
    quiet = np.diag(noise.factor @ noise.factor.T)[10:]
    assert 0.005 < quiet.mean() < 0.03  # the arithmetic mean of all eigenvalues would give 0.05


def test_noise_alike_in_all_directions_is_known_from_few_rows():
    x = np.random.default_rng(0).normal(size=(100, 64)) * 0.2
    noise = noise_of(x, jnp.zeros(100, int), 3)
    variance = np.linalg.eigvalsh(noise.factor @ noise.factor.T) / 0.04
    assert 0.6 < variance.min() < variance.max() < 1.6  # without shrinkage 0.04 to 3.2


@pytest.mark.parametrize("loud", [1.0, 1.5, 2.0, 10.0])
@pytest.mark.parametrize("n", [30, 100, 400])
def test_the_trust_in_a_covariance_makes_left_out_rows_likeliest(loud, n):
    """Against leaving out one row after the other."""
    rng, D = np.random.default_rng(n), 16
    x = rng.normal(size=(n, D)) * np.repeat([loud, 1.0], D // 2)
    x = x - x.mean(0)
    raw = covariance(jnp.array(x, jnp.float32), jnp.ones(n))
    factor, whiten, share = likeliest_shrinkage(raw, jnp.float32(n), jnp.float32(0))
    np.testing.assert_allclose(whiten @ factor, np.eye(D), atol=1e-4)

    nll = lambda S, row: np.linalg.slogdet(S)[1] + row @ np.linalg.solve(S, row)  # noqa: E731

    def loss(t: float) -> float:
        scale = np.trace(raw) / D
        for _ in range(2):
            scale = D / np.trace(np.linalg.inv(t * raw + (1 - t) * scale * np.eye(D)))
        whole = t * np.asarray(raw, float) + (1 - t) * scale * np.eye(D)
        without = [whole - t / (n - 1) * np.outer(row, row) for row in x]
        return float(np.mean([nll(S, row) for S, row in zip(without, x, strict=True)]))

    trust = np.array(TRUST) * n / (n + D)
    losses = [loss(t) for t in trust]
    chosen = int(np.argmin(np.abs(trust - float(share) * (n - 1))))
    assert losses[chosen] < min(losses) + 0.05


def test_noise_is_taken_from_the_purest_state():
    """State 1 still mixes two latent states that lie apart along the first axis."""
    rng = np.random.default_rng(0)
    scale = np.array([1.0, 5.0, 0.2])
    x = rng.normal(size=(900, 3)) * scale
    label = np.repeat([0, 1], [500, 400])
    x[500:700, 0] += 20.0
    noise = noise_of(x, label, 3)
    np.testing.assert_allclose(noise.factor @ noise.factor.T, np.diag(scale**2), atol=2.0, rtol=0.2)
    assert noise.members[:500].sum() == 400  # the most central 80 %
    assert noise.members[500:].sum() == 0


def test_a_few_rows_of_another_state_do_not_count_as_noise():
    """5 % of the rows with the only label lie 7 standard deviations apart, along the first axis."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(600, 20))
    x[:30, 0] += 7.0
    noise = noise_of(x, jnp.zeros(600, int), 3)
    variance = np.diag(noise.factor @ noise.factor.T)
    assert variance[0] < 1.3  # with those rows it is 3.3
    np.testing.assert_allclose(variance[1:].mean(), 1.0, atol=0.1)
    assert noise.members[:30].sum() <= 3


@pytest.mark.parametrize(("n", "states"), [(60, 2), (500, 2), (500, 4)])
def test_states_that_share_one_label_do_not_count_as_noise(n, states):
    """All rows have the same label, those of each state lie 10 standard deviations from all others."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n, 20))
    x[np.arange(n), rng.integers(0, states, n)] += 10 / np.sqrt(2)
    noise = noise_of(x, jnp.zeros(n, int), 6)
    variance = np.diag(noise.factor @ noise.factor.T)
    assert variance[:states].max() < 2.0  # as one cloud it is 10 and more
    np.testing.assert_allclose(variance[states:].mean(), 1.0, atol=0.3)


def test_one_cloud_is_not_cut():
    x = np.random.default_rng(0).normal(size=(400, 20))
    assert largest_cluster(jnp.array(x, jnp.float32), jnp.ones(400), 6, APART).sum() == 400


def test_one_threshold_decides_what_is_apart_for_the_noise_and_for_the_decoder():
    """Two clusters 8 standard deviations apart: two with `apart` 4, one with 20."""
    x = np.random.default_rng(0).normal(size=(400, 5))
    x[:150, 0] += 8.0
    rows, ones = jnp.array(x, jnp.float32), jnp.ones(400)
    cut = jnp.zeros((2, 5)).at[0, 0].set(1.0), jnp.array([-4.0, 0.0])
    for apart, clusters in ((4.0, 2), (20.0, 1)):
        noise = estimate_noise(rows, jnp.zeros(400, int), ones, 2, apart)
        assert (noise.members[:150].sum() == 0) == (clusters == 2)
        plain = noise._replace(factor=jnp.eye(5), whiten=jnp.eye(5))
        decoder = gaussian_decoder(*cut, plain, rows, ones, 5.0, apart)
        assert len(np.unique(decoder.alias)) == clusters


@pytest.mark.parametrize(("gap", "states"), [(0.0, 1), (7.0, 2)])
@pytest.mark.parametrize(("n", "D"), [(60, 128), (500, 16)])
def test_pieces_of_one_cloud_are_one_state_and_two_clouds_are_two(gap, states, n, D):
    rng = np.random.default_rng(0)
    z = rng.normal(size=(n, D))
    z[: n // 2, 0] += gap
    direction = np.linalg.svd(z - z.mean(0))[2][0]  # where a cut looks best
    label = ((z - z.mean(0)) @ direction > 0).astype(int)
    close = close_parts(jnp.array(z, jnp.float32), jnp.array(label), jnp.ones(n), 2, 4.0)
    assert bool(close[0, 1]) == (states == 1)


def test_observations_unlike_all_states_are_novel():
    rng = np.random.default_rng(0)
    centres = np.zeros((3, 30))
    centres[[0, 1, 2], [0, 1, 2]] = 14.0
    x = (rng.normal(size=(600, 30)) + centres[rng.integers(0, 2, 600)]) * 3.0
    weight, bias = jnp.array(centres[:2] / 3, jnp.float32), jnp.zeros(2)
    data = jnp.array(x, jnp.float32)
    noise = noise_of(data, jnp.argmax(data @ weight.T, 1), 2)
    decoder = gaussian_decoder(weight, bias, noise, data, jnp.ones(600), 5.0, APART)
    fresh = lambda state, n: jnp.array((rng.normal(size=(n, 30)) + centres[state]) * 3.0, jnp.float32)  # noqa: E731
    assert np.mean(decoder.label(fresh(0, 2000)) == 0) > 0.99
    assert np.mean(decoder.label(fresh(2, 200)) == 2) == 1.0
    assert set(np.asarray(decoder.nearest(fresh(2, 200))).tolist()) <= {0, 1}


def test_without_noise_no_known_observation_is_novel():
    x = jnp.array(np.eye(30)[np.random.default_rng(0).integers(0, 3, 300)], jnp.float32)
    label = jnp.argmax(x[:, :3], axis=1)
    noise = noise_of(x, label, 3)
    decoder = gaussian_decoder(jnp.eye(3, 30), jnp.zeros(3), noise, x, jnp.ones(300), 5.0, APART)
    np.testing.assert_array_equal(decoder.label(x), label)
    assert decoder.label(jnp.eye(30)[7]) == 3


def lock_level(n: int, D: int, seed: int, distractors: int = 0, noise: float = 0.1):
    """Transitions of one level of a lock, where states 0 and 1 each have one right action and state 2 has
    none; then observations to decode, and their states."""
    rng = np.random.default_rng(seed)
    rotation = np.linalg.qr(rng.normal(size=(D, D)))[0] * np.sqrt(D)

    def emit(z):
        x = rng.normal(size=(len(z), D)) * noise
        x[:, D - distractors :] = rng.normal(size=(len(z), distractors))
        x[np.arange(len(z)), z] += 1
        return x @ rotation.T

    z, action = rng.integers(0, 3, n), rng.integers(0, 4, n)
    good = ((z == 0) & (action == 1)) | ((z == 1) & (action == 2))
    following = np.where(good, rng.integers(0, 2, n), 2)
    label = jnp.zeros(n, int)
    own = Strata(
        jnp.array(emit(z), jnp.float32), jnp.array(emit(following), jnp.float32), jnp.array(action),
        jnp.zeros(n), jnp.array(rng.random(n), jnp.float32), label, label,
    )  # fmt: skip
    test = rng.integers(0, 3, 600)
    return own, jnp.array(emit(test), jnp.float32), test


@pytest.mark.parametrize(
    ("n", "D", "distractors"),
    [
        (400, 32, 10),
        pytest.param(200, 16, 0, marks=pytest.mark.slow),
        pytest.param(300, 64, 0, marks=pytest.mark.slow),
    ],
)
def test_one_level_of_a_lock_is_decoded_from_its_transitions(n, D, distractors):
    config, exact = EfficientConfig(), 0
    for seed in range(3):
        own, x, z = lock_level(n, D, seed, distractors)
        decoder = after = jax.tree.map(lambda leaf: leaf[0], unfitted(1, 3, D))
        for i in range(5):  # better labels give a better estimate of the noise, here and at the next level
            after, _ = fit_level(arrivals(own), after, after, jax.random.key(i), config, 4)
            decoder, value = fit_level(own, decoder, after, jax.random.key(i), config, 4)
            own = replace(
                own, label=decoder.label(own.observation), next_label=after.label(own.next_observation)
            )
        assert np.isfinite(value)
        table = np.zeros((3, 3))
        np.add.at(table, (z, np.asarray(decoder.nearest(x))), 1)
        exact += (table.max(1).sum() >= 0.99 * len(z)) and (np.unique(table.argmax(1)).size == 3)
    assert exact >= 2


def test_arrivals_are_rows_after_which_nothing_happens():
    own, _, _ = lock_level(50, 8, 0)
    own = replace(own, next_label=own.next_label + 1, reward=own.reward + 1)
    last = arrivals(own)
    np.testing.assert_array_equal(last.observation, own.next_observation)
    np.testing.assert_array_equal(last.label, own.next_label)
    assert not last.next_observation.any()
    assert not last.reward.any()


def test_levels_without_a_future_or_without_data_can_be_fitted():
    config = EfficientConfig()
    own, _, _ = lock_level(400, 32, 0)
    old = jax.tree.map(lambda leaf: leaf[0], unfitted(1, 3, 32))
    for rows in (own, arrivals(own), replace(own, action=jnp.full_like(own.action, -1))):
        decoder, value = fit_level(rows, old, old, jax.random.key(0), config, 4)
        assert all(bool(jnp.isfinite(leaf).all()) for leaf in (decoder.weight, decoder.bias, value))
