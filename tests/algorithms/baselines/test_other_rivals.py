"""PCID, PPE, bootstrapped DQN, Rep-UCB, FLAMBE, VoX, MOFFLE, OLIVE: parts on known cases, small worlds."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from briee.agent.agent import Agent
from briee.algorithms.baselines.boot_dqn import BootDqn, Ensemble, Replay, dqn_loss
from briee.algorithms.baselines.config import (
    AdversaryConfig,
    FlambeConfig,
    LikelihoodConfig,
    MoffleConfig,
    RepUcbConfig,
    VoxConfig,
)
from briee.algorithms.baselines.fitting import Layers, learn_features, prediction_loss, psi_of, zero_layers
from briee.algorithms.baselines.flambe import elliptical_planner
from briee.algorithms.baselines.latent_models import (
    dynamic_programming,
    fit,
    homing_tables,
    mean_rewards,
    occupancy,
)
from briee.algorithms.baselines.moffle import Kept, fitted_q_iteration
from briee.algorithms.baselines.olive import Olive, bellman_errors, enumerated_class, optimistic, survivors
from briee.algorithms.baselines.pcid import k_means
from briee.algorithms.baselines.ppe import eliminate
from briee.algorithms.baselines.psdp import Gathered, PsdpConfig
from briee.algorithms.baselines.rival_config import BootDqnConfig, OliveConfig, PcidConfig, PpeConfig
from briee.algorithms.baselines.vox import cofactors
from briee.envs.block import LatentModel
from briee.envs.finite_block import FiniteBlockMDP
from briee.envs.lock import CombinationLock
from briee.rollout.samplers import ScanSampler


def random_tables(rng: np.random.Generator) -> LatentModel:
    return LatentModel(
        rng.dirichlet(np.ones(3)), rng.dirichlet(np.ones(3), size=(3, 3, 2)), rng.uniform(size=(3, 3, 2))
    )


def test_plans_in_tables_are_those_of_the_latent_model():
    model = random_tables(np.random.default_rng(0))
    p, r = jnp.asarray(model.transition), jnp.asarray(model.reward)
    q = dynamic_programming(p, r)
    np.testing.assert_allclose(q, model.q_values(), atol=1e-5)
    visits = occupancy(jnp.asarray(model.initial), p, q)
    np.testing.assert_allclose((visits * r).sum(), model.optimal_return(), atol=1e-5)
    target = 1
    reached = LatentModel(model.initial, model.transition[:2], np.zeros((2, 3, 2)))
    reached.reward[1] = model.transition[1, :, :, target]
    np.testing.assert_allclose(homing_tables(p, 2)[target, 0], reached.q_values()[0], atol=1e-5)


def test_k_means_finds_separate_clusters():
    rng = np.random.default_rng(1)
    label = rng.integers(3, size=300)
    points = jnp.asarray(5 * np.eye(3)[label] + rng.normal(size=(300, 3)) * 0.1, jnp.float32)
    centres, sizes = k_means(points, 3, 4, jax.random.key(0), 5)
    nearest = np.abs(np.asarray(centres)[:3, None] - 5 * np.eye(3)).sum(axis=-1)
    np.testing.assert_array_equal(np.sort(nearest.argmin(axis=1)), [0, 1, 2])
    assert nearest.min(axis=1).max() < 0.2
    assert sorted(np.asarray(sizes)) == sorted([0, *np.bincount(label)])


def test_pcid_opens_a_lock_whose_lanes_mix_unevenly():
    lock = CombinationLock(horizon=3, num_actions=4, switch_probability=0.1, instance_seed=5)
    config = replace(PcidConfig.paper(3), episodes_per_level=800)
    agent = Agent(lock, algo="pcid", config=config, seed=7).learn(episodes=5000, progress=False)
    assert agent.solved
    assert agent.summary()["episodes_to_solve"] == 3 * 800 + 4 * 20
    assert agent.history[-1]["decoder_accuracy"] == 1.0


def test_elimination_keeps_one_path_per_state():
    """Candidates 0 and 2 end alike, so do 1 and 3; the fifth is no candidate."""
    gaps = np.full((5, 5), 0.9)
    gaps[0, 2] = gaps[2, 0] = gaps[1, 3] = gaps[3, 1] = 0.01
    merged, kept = eliminate(gaps, 4, 0.1, room=3)
    assert (merged.tolist(), kept) == ([0, 1, 0, 1, -1], [0, 1])
    merged, kept = eliminate(gaps, 4, 0.1, room=1)
    assert (merged.tolist(), kept) == ([0, 0, 0, 0, -1], [0])


def test_ppe_opens_a_deterministic_lock_behind_distractors():
    lock = CombinationLock(horizon=3, num_actions=4, num_good=1, distractors=8, instance_seed=5)
    config = replace(PpeConfig.paper(3), episodes_per_level=800)
    agent = Agent(lock, algo="ppe", config=config, seed=7).learn(episodes=5000, progress=False)
    assert agent.solved
    assert agent.summary()["episodes_to_solve"] == 3 * 800 + 4 * 20


SMALL_DQN = replace(BootDqnConfig.bsuite(3), heads=5, batch=64, steps_per_episode=5)


def constant(values) -> Layers:
    """Networks [N] of x and two levels whose outputs are these numbers [N, A]."""
    return Layers((jnp.zeros((len(values), 3, 2)),), (jnp.asarray(values, jnp.float32),), "relu")


def test_the_loss_bootstraps_before_the_last_level_and_respects_masks():
    nets, priors = constant([[1.0, 0.0], [0.0, 0.0]]), constant([[0.0, 0.5], [0.0, 0.0]])
    ensemble = Ensemble(nets, priors, 2.0, 2)  # Q = [[1, 1], [0, 0]]
    prior = jnp.tile(ensemble.prior(0, jnp.zeros(1)), (2, 1, 1))
    rows = Replay(
        x=jnp.zeros((2, 1)),
        level=jnp.array([0, 1]),
        action=jnp.array([0, 0]),
        reward=jnp.array([0.5, 0.5]),
        next_x=jnp.zeros((2, 1)),
        seen_by=jnp.array([[True, False], [True, True]]),
        prior=prior[..., 0],
        next_prior=prior,
    )
    target = constant([[3.0, 0.0], [0.0, 0.0]])  # with the prior, max Q is 3 for the first network
    first, second = 0.5 + 0.9 * 3.0, 0.5
    expected = ((1 - first) ** 2 + (1 - second) ** 2 + (0 - second) ** 2) / 2
    assert float(dqn_loss(nets, target, ensemble, rows, 0.9)) == pytest.approx(expected)


def test_priors_never_learn_and_the_oldest_transitions_are_replaced():
    lock = CombinationLock(horizon=2, num_actions=3)
    config = replace(SMALL_DQN, replay_size=30, rounds=2, steps_per_episode=1)
    algorithm = BootDqn(ScanSampler(lock), config)
    before = algorithm.init(jax.random.key(0))
    after = algorithm.update(before)
    np.testing.assert_array_equal(after.ensemble.priors.weights[0], before.ensemble.priors.weights[0])
    assert int(after.inserted) == 40
    assert not np.array_equal(after.replay.x[:10], jnp.zeros((10, after.replay.x.shape[1])))
    assert set(np.asarray(after.replay.level)) == {0, 1}
    types = [[leaf.dtype for leaf in jax.tree.leaves(state)] for state in (before, after)]
    assert types[0] == types[1], "a run could not read its checkpoint"


def test_stored_values_of_the_priors_are_those_of_the_networks():
    lock = CombinationLock(horizon=2, num_actions=3)
    algorithm = BootDqn(ScanSampler(lock), replace(SMALL_DQN, replay_size=30, rounds=2))
    state = algorithm.update(algorithm.init(jax.random.key(0)))
    rows, prior = state.replay, jax.vmap(state.ensemble.prior)
    taken = jax.vmap(lambda values, action: values[:, action])(prior(rows.level, rows.x), rows.action)
    np.testing.assert_allclose(rows.prior, taken, atol=1e-5)
    np.testing.assert_allclose(rows.next_prior, prior(rows.level + 1, rows.next_x), atol=1e-5)
    assert jnp.ptp(rows.next_prior, axis=0).min() > 0


@pytest.mark.slow
def test_it_opens_a_small_lock():
    lock = CombinationLock(horizon=2, num_actions=4, instance_seed=5)
    agent = Agent(lock, algo="boot-dqn", config=SMALL_DQN, seed=7).learn(episodes=2000, progress=False)
    assert agent.solved


def test_a_memory_smaller_than_a_round_is_refused():
    with pytest.raises(ValueError, match="replay_size must hold 10 episodes of 2 steps, got 5: enlarge it"):
        BootDqn(ScanSampler(CombinationLock(horizon=2)), replace(SMALL_DQN, replay_size=5))


FEATURES = AdversaryConfig(rounds=4, steps=40, batch=256)
SMALL: dict[str, Any] = {
    "rep-ucb": replace(RepUcbConfig.paper(3), buffer_size=500),
    "flambe": replace(FlambeConfig.paper(3), episodes_per_level=800),
    "vox": replace(
        VoxConfig.paper(3), psdp=PsdpConfig(300), features=FEATURES, episodes_per_level=800, swaps=0
    ),
    "moffle": replace(MoffleConfig.paper(3), features=FEATURES, episodes_per_level=800, members=4),
}


def transitions(n: int = 600) -> tuple[np.ndarray, ...]:
    """Two states before and two after; action 0 keeps the state, action 1 swaps it."""
    rng = np.random.default_rng(2)
    before, action = rng.integers(2, size=n), rng.integers(2, size=n)
    after = before ^ action
    observe = lambda z: (3 * np.eye(4)[z] + 0.1 * rng.normal(size=(n, 4))).astype(np.float32)  # noqa: E731
    return before, action, observe(before), observe(after + 2)


def test_maximum_likelihood_finds_means_and_transitions():
    before, action, _, next_x = transitions()
    psi, config = jnp.eye(2)[before], LikelihoodConfig(num_latents=2)
    emissions, T, _ = fit(
        jax.random.key(0), psi, jnp.asarray(action), jnp.asarray(next_x), jnp.ones(600), 2, config
    )
    order = np.asarray(emissions.means)[:, 2:].argmax(axis=1)
    assert sorted(order) == [0, 1]
    np.testing.assert_allclose(np.asarray(emissions.means)[:, 2:], 3 * np.eye(2)[order], atol=0.05)
    assert float(emissions.variance) == pytest.approx(0.01, rel=0.1)
    for z in range(2):
        for a in range(2):
            assert float(T[z, a, list(order).index(z ^ a)]) > 0.99


def test_rows_without_weight_do_not_count():
    before, action, _, next_x = transitions()
    weight = np.arange(600) < 300
    far = np.where(weight[:, None], next_x, 100.0)
    config, arguments = LikelihoodConfig(num_latents=2), (jnp.eye(2)[before], jnp.asarray(action))
    counts = jnp.asarray(weight, jnp.float32)
    emissions, _, _ = fit(jax.random.key(0), *arguments, jnp.asarray(far), counts, 2, config)
    assert np.abs(np.asarray(emissions.means)).max() < 4
    reward = jnp.asarray(before == 1, jnp.float32)
    means = mean_rewards(arguments[0], arguments[1], reward, counts, 2)
    np.testing.assert_allclose(means, [[0, 0], [1, 1]], atol=1e-6)


def test_the_elliptical_planner_covers_every_state_of_a_model():
    """From one state, action k leads to state k: each policy of the mixture reaches another state."""
    transition = jnp.zeros((1, 3, 3, 3)).at[0, 0].set(jnp.eye(3))
    start, config = jnp.array([1.0, 0, 0]), FlambeConfig(members=8, beta=1.5)
    mixture, size = elliptical_planner(start, transition, jnp.int32(0), config)
    assert int(size) >= 3
    # the first policy shares ties, so that it reaches a third of each; the others go where it was least
    shares = [np.asarray(occupancy(start, transition, q)[0, 0]) for q in mixture[: int(size)]]
    np.testing.assert_allclose(shares[0], 1 / 3, atol=1e-6)
    assert np.sum(shares, axis=0).min() > 2 / 3


def test_the_adversary_makes_features_that_predict():
    """Features of the state predict x'; constant features do not."""
    _, action, x, next_x = map(jnp.asarray, transitions())
    net, _ = learn_features(jax.random.key(1), x, action, next_x, 2, replace(FEATURES, num_latents=2))
    state = np.asarray(psi_of(net, 3 * jnp.eye(4)[:2])).argmax(axis=1)
    assert sorted(state) == [0, 1]
    loss = lambda psi: float(prediction_loss(psi, action, next_x[:, 2:], 0.01, 2))  # noqa: E731
    assert loss(psi_of(net, x)) < 0.3 * loss(jnp.full((600, 2), 0.5))


