"""Networks of the decoders: shapes, a user's own module, that they learn; features of a low-rank lock."""

from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import briee
from briee.agent.agent import BRIEE
from briee.algorithms.paper.buffers import Transitions
from briee.algorithms.paper.collection import all_rows
from briee.algorithms.paper.config import BonusConfig, BrieeConfig
from briee.algorithms.paper.decoders import CNN, Custom, Decoder, maker, patches, redrawn, standard_of
from briee.algorithms.paper.lsvi import lsvi
from briee.algorithms.paper.replearn import replearn
from briee.algorithms.paper.reward_free import RewardFree
from briee.envs.lock import CombinationLock
from briee.envs.registry import make
from briee.numerics.linalg import at_level
from briee.rollout.policies import UniformPolicy
from briee.rollout.samplers import ScanSampler
from briee.training.checkpoint import CheckpointError
from small_runs import bonus_of, make_env, tiny

KEY = jax.random.key(0)
QUIET: dict[str, Any] = {"progress": False, "until_solved": False}


@pytest.mark.parametrize(
    ("decoder", "shape"), [("linear", (8,)), ("linear", (4, 3, 2)), ("mlp", (8,)), ("mlp", (5, 5, 3)),
                           ("cnn", (28, 28, 1)), ("cnn", (5, 7, 3)), ("cnn", (30, 17, 2))]
)  # fmt: skip
def test_networks_give_one_number_per_latent_state(decoder, shape):
    make = maker(decoder, shape, 4)
    observation = jax.random.normal(KEY, shape)
    one, two = make(KEY)(observation), make(jax.random.key(1))(observation)  # type: ignore[operator]
    assert one.shape == (4,)
    assert np.isfinite(one).all()
    assert not np.allclose(one, two)


def test_patches_tile_the_picture():
    picture = jnp.arange(3 * 4 * 1.0).reshape(3, 4, 1)
    found = patches(picture, 2)
    assert found.shape == (2, 2, 4)
    np.testing.assert_array_equal(found[0, 1], [2, 3, 6, 7])
    np.testing.assert_array_equal(found[1, 0], [8, 9, 0, 0])  # zeros below the last row


def test_the_first_layer_is_a_convolution():
    picture = jax.random.normal(KEY, (28, 28, 3))
    network = CNN((28, 28, 3), 2, jax.random.key(1))
    kernel = network.kernels[0].reshape(-1, 4, 4, 3).transpose(1, 2, 3, 0)  # height, width, in, out
    dimensions = ("NHWC", "HWIO", "NHWC")
    wanted = jax.lax.conv_general_dilated(
        picture[None], kernel, (4, 4), "VALID", dimension_numbers=dimensions
    )
    np.testing.assert_allclose(patches(picture, 4) @ network.kernels[0].T, wanted[0], atol=1e-4)


def test_a_users_module_is_redrawn_for_each_level_with_its_own_scale():
    network = eqx.nn.MLP(8, 3, 16, 1, key=KEY)
    drawn = redrawn(network, jax.random.key(1))
    before, after = network.layers[0].weight, drawn.layers[0].weight
    assert not np.allclose(before, after)
    assert float(after.std()) == pytest.approx(float(before.std()), rel=0.3)
    np.testing.assert_array_equal(network.layers[0].bias, drawn.layers[0].bias)
    np.testing.assert_array_equal(Custom(network)(jnp.ones(8)), network(jnp.ones(8)))


def test_an_agent_learns_with_a_users_module_and_needs_it_again(tmp_path):
    network = eqx.nn.MLP(8, 3, 4, 1, key=KEY)
    agent = BRIEE(make_env(), "paper", config=tiny(), decoder=network).learn(iterations=1, **QUIET)
    agent.save(tmp_path / "own.briee")
    with pytest.raises(CheckpointError, match="needs the network itself"):
        briee.load(tmp_path / "own.briee")
    again = briee.load(tmp_path / "own.briee", decoder=network)
    observation = np.ones((5, 8), np.float32)
    np.testing.assert_array_equal(agent.latent_states(observation, 1), again.latent_states(observation, 1))
    assert agent.config.features.decoder == "custom"


