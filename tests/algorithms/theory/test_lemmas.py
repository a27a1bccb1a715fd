"""Every lemma, measured on random block MDPs; each test also breaks its claim and sees it fail."""

from dataclasses import replace
from typing import Literal

import jax.numpy as jnp
import numpy as np
import pytest

from briee.algorithms.theory.config import TheoryPreset
from briee.algorithms.theory.exploration import ExactSetting, count_bonus
from briee.algorithms.theory.oracle import deterministic, mixture, random_class, replearn
from briee.envs.finite_block import lock_block_mdp, random_block_mdp
from briee.numerics.linalg import block_gram, elliptical_norm, inverse_factor
from theory_lemmas import (
    RewardFreeSetting,
    almost_optimism,
    bonus_ratio,
    bounded_weights,
    explore,
    generalised_potential,
    one_step_back,
    one_step_back_learned,
    overestimation,
    planning_error,
    potential,
    reconstruction_error,
    replearn_guarantee,
    reward_free_values,
    simulation_lemma,
    total_variation,
    uniform_convergence,
)

SEEDS = 2


def make(
    seed: int, constants: Literal["proof", "statement"] = "statement", samples=10**6, **changes
) -> tuple[ExactSetting, np.random.Generator]:
    rng = np.random.default_rng(seed)
    if seed % 2:
        mdp = lock_block_mdp(rng, horizon=3, num_actions=2)
    else:
        mdp = random_block_mdp(rng, 3, 2, 3, emissions=3)
    preset = TheoryPreset(mdp.num_latents, mdp.num_actions, 3, samples, constants=constants)
    setting = ExactSetting(mdp, random_class(rng, mdp, 3), preset, growth=4.0, **changes)
    return setting.with_discriminators(), rng


@pytest.fixture(scope="module", params=range(SEEDS))
def run(request):
    """A setting, all iterations of Algorithm 1 in it, and a generator."""
    setting, rng = make(request.param)
    return setting, list(explore(setting, 10**6, rng)), rng


def test_lemma_1_rounds_and_reconstruction_error(run):
    """RepLearn ends within T_n, and no discriminator is predicted worse than zeta_n; zeta_n / 1000 fails."""
    setting, history, _ = run
    tight = []
    for step in history:
        T = setting.preset.rounds(step.n)
        for h, result in enumerate(step.learned):
            assert result.rounds <= max(T, 2)
            sides = replearn_guarantee(setting, step, h)
            assert sides.holds, f"n = {step.n}, level {h}: {sides}"
            tight.append(sides.left > sides.right / 1000)
    assert any(tight), "a bound a thousand times smaller is violated"
    last = max(reconstruction_error(setting, history[-1], h) for h in range(3))
    first = max(reconstruction_error(setting, history[0], h) for h in range(3))
    assert last < 1e-3 * first, "and the error vanishes"


def test_lemma_1_with_the_constants_of_the_proof():
    """56, 16 sqrt(2) and 75 as printed: vacuous at small n, and still true where they bite, at n = 10^14."""
    setting, rng = make(1, constants="proof", samples=10**14)
    history = list(explore(replace(setting, growth=10.0), 10**14, rng))
    for step in history:
        assert all(replearn_guarantee(setting, step, h).holds for h in range(3))
        assert all(r.rounds <= setting.preset.rounds(step.n, 2.0 * step.n) for r in step.learned[1:])
    assert history[0].learned[0].index == 0, "anything goes at first"
    assert setting.preset.ell(history[-1].n) < 0.05
    for h in range(3):
        np.testing.assert_array_equal(history[-1].decoders[h], setting.mdp.truth[h])


def test_lemma_2_almost_optimism(run):
    """V-hat >= V* - sqrt(A zeta) even with the measured zeta, and V-hat >= V* itself after the first data."""
    setting, history, _ = run
    for step in history:
        zeta = max(reconstruction_error(setting, step, h) for h in range(3))
        assert almost_optimism(setting, step, zeta).holds
        assert almost_optimism(setting, step, 0.0).holds, "the slack was not even needed"
    assert history[-1].optimistic_value > setting.mdp.optimal_return + 0.1