def test_cofactors_are_the_gradient_of_the_determinant():
    columns = np.random.default_rng(0).normal(size=(3, 3))
    theta, v = cofactors(columns, 1), np.array([0.3, -2.0, 1.0])
    replaced = columns.copy()
    replaced[:, 1] = v
    assert theta @ v == pytest.approx(np.linalg.det(replaced))


def test_fitted_q_iteration_seeks_what_gamma_has_not_seen():
    """Action 1 leads to the state that Gamma knows little of."""
    action = jnp.asarray(np.random.default_rng(0).integers(2, size=(2, 300)))
    x = jnp.zeros((2, 300, 2)).at[..., 0].set(9.0)
    next_x = jnp.zeros((2, 300, 2)).at[0].set(9.0 * jax.nn.one_hot(action[0], 2)).at[1].set(x[1])
    features = zero_layers((2, 2), 2)
    features = replace(features, weights=(jnp.broadcast_to(jnp.eye(2), (2, 2, 2)),))
    inverse = jnp.diag(jnp.array([0.1, 5.0]))
    w = fitted_q_iteration(
        Kept(x, action, jnp.zeros((2, 300)), next_x), features, jnp.int32(1), inverse, 1e-3, 2
    )
    np.testing.assert_allclose(w[0, 0], [0.1, 5.0], atol=0.05)
    np.testing.assert_array_equal(w[1], np.zeros((2, 2)))