@pytest.mark.parametrize(
    ("decoder", "sentence"),
    [
        ("cnn", r"decoder='cnn' needs images, .* got \(8,\)"),
        ("conv", "decoder must be one of linear, mlp, cnn, custom, got 'conv'"),
        ("custom", "needs the network itself"),
        (lambda observation: observation[:3], "an Equinox module with weights, got function"),
        (eqx.nn.Linear(8, 5, key=KEY), r"num_latents = 3 logits, got shape \(5,\)"),
        (eqx.nn.Linear(7, 3, key=KEY), r"does not take observations of shape \(8,\)"),
    ],
)
def test_what_does_not_fit_is_one_sentence(decoder, sentence):
    with pytest.raises(ValueError, match=sentence):
        BRIEE(make_env(), "paper", config=tiny(), decoder=decoder)


def test_standardised_observations_have_mean_zero_and_variance_one():
    observations = 7.0 + 0.1 * jax.random.normal(KEY, (50, 4, 3)).at[:, 0].set(0.0)
    valid = jnp.arange(50) < 40
    seen = jax.vmap(standard_of(observations, valid))(observations)[:40]
    np.testing.assert_allclose(seen.mean(0), 0.0, atol=1e-4)
    assert float(seen.var(0).mean()) == pytest.approx(1, rel=1e-3)
    assert (jax.vmap(standard_of(jnp.ones((5, 3)), jnp.ones(5, bool)))(jnp.ones((5, 3))) == 0).all()


