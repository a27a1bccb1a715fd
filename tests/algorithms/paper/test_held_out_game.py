"""RepLearn on held-out rows: its parts against slow references, the errors of line 6, and one level."""

from itertools import permutations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from briee.algorithms.paper.config import HeldOutConfig
from briee.algorithms.paper.discriminator_class import candidates, orthonormal_basis, predictable_directions
from briee.algorithms.paper.held_out_game import (
    DECAY,
    RIDGE,
    Game,
    Level,
    agreement,
    best_units,
    held_out_errors,
    held_out_loss,
    projected_loss,
)
from briee.algorithms.paper.level_features import Sample, clustered_starts, learn, stratified_folds
from briee.algorithms.paper.starts import (
    Units,
    central_scatter,
    clustered,
    from_white,
    in_white,
    k_means,
    labels,
    mixture,
    psi,
    purest_scatter,
    random_units,
    scaled,
    separation,
)
from briee.envs.lock import CombinationLock

A, K, LEVEL = 10, 3, 3
CONFIG = HeldOutConfig(rounds=4)
RIGHT_ROWS = 20
"""Of so many good rows of a lane, one has the right action on average: two lanes, ten actions."""


def lock(horizon: int, distractors: int = 0, temperature: float | None = None) -> CombinationLock:
    return CombinationLock(horizon, instance_seed=1, distractors=distractors, temperature=temperature)


def one_level(env: CombinationLock, rows: int, good: int, seed: int) -> tuple[Sample, np.ndarray]:
    """Rows of a level with uniform actions, `good` of them from the two lanes, and their latent states."""
    rng = np.random.default_rng(seed)
    latent = rng.permutation(np.concatenate([np.full(rows - good, 2), np.arange(good) % 2]))
    keys = jax.random.split(jax.random.key(seed), 2 * rows)
    emit = jax.vmap(env.emit, (0, None, 0))
    s = emit(jnp.asarray(latent), LEVEL, keys[:rows])
    action, source = rng.integers(A, size=rows), latent
    if env.temperature is not None:
        features = np.asarray(jax.vmap(env.ground_truth_features, (None, 0))(LEVEL, s))
        source = np.array([rng.choice(K, p=p / p.sum()) for p in features.astype(float)])
    right = (source < 2) & (action == np.asarray(env.combination)[LEVEL][source])
    after = np.where(right, rng.integers(2, size=rows), 2)
    arrived = emit(jnp.asarray(after), LEVEL + 1, keys[rows:])
    return Sample(np.array(s, float), action, np.array(arrived, float)), latent


def accuracy(units: Units, env: CombinationLock, seed: int) -> float:
    """Share of new rows decoded right, averaged over latent states, under the best renaming."""
    sample, latent = one_level(env, 1500, 1000, seed + 1000)
    label = labels(units, sample.s)
    share = [[np.mean(label[latent == z] == k) for z in range(K)] for k in range(K)]
    return max(
        float(np.mean([share[name][z] for z, name in enumerate(names)])) for names in permutations(range(K))
    )


def blank(env: CombinationLock) -> Units:
    return np.zeros((K, env.observation_shape[0] + 1))


def from_random(env: CombinationLock, good: int, seed: int) -> float:
    """Accuracy after a game that starts from random features, with 1,000 rows."""
    sample, _ = one_level(env, 1000, good, seed)
    rng = np.random.default_rng(seed)
    white = purest_scatter(sample.s, None)
    first = from_white(random_units(rng, K, sample.s.shape[1]), white)
    return accuracy(learn(sample, blank(env), None, rng, CONFIG, A, first).units, env, seed)


def from_clusters(env: CombinationLock, good: int, seed: int, rounds: int = 4) -> float:
    """Accuracy after a game that starts as in a run, with 1,000 rows."""
    sample, _ = one_level(env, 1000, good, seed)
    config = HeldOutConfig(rounds=rounds)
    return accuracy(learn(sample, blank(env), None, np.random.default_rng(seed), config, A).units, env, seed)


# -- parts ----------------------------------------------------------------------------------------------


