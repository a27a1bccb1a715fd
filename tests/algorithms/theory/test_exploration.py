"""Algorithm 1 with exact oracles: a singleton class is LSVI-UCB, mixtures converge, rare states are fine."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest
from jax import nn

from briee.algorithms.paper.buffers import Transitions
from briee.algorithms.paper.config import BonusConfig
from briee.algorithms.paper.lsvi import lsvi
from briee.algorithms.theory.config import TheoryPreset
from briee.algorithms.theory.exploration import ExactSetting
from briee.algorithms.theory.oracle import random_class, value_iteration, values
from briee.envs.finite_block import lock_block_mdp, random_block_mdp
from small_runs import bonus_of
from theory_lemmas import RewardFreeSetting, explore, mixture_regret, plan_after, uniform_policy


def preset(mdp, size, samples, **changes) -> TheoryPreset:
    return TheoryPreset(mdp.num_latents, mdp.num_actions, size, samples, **changes)


def start_value(mdp, policy) -> float:
    return float(mdp.initial @ values(mdp.transition, mdp.reward, policy)[0])


def lsvi_ucb(mdp, counts, all_counts, lam, alpha):
    """LSVI-UCB with the features phi* given: one row per transition, covariances as d x d matrices."""
    H, S, A = mdp.reward.shape
    d = mdp.dimension
    phi = np.zeros((H, S, A, d))
    for h, s, a in np.ndindex(H, S, A):
        phi[h, s, a, mdp.truth[h, s] * A + a] = 1.0
    V, Q = np.zeros(S), np.zeros((H, S, A))
    for h in reversed(range(H)):
        s, a, t = np.nonzero(all_counts[h])
        repeat = np.repeat(np.arange(len(s)), all_counts[h][s, a, t].astype(int))
        rows, target = phi[h, s, a][repeat], V[t][repeat]
        w = np.linalg.solve(rows.T @ rows + lam * np.eye(d), rows.T @ target)
        s, a, t = np.nonzero(counts[h])
        repeat = np.repeat(np.arange(len(s)), counts[h][s, a, t].astype(int))
        seen = phi[h, s, a][repeat]
        Sigma = seen.T @ seen + lam * np.eye(d)
        norm = np.sqrt(np.einsum("sai,iksa->sa", phi[h], np.linalg.solve(Sigma, phi[h].reshape(-1, d).T)
                                 .reshape(d, 1, S, A)))  # fmt: skip
        Q[h] = phi[h] @ w + mdp.reward[h] + np.minimum(alpha * norm, 2.0)
        V = Q[h].max(axis=1)
    return Q


@pytest.mark.parametrize("seed", [0, 1])
def test_a_singleton_class_is_lsvi_ucb_number_by_number(seed):
    rng = np.random.default_rng(seed)
    mdp = random_block_mdp(rng, 3, 2, 2)
    setting = ExactSetting(mdp, mdp.truth[:, None], preset(mdp, 1, 60, alpha_scale=0.01), growth=1.0)
    history = list(explore(setting, 60, rng))
    assert [step.n for step in history] == list(range(1, 61)), "one sample per level and iteration"
    for step in history:
        Q = lsvi_ucb(mdp, step.counts, step.counts + step.counts_prime, step.lam, step.alpha)
        np.testing.assert_allclose(step.q, Q, rtol=1e-12, atol=1e-12)
        best = np.take_along_axis(Q, step.policy.argmax(axis=2)[..., None], axis=2)
        np.testing.assert_allclose(best[..., 0], Q.max(axis=2), rtol=1e-12)
        assert all(result.rounds == 1 and result.gaps == [0.0] for result in step.learned)


class OneHotDecoder(eqx.Module):
    """A decoder of one-hot observations."""

    table: jnp.ndarray

    def __call__(self, observation):
        return observation @ self.table


def test_the_model_based_view_is_the_librarys_lsvi():
    """Value iteration in P-hat gives the numbers of `lsvi` on the same transitions, bonus included."""
    rng = np.random.default_rng(2)
    mdp = random_block_mdp(rng, 3, 3, 2, emissions=2)
    setting = ExactSetting(mdp, random_class(rng, mdp, 3), preset(mdp, 3, 50, alpha_scale=0.05), growth=1.5)
    step = list(explore(setting, 50, rng))[-1]
    H, S, A = mdp.reward.shape

    def rows(h):
        both = [(step.counts[h], True), (step.counts_prime[h], False)]
        found = [
            (s, a, t, on) for c, on in both for s, a, t in np.argwhere(c) for _ in range(int(c[s, a, t]))
        ]
        found += [(0, 0, 0, False)] * (100 - len(found))
        valid = np.arange(100) < int(step.counts[h].sum() + step.counts_prime[h].sum())
        s, a, t, on = map(np.array, zip(*found, strict=True))
        eye = np.eye(S, dtype=np.float32)
        return eye[s], a.astype(np.int32), mdp.reward[h][s, a].astype(np.float32), eye[t], on, valid

    data = Transitions(*(jnp.stack(column) for column in zip(*map(rows, range(H)), strict=True)))
    decoder = OneHotDecoder(nn.one_hot(jnp.asarray(step.decoders), 3))
    bonus = bonus_of(data, decoder, BonusConfig(alpha=step.alpha), step.lam, A)
    table = jnp.asarray(mdp.reward, jnp.float32)
    q = lsvi(data, decoder, step.lam, A, bonus, reward=lambda level, s: s @ table[level])
    for h in range(H):
        got = np.stack([q(jnp.int32(h), jnp.eye(S)[s]) for s in range(S)])
        np.testing.assert_allclose(got, step.q[h], rtol=2e-5)


def test_p_hat_is_a_submodel():
    rng = np.random.default_rng(3)
    mdp = random_block_mdp(rng, 3, 2, 2)
    setting = ExactSetting(mdp, random_class(rng, mdp, 3), preset(mdp, 3, 1000), growth=2.0)
    for step in explore(setting, 1000, rng):
        mass = step.model.sum(axis=-1)
        assert (step.model >= 0).all()
        assert (mass < 1).all()
        assert abs(float(mdp.initial @ values(step.model, mdp.reward + step.bonus, step.policy)[0])
                   - step.optimistic_value) < 1e-12  # fmt: skip
    assert mass.max() > 0.9


@pytest.mark.parametrize("seed", range(2))
def test_the_mixture_converges_to_the_optimum(seed):
    """Theorem 1 on the lock: V-hat comes down to V*, and the mixture's regret goes below epsilon."""
    rng = np.random.default_rng(seed)
    mdp = lock_block_mdp(rng, horizon=3, num_actions=2)
    setting = ExactSetting(mdp, random_class(rng, mdp, 3), preset(mdp, 3, 1e7, alpha_scale=1e-3), growth=1.3)
    history = list(explore(setting, 10**7, rng))
    regret = mixture_regret(history, mdp.optimal_return, start_value(mdp, uniform_policy(mdp)))
    assert regret[0] > 0.8
    assert regret[-1] < 0.1
    assert 0 <= history[-1].optimistic_value - mdp.optimal_return < 0.1
    np.testing.assert_array_equal(history[-1].decoders[1:], mdp.truth[1:3])