@pytest.mark.parametrize("standardize", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_with_standardised_observations_their_scale_does_not_matter(standardize):
    """Agents on a lock and on the same lock in other units see the same latent states."""

    class OtherUnits(CombinationLock):
        def observation(self, state, rng):
            return 30 + 20 * super().observation(state, rng)

    paper = tiny()
    config = replace(paper, features=replace(paper.features, decoder="mlp", standardize=standardize))
    kinds: tuple[Any, ...] = (CombinationLock, OtherUnits)
    agents = [BRIEE(kind(horizon=2, num_actions=2), config=config) for kind in kinds]
    plain, other = (agent.learn(iterations=1, **QUIET) for agent in agents)
    x = np.asarray(jax.random.normal(KEY, (5, *plain.algorithm.sampler.observation_shape)))
    seen, again = plain.latent_states(x, 1), other.latent_states(30 + 20 * x, 1)
    assert np.allclose(seen, again, atol=1e-3) == standardize


@pytest.mark.slow
@pytest.mark.parametrize("decoder", ["linear", "cnn"])
def test_latent_states_of_pictures_are_told_apart(decoder):
    """One level of an image lock, uniform actions, half of the rows in the bad state."""
    n, actions = 2000, 5
    lock = CombinationLock(horizon=5, emission="image", templates=2, instance_seed=3)
    rng = np.random.default_rng(3)
    latent = np.where(rng.uniform(size=n) < 0.5, 2, rng.integers(2, size=n))
    action = rng.integers(actions, size=n)
    after = np.where((latent < 2) & (action == latent), rng.integers(2, size=n), 2)  # each has its own key
    emit = jax.jit(jax.vmap(lock.emit, (0, None, 0)))
    keys, full = jax.random.split(KEY, 2 * n), jnp.ones(n, bool)
    now, later = emit(latent, 2, keys[:n]), emit(after, 3, keys[n:])
    data = Transitions(now, jnp.asarray(action, jnp.int32), jnp.zeros(n), later, full, full)
    config = replace(
        BrieeConfig.paper(5).replearn, hidden_sizes=(), discriminator_steps=32, feature_steps=32, rounds=15
    )
    make = maker(decoder, lock.observation_shape, 3)
    start, rival = (Decoder(make(jax.random.key(i)), jnp.float32(1)) for i in (1, 2))  # type: ignore[arg-type]
    learned = eqx.filter_jit(replearn)(jax.random.key(3), data, start, rival, config, actions).decoder
    fresh = emit(latent, 2, jax.random.split(jax.random.key(9), n))
    decoded = np.asarray(jax.vmap(learned)(fresh)).argmax(1)
    names = [np.bincount(decoded[latent == z], minlength=3).argmax() for z in range(3)]
    assert len(set(names)) == 3
    assert np.mean([np.mean(decoded[latent == z] == names[z]) for z in range(3)]) > 0.95


H, A, K = 2, 3, 3


@pytest.fixture(scope="module")
def sampler():
    return ScanSampler(make("lock-simplex", horizon=H, num_actions=A, instance_seed=1))


class TrueFeatures:
    """psi* of the simplex lock at one level: weights of the latent states, on the simplex."""

    def __init__(self, pure, level: int):
        self.pure, self.level = pure, level

    def __call__(self, observation):
        return self.pure.ground_truth_features(self.level, observation)


def test_true_features_are_weights_that_are_not_one_hot(sampler):
    rows = all_rows(sampler.rollout(UniformPolicy(A), jax.random.key(0), 200))
    psi = np.asarray(jax.vmap(TrueFeatures(sampler.pure, 1))(rows.observation[1]))
    np.testing.assert_allclose(psi.sum(axis=1), 1.0, rtol=1e-5)
    assert (psi >= 0).all()
    assert np.median(psi.max(axis=1)) < 0.999


def test_bonus_and_plan_are_the_dense_ones_for_soft_features(sampler):
    """Against phi = psi ⊗ e_a written out in float64: neither LSVI nor the bonus needs one-hot psi."""
    paper = BrieeConfig.paper(H)
    soft = replace(paper.features, temperature=2.0, first_temperature=2.0)
    algorithm = RewardFree(sampler, replace(paper, features=soft))
    decoder = algorithm.random_decoders(jax.random.key(1))
    rows: Transitions = all_rows(sampler.rollout(UniformPolicy(A), jax.random.key(2), 100))
    lam, alpha = 1.0, 0.3
    bonus = bonus_of(rows, decoder, BonusConfig(alpha=alpha, cap=None), lam, A)
    q = lsvi(rows, decoder, lam, A, bonus)
    V = np.zeros(100)
    for h in reversed(range(H)):
        psi = np.asarray(jax.vmap(at_level(decoder, h))(rows.observation[h]), np.float64)
        assert np.median(psi.max(axis=1)) < 0.999, "soft"
        phi = np.einsum("nk,na->nak", psi, np.eye(A)[rows.action[h]]).reshape(100, A * K)
        Sigma = phi.T @ phi + lam * np.eye(A * K)
        target = V + np.asarray(rows.reward[h], np.float64)
        w = np.linalg.solve(Sigma, phi.T @ target).reshape(A, K)
        np.testing.assert_allclose(q.weights[h], w, rtol=1e-3, atol=1e-5)
        every = np.einsum("nk,ab->nabk", psi, np.eye(A)).reshape(100, A, A * K)
        norm = np.sqrt(np.einsum("nai,ij,naj->na", every, np.linalg.inv(Sigma), every))
        got = jax.vmap(lambda s, h=h: q(jnp.int32(h), s))(rows.observation[h])
        np.testing.assert_allclose(got, psi @ w.T + alpha * norm, rtol=1e-3, atol=1e-5)
        if h > 0:
            V = np.asarray(jax.vmap(lambda s, h=h: q(jnp.int32(h), s).max())(rows.next_observation[h - 1]))


def test_the_simplex_lock_is_explored_and_planned_like_any_other(sampler):
    paper = BrieeConfig.paper(H)
    few = {"feature_steps": 32, "discriminator_steps": 32, "feature_batch": 64, "discriminator_batch": 64}
    config = replace(
        paper,
        collect=replace(paper.collect, buffer_size=400),
        replearn=replace(paper.replearn, hidden_sizes=(16,), rounds=4, **few),
        workers=1,
    )
    algorithm = RewardFree(sampler, config)
    state = algorithm.init(jax.random.key(3))
    for _ in range(2):
        state = algorithm.update(state)
    soft = np.asarray(algorithm.decode(state, 1, state.buffers.rows.observation[1, :50]))
    np.testing.assert_allclose(soft.sum(axis=1), 1.0, rtol=1e-5)
    assert np.isfinite(state.greedy.weights).all()
    plan = algorithm.plan_for(state, lambda level, s: jnp.where(jnp.arange(A) == 2, 1.0, 0.0))
    episodes = sampler.rollout(plan, jax.random.key(4), 50)
    assert (np.asarray(episodes.action) == 2).mean() > 0.95