def test_white_coordinates_show_rare_states_as_outliers():
    sample, latent = one_level(lock(12, distractors=20), 1000, 40, seed=0)
    x = central_scatter(sample.s)(sample.s)
    size = (x**2).sum(1)
    assert np.median(size) == pytest.approx(x.shape[1], rel=1e-6)
    assert np.quantile(size[latent < 2], 0.1) > np.quantile(size[latent == 2], 0.99)


def test_units_mean_the_same_in_both_coordinates():
    rng = np.random.default_rng(0)
    s = rng.normal(size=(50, 6)) @ rng.normal(size=(6, 6))
    white, units = central_scatter(s), rng.normal(size=(K, 7))
    np.testing.assert_allclose(psi(in_white(units, white), white(s)), psi(units, s), rtol=1e-6)
    np.testing.assert_allclose(from_white(in_white(units, white), white), units, rtol=1e-6, atol=1e-9)


def test_k_means_and_prototypes_find_separated_clusters_of_any_size():
    rng = np.random.default_rng(0)
    latent = np.repeat([0, 1, 2], [900, 80, 20])
    x = 10 * np.eye(8)[latent] + rng.normal(size=(1000, 8))
    centres, near = k_means(x, 3)
    assert agreement(near, latent) == 1.0
    np.testing.assert_allclose(np.sort((centres**2).sum(1)), [100] * 3, rtol=0.2)
    assert agreement(labels(clustered(x, 3, 10.0), x), latent) > 0.999
    found = separation(x, latent)
    assert found.clusters == 3
    assert found.distance == pytest.approx(10 * np.sqrt(2), rel=0.15)


def test_halves_of_one_cloud_are_one_cluster():
    rng = np.random.default_rng(1)
    x = rng.normal(size=(1000, 4))
    assert separation(x, (x[:, 0] > 0).astype(int)).clusters == 1
    assert separation(x, np.zeros(1000, int)) == (1, 0.0)


def test_a_mixture_repairs_labels_that_are_mostly_right():
    rng = np.random.default_rng(2)
    latent = rng.integers(3, size=900)
    loud = np.array([1.0] * 3 + [20.0] * 9)
    s = 8 * np.eye(12)[latent] + rng.normal(size=(900, 12)) * loud
    wrong = np.where(rng.uniform(size=900) < 0.25, rng.integers(3, size=900), latent)
    assert agreement(labels(mixture(s, wrong, 3, 10.0), s), latent) > 0.99
    plain = scaled(s)
    assert agreement(k_means(plain(s), 3)[1], latent) < 0.7, "the loud directions hide the clusters"


def test_the_projected_loss_is_the_ridge_loss_and_its_gradient_is_exact():
    rng = np.random.default_rng(3)
    n, d, T = 60, 4, 2
    z, F = rng.normal(size=(n, d)), rng.normal(size=(n, T))
    action, weight, M = (
        rng.integers(3, size=n),
        (np.arange(n) < 50).astype(float),
        rng.normal(size=(K, d + 1)),
    )

    def slow(M):
        phi = np.einsum("nk,na->nak", psi(M, z), np.eye(3)[action]).reshape(n, -1)[:50]
        W = np.linalg.solve(phi.T @ phi + RIDGE * np.eye(3 * K), phi.T @ F[:50])
        return ((phi @ W - F[:50]) ** 2).sum() + RIDGE * (W**2).sum() + DECAY * (M[:, :-1] ** 2).sum()

    arrays = [jnp.asarray(v, jnp.float32) for v in (z, np.eye(3)[action], weight, F)]
    value, gradient = jax.value_and_grad(projected_loss)(jnp.asarray(M.ravel(), jnp.float32), *arrays)
    assert float(value) == pytest.approx(slow(M), rel=1e-5)
    step = 1e-5 * np.eye(M.size)
    numeric = [(slow(M + h.reshape(M.shape)) - slow(M - h.reshape(M.shape))) / 2e-5 for h in step]
    np.testing.assert_allclose(gradient, numeric, rtol=1e-2, atol=1e-3)
    fitted = best_units(M[None].astype(np.float32), *arrays, evaluations=40)
    assert slow(np.asarray(fitted, float)) < slow(M)