def test_lemma_2_fails_without_the_bonus(run):
    """Mutation: no bonus. The ridge shrinks every value, so V-hat < V* in every iteration."""
    setting, _, _ = run
    for step in explore(replace(setting, bonus_scale=0.0), 10**4, np.random.default_rng(0)):
        assert not almost_optimism(setting, step, 0.0).holds
    weak = replace(setting, bonus_scale=1e-4)
    broken = [almost_optimism(setting, s, 0.0).holds for s in explore(weak, 10**4, np.random.default_rng(0))]
    assert not all(broken)


def test_lemma_16_simulation(run):
    """Both forms agree to rounding; the second as printed, with V of the wrong model, does not."""
    setting, history, rng = run
    mdp, misprint = setting.mdp, 0.0
    for step in history:
        policy = rng.dirichlet(np.ones(mdp.num_actions), size=mdp.reward.shape[:2])
        difference, one, two = simulation_lemma(mdp, step.model, step.bonus, policy)
        assert one == pytest.approx(difference, abs=1e-12)
        assert two == pytest.approx(difference, abs=1e-12)
        misprint = max(
            misprint, abs(simulation_lemma(mdp, step.model, step.bonus, policy, True)[2] - difference)
        )
    assert misprint > 0.01


def test_lemma_4_one_step_back_in_the_true_model(run):
    """For random and for adversarial g. With |A| under the root replaced by 1 the adversary wins."""
    setting, history, rng = run
    mdp = setting.mdp
    for step in history:
        for _ in range(10):
            g = rng.uniform(-1, 1, size=mdp.reward.shape)
            policy = deterministic(rng.integers(mdp.num_actions, size=g.shape[:2]), mdp.num_actions)
            assert one_step_back(mdp, step.rho, step.gamma, g, policy, step.n, step.lam, 1.0).holds
    policy = history[-1].policy
    rho, _, gamma = mixture(mdp, policy)
    sides = one_step_back(mdp, rho, gamma, policy, policy, 1e8, 1.0, 1.0)
    assert sides.holds
    assert sides.left == pytest.approx(3.0)
    if mdp.optimal_return == 1.0:  # the lock, where d has few cells and the lemma is nearly tight
        assert not one_step_back(mdp, rho, gamma, policy, policy, 1e8, 1.0, 1.0, action_factor=1.0).holds


def test_lemma_3_one_step_back_in_the_learned_model(run):
    """For g >= 0, with the measured zeta; |A|^2 = 4 replaced by 1/2 fails on the lock (1 is tight there)."""
    setting, history, rng = run
    mdp = setting.mdp
    for step in history:
        zeta = max(reconstruction_error(setting, step, h) for h in range(3))
        for _ in range(10):
            g = rng.uniform(0, 1, size=mdp.reward.shape) * rng.integers(0, 2, size=mdp.reward.shape)
            policy = deterministic(rng.integers(mdp.num_actions, size=g.shape[:2]), mdp.num_actions)
            assert one_step_back_learned(setting, step, g, policy, zeta, 1.0).holds
    if mdp.optimal_return == 1.0:
        last = history[-1]
        right = [mdp.latent.transition[h, :, :, :2].sum(-1).argmax(1)[mdp.truth[h]] for h in range(3)]
        greedy = deterministic(np.stack(right), mdp.num_actions)
        rho, beta, gamma = mixture(mdp, greedy)
        alone = replace(last, rho=rho, beta=beta, lam=1e-3, n=10**8)
        g = greedy * (gamma > 0)
        assert one_step_back_learned(setting, alone, g, greedy, 0.0, 1.0).holds
        assert not one_step_back_learned(setting, alone, g, greedy, 0.0, 1.0, action_factor=0.5).holds


def test_lemma_7_uniform_convergence(run):
    """28 is proved; what random discriminators and decoders need is far less, but more than nothing."""
    setting, history, rng = run
    needed = [uniform_convergence(setting, s, h, rng) for s in history for h in range(3) for _ in range(10)]
    assert max(needed) < 28.0
    assert max(needed) > 1e-4, "a constant of 1e-4 would be violated"


def test_lemma_7_fails_without_its_half():
    """Mutation: without half the excess risk on its right, no constant does once the data are many."""
    setting, rng = make(1, samples=10**15)
    step = list(explore(replace(setting, growth=100.0), 10**15, rng))[-1]
    for share, largest in ((0.5, 1.0), (0.0, np.inf)):
        needed = [uniform_convergence(setting, step, h, rng, share) for h in range(3) for _ in range(30)]
        assert max(needed) < largest
    assert max(needed) > 28.0


