"""Planning on cells: against value iteration and enumeration written out."""

from dataclasses import replace
from itertools import permutations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from briee.algorithms.efficient.cell_planning import (
    CellPolicy,
    count_cells,
    discovery_curve,
    plan_cells,
    trial_values,
)
from briee.algorithms.efficient.config import ExploreConfig
from briee.algorithms.efficient.state_decoder import StateDecoder, unfitted
from briee.algorithms.efficient.strata import Strata, empty_strata

H, L, A = 4, 3, 2
RULES = ("discovery", "tries", "bonus")


def random_counts(seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    counts = rng.integers(0, 4, size=(H, L, A, L)) * (rng.random((H, L, A, 1)) < 0.7)
    return counts.astype(np.float32), rng.normal(size=(H, L, A)).astype(np.float32) * (counts.sum(-1) > 0)


@given(st.integers(0, 10**6))
def test_plans_are_value_iteration_on_the_counted_model(seed):
    counts, rewards = random_counts(seed)
    curve = np.array([1.0, 0.3, 0.1], np.float32)
    plan = plan_cells(jnp.array(counts), jnp.array(rewards), jnp.array(curve))
    explore, exploit = np.zeros(L), np.zeros(L)
    for h in reversed(range(H)):
        U, Q = np.zeros((L, A)), np.full((L, A), -np.inf)
        for c in range(L):
            for a in range(A):
                n = counts[h, c, a].sum()
                u = curve[min(int(n), 2)]
                if n == 0:
                    U[c, a] = u
                    continue
                p = counts[h, c, a] / n
                U[c, a] = max(u, p @ explore)
                Q[c, a] = rewards[h, c, a] / n + p @ exploit
        np.testing.assert_allclose(plan.discovery[h], U, atol=1e-5)
        tried = counts[h].sum(-1) > 0
        np.testing.assert_allclose(np.asarray(plan.reward[h])[tried], Q[tried], atol=1e-4)
        assert (np.asarray(plan.reward[h])[~tried] < -1e5).all()
        explore, exploit = U.max(1), np.where(np.isfinite(Q.max(1)), Q.max(1), 0.0)
    first = counts[0].sum((1, 2))
    np.testing.assert_allclose(plan.chance, first @ explore / max(first.sum(), 1), atol=1e-5)


@given(st.lists(st.integers(0, 2), min_size=2, max_size=5), st.integers(1, 4))
def test_the_discovery_curve_counts_new_successors_over_all_orders(successors, n):
    """Rarefaction in closed form against every order in which the tries could have come."""
    counts = jnp.array([np.bincount(successors, minlength=3)], jnp.float32)
    curve = discovery_curve(counts, 4, prior_cells=1e-9)
    if n >= len(successors):
        return
    orders = list(permutations(successors))
    exact = [np.mean([order[k] not in order[:k] for order in orders]) for k in range(len(successors))]
    np.testing.assert_allclose(curve[n], min(exact[1 : n + 1]), atol=1e-5)
    assert curve[0] == 1


def test_deterministic_worlds_are_known_sooner_than_stochastic_ones():
    deterministic = discovery_curve(jnp.tile(jnp.array([[10.0, 0.0]]), (50, 1)), 8, 2.0)
    coin = discovery_curve(jnp.tile(jnp.array([[5.0, 5.0]]), (50, 1)), 8, 2.0)
    assert deterministic[1] < 0.03
    assert coin[1] > 0.5
    assert coin[5] < 0.1
    np.testing.assert_allclose(
        discovery_curve(jnp.zeros((5, 2)), 3, 2.0), [1, 1 / 2, 1 / 3, 1 / 4], rtol=1e-6
    )


def test_cells_are_counted_where_rows_are_filled():
    rng = np.random.default_rng(0)
    R = 30
    action, label, following = (rng.integers(0, n, (H, R)) for n in (A, L, L))
    action[:, 20:] = -1
    reward = rng.normal(size=(H, R))
    base = empty_strata(H, R, 1)
    strata = Strata(
        base.observation, base.observation, jnp.array(action), jnp.array(reward, jnp.float32), base.reward,
        jnp.array(label), jnp.array(following),
    )  # fmt: skip
    counts, rewards = count_cells(strata, L, A)
    for h, c, a in np.ndindex(H, L, A):
        here = (action[h] == a) & (label[h] == c)
        np.testing.assert_array_equal(counts[h, c, a], np.bincount(following[h][here], minlength=L))
        np.testing.assert_allclose(rewards[h, c, a], reward[h][here].sum(), atol=1e-5)


def line_decoder() -> StateDecoder:
    """Two states on a line, at -1 and 1; further than 2 from both is neither."""
    decoder = jax.tree.map(lambda leaf: leaf[0], unfitted(1, 2, 1))
    centre = jnp.array([[-1.0], [1.0]])
    return replace(decoder, weight=centre, centre=centre, radius=jnp.float32(4), fitted=jnp.array(True))


@pytest.mark.parametrize(("x", "label", "nearest"), [(-1.2, 0, 0), (0.5, 1, 1), (7.0, 2, 1)])
def test_a_policy_acts_on_the_decoded_state(x, label, nearest):
    value = jnp.array([[[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]])
    stacked = jax.tree.map(lambda leaf: leaf[None], line_decoder())
    for known_only, expected in ((False, label), (True, nearest)):
        policy = CellPolicy(stacked, value, jnp.float32(0.8), jnp.array(known_only))
        assert int(policy(jnp.int32(0), jnp.array([x]), jax.random.key(0))) == expected


@pytest.mark.parametrize(
    ("value", "tolerance", "allowed"),
    [([1.0, 0.85, 0.5], 0.8, {0, 1}), ([1.0, 0.85, 1.0], 1.0, {0, 2}), ([-1.0, -1.1, -2.0], 0.8, {0, 1})],
)
def test_a_policy_draws_among_nearly_equal_actions(value, tolerance, allowed):
    stacked = jax.tree.map(lambda leaf: leaf[None], line_decoder())
    policy = CellPolicy(stacked, jnp.array([[value] * 3]), jnp.float32(tolerance), jnp.array(False))
    keys = jax.random.split(jax.random.key(0), 200)
    actions = jax.vmap(lambda key: policy(jnp.int32(0), jnp.array([1.0]), key))(keys)
    assert set(np.asarray(actions).tolist()) == allowed


def test_values_of_a_further_try_by_each_rule():
    counts = jnp.array([[3.0, 0.0], [1.0, 1.0], [0.0, 0.0]])
    values = {rule: trial_values(counts, ExploreConfig(rule=rule, max_tries=4)) for rule in RULES}
    np.testing.assert_array_equal(values["tries"], [1, 1, 0, 0, 0])
    np.testing.assert_allclose(values["bonus"], [1, 2**-0.5, 3**-0.5, 1 / 2, 5**-0.5], rtol=1e-6)
    np.testing.assert_array_equal(values["discovery"], discovery_curve(counts, 4, 2.0))
