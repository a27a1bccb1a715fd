"""Lemmas 9 and 10 and Theorem 5, on block MDPs explored without a reward; each test also breaks its claim."""

import numpy as np
import pytest

from briee.algorithms.theory.dynamic_programming import random_class
from briee.algorithms.theory.theorem_parameters import TheoryPreset
from briee.envs.exact_tables import lock_block_mdp, random_block_mdp
from theory_lemmas import (
    overestimation,
    planning_error,
    reconstruction_error,
    reward_free_values,
)
from theory_runs import RewardFreeSetting, explore


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