def test_theorem_4_fewer_rounds_than_t_are_not_enough():
    """Within T_n every call ends by line 6, with an objective below ell; with T = 1 some call does not."""
    setting, rng = make(1)
    classes = random_class(rng, setting.mdp, 8)
    setting = replace(setting, classes=classes, discriminators=[]).with_discriminators()
    lam, ends = setting.preset.lam, {True: [], False: []}
    for step in explore(setting, 10**6, rng):
        counts, ell, T = (
            step.counts + step.counts_prime,
            setting.preset.ell(step.n),
            setting.preset.rounds(step.n),
        )
        for h in range(3):
            for enough in ends:
                rounds = max(T, 2) if enough else 1
                found = replearn(
                    counts[h], classes[h], 3, setting.discriminators[h], lam(step.n), rounds, ell
                )
                ends[enough].append(found.gaps[-1] <= ell)
                assert found.rounds <= rounds
    assert all(ends[True])
    assert not all(ends[False])


def test_lemma_11_bounded_weights(run):
    setting, history, rng = run
    sides = [bounded_weights(setting, s, h, rng) for s in history for h in range(3) for _ in range(5)]
    assert all(side.holds for side in sides)
    assert any(side.left > 0.5 * side.right for side in sides), "half the bound would be violated"


def test_lemma_15_the_empirical_bonus_concentrates(run):
    """With lambda_n of the theorem the ratio of the norms stays between 1/2 and 2; with a tiny one it does
    not."""
    setting, history, _ = run
    ratios = np.array([bonus_ratio(setting, step) for step in history])
    assert ratios.min() > 0.5
    assert ratios.max() < 2.0
    bare = np.array([bonus_ratio(setting, replace(step, lam=1e-6)) for step in history])
    assert bare.max() > 2.0


def test_the_bonus_is_alpha_over_root_n_plus_lambda(run):
    """The elliptical norm of the library's kernels on one-hot features is the count form, with the counts of
    D alone and with lambda: either mutation is seen."""
    setting, history, _ = run
    step, mdp = history[4], setting.mdp
    Z, A = mdp.num_latents, mdp.num_actions
    for h, labels in enumerate(step.decoders):
        s, a, t = np.nonzero(step.counts[h])
        psi, weight = jnp.eye(Z)[labels], jnp.asarray(step.counts[h][s, a, t], jnp.float32)
        factor = inverse_factor(block_gram(psi[s], jnp.asarray(a), weight, A), step.lam)
        norm = np.asarray(elliptical_norm(factor, psi))
        np.testing.assert_allclose(np.minimum(step.alpha * norm, 2.0), step.bonus[h], rtol=1e-5)

        def by_count(counts, lam, labels=labels):
            return count_bonus(counts[None], labels[None], Z, lam, 0.5, cap=np.inf)[0]

        np.testing.assert_allclose(0.5 * norm, by_count(step.counts[h], step.lam), rtol=1e-5)
        mutations = [by_count(step.counts[h], 1e-3 * step.lam)]
        if h > 0:  # D'_0 is empty
            mutations.append(by_count(step.counts[h] + step.counts_prime[h], step.lam))
        for wrong in mutations:
            assert np.abs(wrong / (0.5 * norm) - 1).max() > 0.01


@pytest.mark.parametrize("seed", range(5))
def test_lemmas_12_to_14_potentials(seed):
    """Lemma 13 as printed has a factor of 2 on its left that Lemma 12 needs; with it, it is false."""
    rng = np.random.default_rng(seed)
    d, N = 4, 400
    x = rng.normal(size=(N, d)) * rng.uniform(0.1, 3, size=d)
    x /= np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1.0)
    G = np.einsum("ni,nj->nij", x, x)
    first, second, printed = potential(G, lam=1.0)
    assert first.holds
    assert first.left > first.right / 2 * 0.9, "the 2 of Lemma 12 is nearly needed: without it"
    assert second.holds
    assert not printed.holds
    small, _, _ = potential(G[:1], lam=1e-3)
    assert not small.holds or x[0] @ x[0] < 0.05, "Lemma 12 needs lambda >= 1"
    L = 2.0
    theta = rng.uniform(-L, L, size=(N + 1, d))
    sides = generalised_potential(theta, L**2 * d)
    assert sides.holds
    assert sides.left > sides.right / 20