HEAVY = ("vox", "moffle")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in HEAVY else ()) for name in SMALL]
)
def test_they_open_a_small_lock(name):
    lock = CombinationLock(horizon=3, num_actions=4, instance_seed=5)
    agent = Agent(lock, algo=name, config=SMALL[name], seed=7).learn(episodes=30_000, progress=False)
    assert agent.solved


CONFIG = replace(OliveConfig.paper(3), threshold=0.05, eliminate_episodes=20_000, estimate_episodes=500)


def finite_lock(horizon: int = 3) -> FiniteBlockMDP:
    return FiniteBlockMDP(horizon, num_actions=3, lock=True, instance_seed=2)


def exact_rows(block, level: int) -> Gathered:
    """Rows that weigh as the exact distribution of (x, a, x') under uniform actions: counts of 10^-4."""
    state = block.initial
    for h in range(level):
        state = np.einsum("s,sat->t", state, block.transition[h]) / block.num_actions
    joint = state[:, None, None] * block.transition[level] / block.num_actions
    x, a, after = (part.ravel() for part in np.indices(joint.shape))
    count = np.round(joint.ravel() * 1e4).astype(int)
    x, a, after = (np.repeat(part, count) for part in (x, a, after))
    eye, zero = np.eye(joint.shape[0]), np.zeros(len(x))
    rows = (eye[x], a, block.reward[level][x, a], eye[after], zero, eye[after], zero, a, zero)
    return Gathered(*map(jnp.asarray, rows))