def test_without_a_bonus_the_lock_stays_shut():
    """The mutation that matters: no bonus, and locks with three actions are never opened."""
    shut = {0.0: 0, 1.0: 0}
    for scale in shut:
        for seed in (1, 4):
            rng = np.random.default_rng(seed)
            mdp = lock_block_mdp(rng, horizon=4, num_actions=3)
            setting = ExactSetting(
                mdp,
                mdp.truth[:, None],
                preset(mdp, 1, 3000, alpha_scale=0.01),
                growth=1.2,
                bonus_scale=scale,
            )
            history = list(explore(setting, 3000, rng))
            shut[scale] += min(step.regret for step in history) > 0.5
    assert shut[0.0] == 2
    assert shut[1.0] == 0


def test_reward_free_planning_error_decreases_for_held_out_rewards():
    """Theorem 2 as printed: the first iteration promises little and is chosen, until N is some 10^13; then
    the error of rewards that exploration never saw goes to zero, with the bonus and sooner without."""
    early, late, late_greedy = [], [], []
    for seed in range(2):
        rng = np.random.default_rng(seed)
        mdp = random_block_mdp(rng, 3, 2, 2, emissions=2)
        held_out = rng.uniform(size=(10, 3, 2, 2)) / 3
        setting = RewardFreeSetting(mdp, random_class(rng, mdp, 3), preset(mdp, 3, 1e16), growth=8.0)
        history = list(explore(setting, 10**16, rng))
        chosen = min(history, key=lambda step: step.optimistic_value)
        assert chosen.n > 10**15
        for latent in held_out:
            reward = np.stack([latent[h][mdp.truth[h]] for h in range(3)])
            early.append(planning_error(mdp, reward, plan_after(history[:5], reward)))
            late.append(planning_error(mdp, reward, plan_after(history, reward)))
            late_greedy.append(planning_error(mdp, reward, plan_after(history, reward, with_bonus=False)))
    assert min(early + late) > -1e-12
    assert np.mean(early) > 0.02
    assert np.mean(late) < np.mean(early) / 5
    assert max(late_greedy) < 1e-6


def planning_error(mdp, reward, policy) -> float:
    best = value_iteration(mdp.transition, reward)[1][0]
    return float(mdp.initial @ (best - values(mdp.transition, reward, policy)[0]))


@pytest.mark.parametrize("rare", [1e-3, 1e-6, 0.0])
def test_a_barely_reachable_state_does_not_hurt(rare):
    """No reachability is assumed: the last policies are as good with a state that is almost never entered."""
    regrets = []
    for seed in range(2):
        rng = np.random.default_rng(seed)
        mdp = random_block_mdp(rng, 3, 3, 2, emissions=2, rare=rare)
        setting = ExactSetting(
            mdp, random_class(rng, mdp, 3), preset(mdp, 3, 1e6, alpha_scale=1e-3), growth=2.0
        )
        history = list(explore(setting, 10**6, rng))
        regrets.append(np.mean([step.regret for step in history[-5:]]))
    assert max(regrets) < 0.02


def test_presets_refuse_nonsense_and_grow_as_stated():
    with pytest.raises(ValueError, match="delta"):
        TheoryPreset(2, 2, 4, 100, delta=0.0)
    with pytest.raises(ValueError, match="samples"):
        TheoryPreset(2, 2, 4, 0)
    one = TheoryPreset(2, 2, 4, 1e6)
    assert one.alpha(16e5) / one.alpha(1e5) == pytest.approx(
        2.0 * np.log(4 * 16e5 / 0.1) / np.log(4 * 1e5 / 0.1)
    )
    assert one.ell(4e5) == pytest.approx(one.ell(1e5) / 2)
    assert one.rounds(4e6) == pytest.approx(2 * one.rounds(1e6), abs=1)
    proof = TheoryPreset(2, 2, 4, 1e6, constants="proof")
    assert proof.c == pytest.approx(proof.alpha(1e6) / np.sqrt(proof.lam(1e6))), "c is the fixed point"
    assert 3 * proof.epsilon_1(1e12) < proof.zeta(5e11) < 3.4 * proof.epsilon_1(1e12), (
        "75 covers 3 x 16 sqrt 2"
    )
    assert proof.ell(1e6) > 1.5 * proof.epsilon_1(2e6)
