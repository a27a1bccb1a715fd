"""Ridge regression and elliptical norms against dense linear algebra; L-BFGS."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from briee.numerics.linalg import (
    block_gram,
    block_moment,
    elliptical_norm,
    factorise,
    inverse_factor,
    log_determinant,
    minimise,
    orthonormal,
    predict,
    ridge,
    top_subspace,
)

A, K, T, n = 4, 3, 2, 60


@pytest.fixture
def sample():
    rng = np.random.default_rng(0)
    psi = rng.normal(size=(n, K))
    action = rng.integers(A, size=n)
    target = rng.normal(size=(n, T))
    phi = np.einsum("nk,na->nak", psi, np.eye(A)[action]).reshape(n, A * K)
    return psi, action, target, phi


def test_ridge_equals_lstsq_in_float64(sample):
    psi, action, target, phi = sample
    lam = 0.3
    stacked = np.vstack([phi, np.sqrt(lam) * np.eye(A * K)])
    expected = np.linalg.lstsq(stacked, np.vstack([target, np.zeros((A * K, T))]), rcond=None)[0]
    with jax.enable_x64(True):
        one = jnp.ones(n, jnp.float64)
        gram = block_gram(jnp.asarray(psi), jnp.asarray(action), one, A)
        w = ridge(gram, block_moment(jnp.asarray(psi), jnp.asarray(action), one, jnp.asarray(target), A), lam)
    np.testing.assert_allclose(np.asarray(w).reshape(A * K, T), expected, rtol=1e-9)


def test_gram_is_the_block_diagonal_of_the_dense_one(sample):
    psi, action, _, phi = sample
    weight = np.random.default_rng(1).uniform(size=n)
    dense = (phi * weight[:, None]).T @ phi
    gram = np.asarray(block_gram(jnp.asarray(psi), jnp.asarray(action), jnp.asarray(weight), A))
    rebuilt = np.zeros_like(dense)
    for a in range(A):
        rebuilt[a * K : (a + 1) * K, a * K : (a + 1) * K] = gram[a]
    np.testing.assert_allclose(rebuilt, dense, atol=1e-5)


def test_elliptical_norm_equals_the_dense_one(sample):
    psi, action, _, phi = sample
    lam = 0.7
    Sigma = phi.T @ phi + lam * np.eye(A * K)
    gram = block_gram(jnp.asarray(psi), jnp.asarray(action), jnp.ones(n), A)
    norm = np.asarray(elliptical_norm(inverse_factor(gram, lam), jnp.asarray(psi)))
    for i in range(5):
        for a in range(A):
            phi_ia = np.kron(np.eye(A)[a], psi[i])
            assert norm[i, a] == pytest.approx(np.sqrt(phi_ia @ np.linalg.solve(Sigma, phi_ia)), rel=1e-4)


def test_one_hot_norm_is_one_over_root_count_plus_lam():
    rng = np.random.default_rng(2)
    latent, action, lam = rng.integers(K, size=200), rng.integers(A, size=200), 1.0
    counts = np.zeros((K, A))
    np.add.at(counts, (latent, action), 1)
    gram = block_gram(jnp.eye(K)[latent], jnp.asarray(action), jnp.ones(200), A)
    norm = elliptical_norm(inverse_factor(gram, lam), jnp.eye(K))
    np.testing.assert_allclose(norm, 1 / np.sqrt(counts + lam), rtol=1e-5)


def test_predict_is_phi_times_w(sample):
    psi, action, _, phi = sample
    w = np.random.default_rng(3).normal(size=(A, K, T))
    values = predict(jnp.asarray(w), jnp.asarray(psi), jnp.asarray(action))
    np.testing.assert_allclose(values, phi @ w.reshape(A * K, T), atol=1e-5)


@pytest.mark.parametrize("size", [1, 5, 40, 131])
def test_elimination_gives_factors_and_determinants_of_many_blocks(size):
    root = np.random.default_rng(size).normal(size=(3, size, size + 4))
    matrix = (root @ root.swapaxes(1, 2) + 0.1 * np.eye(size)).astype(np.float32)
    lower, inverse = factorise(jnp.asarray(matrix))
    expected = np.linalg.cholesky(matrix.astype(float))
    np.testing.assert_allclose(lower, expected, rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(inverse @ expected, np.tile(np.eye(size), (3, 1, 1)), atol=1e-3)
    np.testing.assert_allclose(
        log_determinant(jnp.asarray(matrix)), np.linalg.slogdet(matrix.astype(float))[1], rtol=1e-3, atol=1e-3
    )


def test_columns_become_orthonormal_and_dependent_ones_zero():
    rng = np.random.default_rng(0)
    columns = rng.normal(size=(10, 4)) * [1, 1e-3, 50, 1]
    columns[:, 3] = columns[:, 0] - columns[:, 2]
    basis = np.asarray(orthonormal(jnp.asarray(columns, jnp.float32)))
    np.testing.assert_allclose(basis.T @ basis, np.diag([1, 1, 1, 0]), atol=1e-4)


def test_the_top_subspace_is_that_of_the_largest_eigenvalues():
    vectors = np.linalg.qr(np.random.default_rng(0).normal(size=(30, 30)))[0]
    values = np.concatenate([[9, 8, 5], np.linspace(2, 0, 27)])
    found = np.asarray(top_subspace(jnp.asarray((vectors * values) @ vectors.T, jnp.float32), 3))
    assert np.linalg.svd(found.T @ vectors[:, :3])[1].min() > 0.9999


def test_lbfgs_finds_the_minimum_of_a_quadratic():
    rng = np.random.default_rng(0)
    root = rng.normal(size=(6, 6))
    Q, b = jnp.array(root @ root.T + np.eye(6), jnp.float32), jnp.array(rng.normal(size=6), jnp.float32)
    x, value = jax.jit(lambda x: minimise(lambda x: 0.5 * x @ Q @ x - b @ x, x, 60))(jnp.zeros(6))
    solution = np.linalg.solve(Q, b)
    np.testing.assert_allclose(x, solution, atol=1e-2)
    np.testing.assert_allclose(value, -0.5 * b @ solution, atol=1e-4)


def test_lbfgs_follows_the_valley_of_rosenbrock_from_several_starts():
    rosenbrock = lambda x: (1 - x[0]) ** 2 + 20 * (x[1] - x[0] ** 2) ** 2  # noqa: E731
    starts = jnp.array([[-1.0, 1.0], [2.0, 0.0]])
    ends, values = jax.jit(jax.vmap(lambda x: minimise(rosenbrock, x, 200)))(starts)
    np.testing.assert_allclose(ends, 1.0, atol=0.05)
    assert (values < 1e-3).all()