def test_pseudo_regret_grows_no_faster_than_n_to_three_quarters():
    """Theorem 3, on locks: the cumulative regret is below n^{3/4} times the theorem's factors, and its
    slope in log-log is below 3/4 once the logarithm in alpha_n is divided out."""
    for seed in range(2):
        rng = np.random.default_rng(seed)
        mdp = lock_block_mdp(rng, horizon=3, num_actions=2)
        preset = TheoryPreset(3, 2, 2, 10**6, alpha_scale=1e-2)
        history = list(explore(ExactSetting(mdp, random_class(rng, mdp, 2), preset, growth=1.2), 10**6, rng))
        n = np.array([step.n for step in history])
        regret = np.cumsum(np.diff([0, *n]) * np.array([1.0, *(step.regret for step in history[:-1])]))
        scale = 3**2.5 * 2**0.5 * 6 * np.log(2 / 0.1) ** 0.25
        assert (regret <= scale * n**0.75).all()
        assert (regret > scale * n**0.75 / 1000).any(), "a thousandth of it is exceeded"
        tail = n > 100
        slope = np.polyfit(np.log(n[tail]), np.log(regret[tail] / np.log(20 * n[tail])), 1)[0]
        assert slope < 0.75


def test_theorem_6_the_learned_model_comes_close_where_any_policy_goes():
    rng = np.random.default_rng(0)
    mdp = random_block_mdp(rng, 3, 2, 2, emissions=2)
    setting = RewardFreeSetting(mdp, random_class(rng, mdp, 3), TheoryPreset(2, 2, 3, 1e5), growth=4.0)
    history = list(explore(setting, 10**5, rng))
    policies = [deterministic(rng.integers(2, size=(3, 4)), 2) for _ in range(20)]
    errors = [max(total_variation(mdp, step, policy) for policy in policies) for step in history]
    assert errors[-1] < 0.3 < errors[0]


@pytest.fixture(scope="module", params=range(3))
def free(request):
    """A setting without reward and all iterations in it; held-out rewards [4, H, S, A]."""
    rng = np.random.default_rng(request.param)
    mdp = lock_block_mdp(rng, 3, 2) if request.param == 2 else random_block_mdp(rng, 3, 2, 2, emissions=2)
    preset = TheoryPreset(mdp.num_latents, mdp.num_actions, 3, 1e8, alpha_scale=1e-2)
    setting = RewardFreeSetting(mdp, random_class(rng, mdp, 3), preset, growth=3.0)
    setting = setting.with_discriminators()
    latent = rng.uniform(size=(4, 3, mdp.num_latents, mdp.num_actions)) / 3
    rewards = np.stack([[table[h][mdp.truth[h]] for h in range(3)] for table in latent])
    return setting, list(explore(setting, 10**8, rng)), rewards


def test_lemma_9_the_value_of_the_iteration_that_is_kept(free):
    """N V-hat of the argmin is below the sum, and the sum below N^{3/4} times the factors; the argmax and a
    thousandth of the factors fail."""
    setting, history, _ = free
    for end in range(1, len(history) + 1):
        kept, total = reward_free_values(setting, history[:end])
        assert kept.holds
        assert total.holds
    assert total.left > total.right / 1000
    worst = max(step.optimistic_value for step in history)
    assert history[-1].n * worst > kept.right, "the iteration of the largest value would not do"


def test_lemma_10_overestimation_for_a_later_reward(free):
    """C = 1 and the measured zeta; half the bonus on the right fails."""
    setting, history, rewards = free
    half = []
    for step in history[1:]:
        zeta = max(reconstruction_error(setting, step, h) for h in range(3))
        for reward in rewards:
            assert overestimation(setting.mdp, step, reward, zeta).holds
            half.append(overestimation(setting.mdp, step, reward, zeta, constant=0.5).holds)
    assert not all(half)


def test_theorem_5_planning_error_for_any_reward(free):
    """In every iteration, the one that Algorithm 4 keeps among them; a thousandth of V-hat, and no slack,
    fails."""
    setting, history, rewards = free
    tight = []
    for step in history[1:]:
        zeta = max(reconstruction_error(setting, step, h) for h in range(3))
        for reward in rewards:
            assert planning_error(setting.mdp, step, reward, zeta).holds
            tight.append(planning_error(setting.mdp, step, reward, 0.0, constant=1e-3).holds)
    assert not all(tight)
    errors = [planning_error(setting.mdp, history[-1], reward, 0.0).left for reward in rewards]
    assert max(errors) < 0.02, "and in the end there is hardly any"