def test_held_out_errors_use_weights_of_the_other_folds():
    rng = np.random.default_rng(4)
    n = 90
    x, F, action, fold = (
        rng.normal(size=(n, 5)),
        rng.normal(size=(n, 2)),
        rng.integers(3, size=n),
        np.arange(n) % 3,
    )
    level, units = Level(x, action, F, fold, 3, 3), rng.normal(size=(K, 6))
    errors = held_out_errors([psi(units, x)] * 3, level, F)
    phi = np.einsum("nk,na->nak", psi(units, x), np.eye(3)[action]).reshape(n, -1)
    for k in range(3):
        known, new = fold != k, fold == k
        W = np.linalg.solve(phi[known].T @ phi[known] + RIDGE * np.eye(9), phi[known].T @ F[known])
        np.testing.assert_allclose(errors[new], (phi[new] @ W - F[new]) ** 2, rtol=1e-6, atol=1e-9)
    assert held_out_loss(units, level) == pytest.approx(errors.sum())


def test_folds_spread_the_unusual_rows_of_each_action():
    rng = np.random.default_rng(5)
    y, action = rng.normal(size=(300, 4)), rng.integers(10, size=300)
    unusual = np.concatenate([np.flatnonzero(action == a)[:3] for a in range(10)])
    y[unusual] += 20
    fold = stratified_folds(y, action, 3, rng)
    np.testing.assert_array_equal(np.bincount(fold), [100] * 3)
    for a in range(10):
        assert len(set(fold[unusual[3 * a : 3 * a + 3]])) >= 2


def test_discriminators_point_at_what_comes_next_and_noise_has_no_predictable_direction():
    sample, _ = one_level(lock(12), 1000, 300, seed=0)
    x, y = (purest_scatter(part, None)(part) for part in (sample.s, sample.after))
    fold = stratified_folds(y, sample.action, 3, np.random.default_rng(0))
    F = candidates(x, sample.action, y, None, fold, A)
    np.testing.assert_allclose(F.mean(0), 0, atol=1e-9)
    assert F.shape[1] <= 12
    np.testing.assert_allclose(F.max(0) - F.min(0), 1, rtol=1e-6)
    noise = np.random.default_rng(1).normal(size=y.shape)
    assert predictable_directions(x, sample.action, noise, fold, A).shape[1] == 0
    basis = orthonormal_basis(np.column_stack([y[:4].T, y[0]]))
    np.testing.assert_allclose(basis.T @ basis, np.eye(4), atol=1e-9)


# -- line 6 ---------------------------------------------------------------------------------------------


def features(env: CombinationLock) -> dict[str, Units]:
    """True features, and features that merge two states or all."""
    R = np.asarray(env.emission.basis[0][:K], float) / env.observation_shape[0]  # pyright: ignore
    nothing, sharp = np.zeros_like(R[0]), 30.0
    table = {
        "true": ([R[0], R[1], R[2]], [0, 0, 0]),
        "lanes merged": ([nothing, nothing, R[2]], [0, -60, -sharp / 2]),
        "lane and bad merged": ([R[0], nothing, nothing], [-sharp / 2, 0, -60]),
        "all merged": ([nothing] * 3, [0, -60, -60]),
    }
    return {name: np.column_stack([sharp * np.stack(w), b]) for name, (w, b) in table.items()}


def accepted(env: CombinationLock, units: Units, rows: int, good: int, seed: int) -> bool:
    """Whether line 6 accepts these features."""
    sample, _ = one_level(env, rows, good, seed)
    white = purest_scatter(sample.s, labels(units, sample.s))
    x, y = white(sample.s), purest_scatter(sample.after, None)(sample.after)
    fold = stratified_folds(y, sample.action, 3, np.random.default_rng(seed))
    level = Level(x, sample.action, candidates(x, sample.action, y, None, fold, A), fold, A, 3)
    pool = [in_white(start, white) for start in clustered_starts(sample.s, white, K, CONFIG)]
    return Game(level, pool, CONFIG).select_discriminator(in_white(units, white))[0] is None


