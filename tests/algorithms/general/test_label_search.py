"""Kernel regressions left out in closed form, the score of labels, and the search for them."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from briee.algorithms.general.candidates import Regression, Rows, Rules, fit_level, regressions, screen
from briee.algorithms.general.config import CANDIDATES, FitConfig
from briee.algorithms.general.contexts import Contexts, shares
from briee.algorithms.general.decoders import (
    KERNEL,
    WORSE,
    labels,
    no_decoders,
    predictions,
    put_in,
    put_regression,
    state_policy,
)
from briee.algorithms.general.fresh_test import MOST_LOSS, gains
from briee.algorithms.general.kernel_bank import COORDINATES, HALF, LINEAR, PATCHES, TEACHERS, TEAM, ask
from briee.algorithms.general.kernels import (
    PRODUCTS,
    QUADRATIC,
    RBF,
    SMALL,
    kernel,
    probabilities,
    reduced,
    smoother,
)
from briee.algorithms.general.label_search import Search, on_more_rows
from briee.algorithms.general.patches import coordinates, draw_patches, has_patches
from briee.algorithms.general.planning import UNTRIED
from briee.algorithms.general.shared import fit_shared, hopeless, transfers

ACTIONS = 3


def rings(n: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Points on two circles: no linear map tells them apart."""
    state = rng.integers(0, 2, n)
    angle = rng.uniform(0, 2 * np.pi, n)
    radius = 1.0 + state + 0.05 * rng.normal(size=n)
    return np.stack([radius * np.cos(angle), radius * np.sin(angle)], 1).astype(np.float32), state