def test_elimination_finds_the_exact_bellman_errors():
    """Each pair's error is E[g(x, pi_g(x)) - r - max g'(x')], computed here from the tables."""
    block = finite_lock().block
    functions = enumerated_class(np.random.default_rng(1), block, 3, 2)
    for level in range(3):
        state = block.initial
        for h in range(level):
            state = np.einsum("s,sat->t", state, block.transition[h]) / block.num_actions
        found = bellman_errors(functions, level, exact_rows(block, level))
        S = np.arange(len(state))
        for i, f in enumerate(functions[level]):
            act = f.argmax(axis=1)
            for j in range(len(functions[level])):
                later = functions[level + 1, j].max(axis=1) if level < 2 else np.zeros(len(S))
                error = f[S, act] - block.reward[level][S, act] - block.transition[level][S, act] @ later
                assert found[i, j] == pytest.approx(state @ error, abs=2e-3)
        assert abs(found[0, 0]) < 2e-3  # the truth has none


def test_optimism_and_survivors_on_three_functions():
    """Two levels, three functions each; pair (2, *) is gone, and (1, 0) is all that is left of 1."""
    functions = np.array([[1.0, 2.0, 3.0], [5.0, 4.0, 3.0]])[:, :, None, None] * np.ones((1, 1, 2, 2))
    alive = np.ones((2, 3, 3), bool)
    alive[0, 2] = alive[0, 1, 1:] = False
    assert survivors(alive) == 3 + 1
    assert optimistic(functions, alive, np.zeros(2)).tolist() == [1, 0]
    alive[1, 0] = False  # the function 0 of the last level is gone, so 1 has no companion
    assert survivors(alive) == 2
    assert optimistic(functions, alive, np.zeros(2)).tolist() == [0, 1]


def test_the_true_function_survives_and_the_answer_is_nearly_optimal():
    agent = Agent(finite_lock(), algo="olive", config=CONFIG, seed=4).learn(
        iterations=25, until_solved=False, progress=False
    )
    assert agent.state.alive[:, 0, 0].all()  # type: ignore[attr-defined]
    assert agent.history[-1]["survivors"] < agent.history[0]["survivors"]
    assert agent.history[-1]["bellman_error"] <= 5 / 8 * CONFIG.epsilon
    assert agent.evaluate(200).mean >= 1 - CONFIG.epsilon


@pytest.mark.parametrize(
    ("env", "sentence"),
    [
        (CombinationLock(3), "olive enumerates functions of finitely many observations: finite-block and .*"),
        (finite_lock(5), "olive enumerates up to 4 levels, got horizon 5"),
    ],
)
def test_other_worlds_are_refused(env, sentence):
    with pytest.raises(ValueError, match=sentence):
        Olive(ScanSampler(env), CONFIG)


def test_state_shapes_are_those_of_the_first_state():
    algorithm = Olive(
        ScanSampler(finite_lock()), replace(CONFIG, eliminate_episodes=100, estimate_episodes=20)
    )
    state = algorithm.init(jax.random.key(0))
    after = algorithm.update(state)
    assert jax.tree.map(np.shape, state) == jax.tree.map(np.shape, after)