@pytest.mark.parametrize(
    ("rows", "good", "rejected"),
    [
        (200, 100, {"lanes merged": 0.8, "all merged": 0.8}),
        (1000, 160, {"lanes merged": 0.9, "lane and bad merged": 0.8, "all merged": 0.9}),
        pytest.param(
            4000, 640, {"lanes merged": 1, "lane and bad merged": 1, "all merged": 1}, marks=pytest.mark.slow
        ),
    ],
)
def test_line_six_accepts_true_features_and_rejects_merged_ones(rows, good, rejected):
    """Ten data sets (four of 4,000 rows): true features are accepted at least eight times, merged ones are
    rejected at the stated rate. With 200 rows, five of them right in a lane, one merged lane is missed."""
    env, seeds = lock(12), range(100, 110 if rows < 4000 else 104)
    for name, units in features(env).items():
        rate = np.mean([accepted(env, units, rows, good, seed) for seed in seeds])
        if name == "true":
            assert rate >= 0.8
        elif name in rejected:
            assert 1 - rate >= rejected[name], name


# -- one level ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("distractors", [0, 20])
def test_ten_good_rows_are_enough_for_clusters(distractors):
    """Forward data alone identify 0.61 there: what is better comes from the start."""
    env = lock(12, distractors)
    assert np.mean([from_clusters(env, 10, seed) for seed in range(3)]) > 0.95


@pytest.mark.parametrize("distractors", [0, 20])
def test_the_game_learns_from_random_features_with_160_good_rows(distractors):
    env = lock(12, distractors)
    assert np.mean([from_random(env, 160, seed) for seed in range(3)]) > 0.95


def test_there_may_be_more_units_than_actions():
    env, rng, many = lock(12), np.random.default_rng(0), A + 3
    sample, _ = one_level(env, 400, 200, 100)
    D = sample.s.shape[1]
    first = from_white(random_units(rng, many, D), purest_scatter(sample.s, None))
    found = learn(sample, np.zeros((many, D + 1)), None, rng, CONFIG, A, first).units
    assert found.shape == (many, D + 1)
    assert np.isfinite(found).all()


def test_the_game_is_needed_where_distractors_hide_frequent_states():
    env = lock(12, 20)
    alone = np.mean([from_clusters(env, 500, seed, rounds=0) for seed in range(3)])
    game = np.mean([from_clusters(env, 500, seed) for seed in range(3)])
    assert alone < 0.6
    assert game > 0.9


@pytest.mark.slow
@pytest.mark.parametrize("distractors", [0, 20])
@pytest.mark.parametrize("horizon", [12, 50])
@pytest.mark.parametrize(("good", "identifiable"), [(40, 0.92), (160, 1.0)])
def test_random_features_reach_what_is_identifiable(horizon, distractors, good, identifiable):
    """Ten data sets. With 40 good rows a lane has two right rows, some have none; with distractors the test
    of line 6 then misses more of them: over 30 data sets the accuracy is 0.77 at H = 12 and 0.61 at H = 50.
    A game that succeeds is right, one that does not is blind, and rounding may decide which."""
    env = lock(horizon, distractors)
    share = 0.95 if good == 160 or distractors == 0 else {12: 0.8, 50: 0.7}[horizon]
    assert np.mean([from_random(env, good, seed) for seed in range(1, 11)]) >= share * identifiable


@pytest.mark.slow
@pytest.mark.parametrize("distractors", [0, 20])
@pytest.mark.parametrize("horizon", [12, 50])
def test_ten_good_rows_are_enough_for_clusters_at_any_dimension(horizon, distractors):
    env = lock(horizon, distractors)
    assert np.mean([from_clusters(env, 10, seed) for seed in range(10)]) > 0.95


@pytest.mark.parametrize("temperature", [0.2, 1.0])
def test_soft_features_of_a_low_rank_level_are_recovered_up_to_a_linear_map(temperature):
    """Both regressions, of psi* on the learned features and back, explain nearly all variance."""
    env = lock(12, temperature=temperature)
    sample, _ = one_level(env, 1000, 500, seed=0)
    units = learn(sample, blank(env), None, np.random.default_rng(0), CONFIG, A).units
    fresh, _ = one_level(env, 2000, 1000, seed=1)
    true = np.asarray(
        jax.vmap(env.ground_truth_features, (None, 0))(LEVEL, jnp.asarray(fresh.s, jnp.float32))
    )
    learned = psi(units, fresh.s)
    for x, y in ((learned, true), (true, learned)):
        rest = y - x @ np.linalg.lstsq(x, y, rcond=None)[0]
        assert 1 - (rest**2).sum() / ((y - y.mean(0)) ** 2).sum() > 0.9