def surroundings(state: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """State 1 comes from the previous cell (1, 2) alone; only there action 0 leads to outcome 1."""
    previous = ACTIONS + np.where(state == 1, 2, rng.integers(0, 2, len(state)))
    action = rng.integers(0, ACTIONS, len(state))
    return previous, action, ((state == 1) & (action == 0)).astype(np.int64)


def planted(n: int, seed: int = 0) -> tuple[Rows, np.ndarray]:
    rng = np.random.default_rng(seed)
    x, state = rings(n, rng)
    return Rows(x, np.ones(n, np.int32), *surroundings(state, rng)), state


def contexts_of(rows: Rows) -> Contexts:
    return Contexts(rows.previous, rows.action, rows.outcome, ACTIONS)


def search_in(rows: Rows) -> Search:
    z = rows.observation
    regression = smoother(kernel(PRODUCTS, 2.0, z, z), 0.03)
    return Search(regression, contexts_of(rows), 8, 3.0, np.random.default_rng(0))


def agreement(label: np.ndarray, state: np.ndarray) -> float:
    """Share of the rows whose label is the most common one of their state; 0 if states share it."""
    common = [np.bincount(label[state == k]).argmax() for k in (0, 1)]
    return float(np.mean(label == np.asarray(common)[state])) if common[0] != common[1] else 0.0


RULES = Rules(
    candidates=CANDIDATES,
    joins=True,
    num_actions=ACTIONS,
    most=8,
    charge=3.0,
    team=np.full(TEAM, -1, np.int32),
    trusted=False,
    last_resort=False,
    hopeful=False,
    proven=5.0,
    incumbent=0,
    settled=False,
)


@pytest.mark.parametrize("kind", [RBF, QUADRATIC, PRODUCTS])
def test_leaving_a_row_out_equals_refitting_without_it(kind):
    rng = np.random.default_rng(kind)
    z, q = rng.normal(size=(14, 3)), rng.dirichlet(np.ones(3), 14)
    found = smoother(kernel(kind, 3.0, z, z), 0.2)
    left_out = found.left_out(q[:, None].astype(np.float32))[:, 0]
    K = kernel(kind, 3.0, z, z)
    for i in (0, 5, 13):
        others = np.flatnonzero(np.arange(14) != i)
        f = centred_ridge(K, q, i, others, 0.2)
        np.testing.assert_allclose(left_out[i], probabilities(f), atol=2e-4)


@pytest.mark.parametrize("kind", [RBF, PRODUCTS])
def test_leaving_a_level_out_equals_refitting_without_its_rows(kind):
    rng = np.random.default_rng(kind)
    z, q, level = rng.normal(size=(16, 3)), rng.dirichlet(np.ones(3), 16), np.arange(16) % 3
    K = kernel(kind, 3.0, z, z)
    found = smoother(K, 0.2).left_out_together(q, level)
    for h in range(3):
        others = np.flatnonzero(level != h)
        for i in np.flatnonzero(level == h):
            f = centred_ridge(K, q, int(i), others, 0.2)
            np.testing.assert_allclose(found[i], probabilities(f), atol=2e-3)


def test_a_regression_on_more_rows_minimises_its_objective():
    rng = np.random.default_rng(3)
    z, support, q = rng.normal(size=(60, 3)), rng.normal(size=(9, 3)), rng.dirichlet(np.ones(2), 60)
    K, own = kernel(RBF, 3.0, z, support), kernel(RBF, 3.0, support, support)
    offset, weight = reduced(K, own, 0.1).weights(q)
    error = q - offset - K @ weight
    np.testing.assert_allclose(error.mean(0), 0.0, atol=1e-6)
    np.testing.assert_allclose(K.T @ error, 0.1 * own @ weight + SMALL * weight, atol=1e-9)


def test_a_regression_on_more_rows_survives_a_kernel_of_low_precision():
    rng = np.random.default_rng(4)
    x, state = rings(3000, rng)
    noise = 0.5 * rng.normal(size=(3000, 8))
    z = np.concatenate([x, noise], 1).astype(np.float32)
    K = kernel(PRODUCTS, 10.0, z, z[:500]).astype(np.float32)
    offset, weight = reduced(K[:2000], K[:500], 0.03).weights(np.eye(2)[state[:2000]])
    predicted = offset + K[2000:] @ weight.astype(np.float32)
    assert (predicted.argmax(1) == state[2000:]).mean() > 0.99
    assert np.abs(weight).max() < 50


def centred_ridge(K: np.ndarray, q: np.ndarray, i: int, others: np.ndarray, lam: float) -> np.ndarray:
    """Ridge regression with a free constant on the other rows; features are the rows of a root of K."""
    value, basis = np.linalg.eigh(K)
    phi = basis * np.sqrt(np.maximum(value, 0.0))
    phi = phi - phi.mean(0)
    X, mean = np.concatenate([phi[others], np.ones((len(others), 1))], 1), phi.shape[1]
    penalty = lam * np.eye(mean + 1)
    penalty[-1, -1] = 0.0
    w = np.linalg.solve(X.T @ X + penalty, X.T @ q[others])
    return np.concatenate([phi[i], [1.0]]) @ w


def test_the_arrays_of_a_regression_predict_what_the_smoother_does():
    rng = np.random.default_rng(1)
    z, q = rng.normal(size=(20, 3)), rng.dirichlet(np.ones(2), 20)
    found = smoother(kernel(RBF, 3.0, z, z), 0.1)
    offset, weight = found.weights(q)
    fitted = q.mean(0) + found.S @ (q - q.mean(0))
    np.testing.assert_allclose(offset + kernel(RBF, 3.0, z, z) @ weight, fitted, atol=1e-5)


def test_ratios_are_counts_without_the_row_itself():
    previous, action, outcome = (
        np.array([0, 0, 0, 1, 1, 4]),
        np.array([0, 1, 0, 0, 1, 0]),
        np.array([0, 0, 1, 1, 0, 1]),
    )
    q = np.eye(2, dtype=np.float32)[[0, 0, 1, 1, 0, 1]][:, None]
    contexts = Contexts(previous, action, outcome, 3)
    pi = shares(q)
    known, free = contexts.both(q, pi)
    # row 0, label 0: cell 0 has two other rows, one of label 0; previous state 0 four others, two of label 0
    back_free = (2 + 0.5) / (4 + 1) / 0.5
    back = (1 + 0.5 * back_free) / (2 + 1) / 0.5
    base = (2 + 0.5) / (5 + 0.5 * 2)  # two others with outcome 0 among five
    given = (0 + 0.5) / (3 + 0.5 * 2)  # none among the three others with action 0
    main = (2 + base) / (2 + 1) / base  # both other rows of label 0 have outcome 0
    outcomes = np.array([0.5, 0.5])
    label = np.array([(3 + 0.5) / (3 + 1), (0 + 0.5) / (3 + 1)]) / outcomes
    main /= np.array([0.25, 0.75]) @ label
    forward = (0 + given * main) / (0 + 1) / given
    np.testing.assert_allclose(free[0, 0, 0], back_free * main, rtol=1e-5)
    np.testing.assert_allclose(known[0, 0, 0], back * forward, rtol=1e-5)


def test_contexts_of_several_levels_are_those_of_each_level():
    rng = np.random.default_rng(4)
    level, A = np.repeat([0, 1], 30), ACTIONS
    cell, action, outcome = rng.integers(0, 6, 60), rng.integers(0, A, 60), rng.integers(0, 2, 60)
    q = rng.dirichlet(np.ones(3), 60)[:, None].astype(np.float32)
    pi = shares(q)
    both = Contexts(cell + 6 * level, action + A * level, outcome + 2 * level, A, level).both(q, pi)
    for h in (0, 1):
        own = level == h
        alone = Contexts(cell[own], action[own], outcome[own], A).both(q[own], pi)
        for together, apart in zip(both, alone, strict=True):
            np.testing.assert_allclose(together[own], apart, rtol=1e-4)


@pytest.mark.parametrize("alike", [True, False])
def test_labels_transfer_where_levels_look_alike(alike):
    rng = np.random.default_rng(5)
    levels, modes = [], rng.normal(size=(3, 2, 8, 6))
    for h in range(3):
        state, mode = rng.integers(0, 2, 120), rng.integers(0, 8, 120)
        x = modes[0 if alike else h, state, mode] + 0.05 * rng.normal(size=(120, 6))
        previous, action, outcome = surroundings(state, rng)
        levels.append((x, previous + 6 * h, action + ACTIONS * h, outcome + 2 * h, np.full(120, h), state))
    x, previous, action, outcome, level, state = (np.concatenate(part) for part in zip(*levels, strict=True))
    rows = Rows(x.astype(np.float32), np.ones(len(x), np.int32), previous, action, outcome, level)
    found = fit_shared(rows, 3, no_decoders(3, (6,), 8, 400), RULES, rng)
    assert found is not None
    if alike:
        assert found.regression["states"] == 2
        assert agreement(found.label, state) > 0.95
        assert found.transfer > 0.9
        assert transfers(found, used=False, rule=FitConfig())
    else:
        assert found.transfer < 0.5
        assert hopeless(found, FitConfig())


def test_contexts_correct_the_labels_of_further_rows():
    rng = np.random.default_rng(6)
    rows, state = planted(60)
    more, truth = planted(600, seed=1)
    level = np.zeros(60, int)
    decoders = no_decoders(1, (2,), 8, 60)
    found = fit_shared(rows._replace(level=level), 1, decoders, RULES, rng)
    assert found is not None
    regression = on_more_rows(found.regression, decoders, more.observation, contexts_of(more))
    put_regression(decoders, 0, **regression)
    assert agreement(found.label, state) > 0.9
    assert agreement(labels(decoders, 0, more.observation), truth) > 0.98


def test_what_actions_do_not_change_scores_nothing():
    rng = np.random.default_rng(2)
    slow = rng.integers(0, 2, 400)  # the next label repeats it, whatever the action
    outcome = np.where(rng.random(400) < 0.95, slow, 1 - slow)
    previous = np.where(rng.random(400) < 0.95, slow, 1 - slow) * ACTIONS + rng.integers(0, ACTIONS, 400)
    contexts = Contexts(previous, rng.integers(0, ACTIONS, 400), outcome, ACTIONS)
    q = np.eye(2, dtype=np.float32)[slow][:, None]
    known, _ = contexts.both(q, shares(q))
    assert np.log((q * known).sum(-1)).sum() > 200  # it predicts well
    assert contexts.scores(q).sum() < 5  # but so it would without knowing the actions


def test_em_raises_the_likelihood_of_contexts_for_a_fixed_classifier():
    rows, state = planted(200)
    contexts = contexts_of(rows)
    phi = np.where(np.eye(2)[state] > 0, 0.6, 0.4).astype(np.float32)[:, None]
    q, values = phi, []
    for _ in range(6):
        context = contexts.ratios(q, shares(phi))
        values.append(float(np.log((phi * context).sum(-1)).sum()))
        q = phi * context
        q = q / q.sum(-1, keepdims=True)
    assert (np.diff(values) > -0.5).all()  # counts are left out, so that it may fall a little at the end
    assert values[-1] > values[0] + 20


@pytest.mark.parametrize("seed", range(3))
def test_a_split_finds_two_planted_states_among_sixty_rows(seed):
    rows, state = planted(60, seed)
    z = rows.observation
    search = Search(
        smoother(kernel(PRODUCTS, 2.0, z, z), 0.03), contexts_of(rows), 8, 3.0, np.random.default_rng(0)
    )
    found = search.best([np.ones((60, 1), np.float32)])
    assert found.q.shape[1] == 2
    assert found.worth > 10
    assert agreement(found.phi.argmax(1), state) > 0.95


def test_a_join_undoes_a_wrong_split():
    rows, state = planted(200)
    wrong = state + 2 * (np.random.default_rng(3).random(200) < 0.5)  # each state cut in two at random
    q = (0.9 * np.eye(4)[wrong] + 0.025).astype(np.float32)
    z = rows.observation
    search = Search(
        smoother(kernel(PRODUCTS, 2.0, z, z), 0.03), contexts_of(rows), 8, 3.0, np.random.default_rng(0)
    )
    found = search.climb(q)
    assert found.q.shape[1] == 2
    assert agreement(found.phi.argmax(1), state) > 0.95


def test_noise_stays_one_label():
    rng = np.random.default_rng(4)
    for seed in range(3):
        rows, _ = planted(150, seed)
        noise = Rows(rng.normal(size=(150, 2)).astype(np.float32), *rows[1:])
        decoders = no_decoders(1, (2,), 8, 150)
        found = fit_level(noise, decoders, RULES, np.random.default_rng(seed))
        assert found.states == 1


def test_the_screen_tells_a_kernel_that_can_predict_from_one_that_cannot():
    rows, _ = planted(250)
    scores = {}
    for kind in (RBF, QUADRATIC, PRODUCTS):
        one = Regression(1, rows.observation, kind, 2.0, 0.03, {"embedding": LINEAR})
        scores[kind] = screen(one, rows, ACTIONS, np.random.default_rng(0))
    assert min(scores.values()) > 50
    shuffled = rows._replace(observation=np.random.default_rng(1).permutation(rows.observation))
    one = Regression(1, shuffled.observation, RBF, 2.0, 0.03, {"embedding": LINEAR})
    assert screen(one, shuffled, ACTIONS, np.random.default_rng(0)) < 5


def test_a_fit_of_rings_is_a_regression_and_the_compiled_policy_has_its_labels():
    rows, state = planted(200)
    decoders: Any = no_decoders(2, (2,), 8, 200)
    found = fit_level(rows, decoders, RULES, np.random.default_rng(0))
    assert found.states == 2
    assert agreement(found.label, state) > 0.97
    assert found.regression is not None
    assert found.teacher is not None
    put_regression(decoders, 1, **found.regression)
    put_in(decoders.teachers, 1, **found.teacher)
    assert decoders.kind.tolist() == [0, KERNEL]
    fresh, truth = rings(100, np.random.default_rng(9))
    label = labels(decoders, 1, fresh)
    assert agreement(label, truth) > 0.97
    check_compiled(decoders, 1, fresh)
    # level 0 asks the teacher of level 1
    team = np.array([1] + [-1] * (TEAM - 1), np.int32)
    said = ask(decoders.teachers, decoders.patches, team, rows.observation)
    taught = Regression(1, said, RBF, 0.5, 0.1, {"embedding": TEACHERS, "team": team})
    put_regression(decoders, 0, **taught.arrays(np.eye(2)[state]))
    assert agreement(labels(decoders, 0, fresh), truth) > 0.97
    check_compiled(decoders, 0, fresh)


def check_compiled(decoders, level: int, x: np.ndarray) -> None:
    """The policy has these labels; it explores with their values and seeks reward with the mean of them."""
    value = np.random.default_rng(1).normal(size=(len(decoders.kind), 9, ACTIONS)).astype(np.float32)
    value[level, 2, 0] = UNTRIED
    label, p = labels(decoders, level, x), probabilities(predictions(decoders, level, x))
    known = value[level, 1 : 1 + p.shape[1]].copy()
    known[1, 0] = known[1, 1:].min() - WORSE
    for greedy, expected in ((False, value[level, label]), (True, p @ known)):
        policy = state_policy(decoders, 8, value, 1.0, greedy)
        compiled = jax.vmap(policy.label, (None, 0))(jnp.int32(level), jnp.asarray(x))
        np.testing.assert_array_equal(compiled, label)
        values = jax.vmap(policy.values, (None, 0))(jnp.int32(level), jnp.asarray(x))
        np.testing.assert_allclose(values, expected, rtol=1e-4, atol=2e-3)


def test_a_state_where_no_action_helps_has_no_say_in_what_is_done():
    x, state = rings(300, np.random.default_rng(6))
    third = np.where(np.arange(300) % 2 == 0, 2, state)  # a third label, seen as often near every point
    decoders: Any = no_decoders(1, (2,), 8, 300)
    one = Regression(
        1, x, PRODUCTS, 2.0, 0.03, {"embedding": LINEAR, "mean": np.zeros(2), "transform": np.eye(2)}
    )
    put_regression(decoders, 0, **one.arrays(np.eye(3)[third]))
    value = np.zeros((1, 9, ACTIONS), np.float32)
    value[0, 1, 0] = value[0, 2, 1] = 1.0  # action k is right in state k, none in the third
    fresh, truth = rings(200, np.random.default_rng(7))
    assert (labels(decoders, 0, fresh) == 3).mean() > 0.02
    acts = jax.vmap(state_policy(decoders, 8, value, 1.0, True), (None, 0, None))
    assert (acts(jnp.int32(0), jnp.asarray(fresh), jax.random.key(0)) == truth).mean() > 0.99


def test_patches_see_a_shape_wherever_it_is():
    rng = np.random.default_rng(5)

    def images(n: int) -> tuple[np.ndarray, np.ndarray]:
        state, place = rng.integers(0, 2, n), rng.integers(0, 6, (n, 2))
        x = 0.05 * rng.normal(size=(n, 9, 9))
        for one, (i, j), k in zip(x, place, state, strict=True):
            one[i : i + 3, j : j + 3] += [np.eye(3), np.eye(3)[::-1]][k]
        return x.reshape(n, -1).astype(np.float32), state

    assert has_patches((9, 9))
    assert not has_patches((9,))
    x, state = images(150)
    patches = draw_patches(x, (9, 9), rng)
    z = coordinates(patches, x)
    assert z.shape == (150, COORDINATES)
    np.testing.assert_allclose(z.mean(0), 0, atol=1e-3)
    decoders: Any = replace(no_decoders(1, (9, 9), 8, 150), patches=patches)
    seen = Regression(1, z, RBF, float(z.shape[1]), 0.03, {"embedding": PATCHES})
    put_regression(decoders, 0, **seen.arrays(np.eye(2)[state]))
    fresh, truth = images(100)
    assert agreement(labels(decoders, 0, fresh), truth) > 0.95
    check_compiled(decoders, 0, fresh)
    [both, *_] = regressions(x, decoders, RULES._replace(candidates=("both",)))
    assert both.z.shape == (150, COORDINATES)
    np.testing.assert_array_equal(both.z[:, HALF:], z[:, HALF:].astype(np.float32))
    np.testing.assert_allclose(both.z[:, :HALF].mean(0), 0, atol=1e-4)
    put_regression(decoders, 0, **both.arrays(np.eye(2)[state]))
    assert agreement(labels(decoders, 0, fresh), truth) > 0.9
    check_compiled(decoders, 0, fresh)


def fresh_gain(kept: np.ndarray, phi: np.ndarray, rows: Rows) -> float:
    """Nats by which labels predict the last 40 rows from all others."""
    n = len(rows.action) - 40
    assert rows.previous is not None
    return float(gains(phi[n:], kept[:n], rows.previous, rows.action, rows.outcome, ACTIONS).sum())


def test_true_labels_are_never_withdrawn_and_chance_labels_usually_are():
    alarms = {"true": 0, "chance": 0}
    for seed in range(20):
        rows, state = planted(140, seed)
        rng = np.random.default_rng(100 + seed)
        sure = np.where(np.eye(2)[state] > 0, 0.97, 0.03)
        alarms["true"] += fresh_gain(state, sure, rows) < -MOST_LOSS * 40
        # labels that predict the kept rows because they were chosen to, and fresh ones not at all
        chosen = np.where(np.arange(140) < 100, state, rng.permutation(state))
        guess = np.where(np.eye(2)[chosen] > 0, 0.97, 0.03)
        alarms["chance"] += fresh_gain(chosen, guess, rows) < -MOST_LOSS * 40
    assert alarms["true"] == 0
    assert alarms["chance"] >= 18


def test_large_images_are_seen_by_patches_alone():
    """No level keeps a linear map of thousands of pixels; shapes are told apart all the same."""
    rng, shape = np.random.default_rng(6), (36, 36)
    rows, state = planted(120)
    x = 0.05 * rng.normal(size=(120, *shape))
    for one, (i, j), k in zip(x, rng.integers(0, 33, (120, 2)), state, strict=True):
        one[i : i + 3, j : j + 3] += 2 * np.asarray([np.eye(3), np.eye(3)[::-1]][k])
    rows = rows._replace(observation=x.reshape(120, -1).astype(np.float32))
    decoders: Any = no_decoders(1, shape, 8, 120)
    assert decoders.clouds.transform.size == decoders.bank.transform.size == 0
    decoders = replace(decoders, patches=draw_patches(rows.observation, shape, rng))
    found = fit_level(rows, decoders, RULES, rng)
    assert found.regression is not None
    assert agreement(found.label, state) > 0.9
    put_regression(decoders, 0, **found.regression)
    check_compiled(decoders, 0, rows.observation)
