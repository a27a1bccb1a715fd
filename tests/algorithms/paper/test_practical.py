"""The preset `practical`: its collection, its bonus rule, its contract, and that it opens a lock."""

from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from briee.agent.agent import Agent
from briee.algorithms.bonus import Bonus, exploration_bonus
from briee.algorithms.paper.briee import BrieeAlgorithm
from briee.algorithms.paper.buffers import Transitions
from briee.algorithms.paper.collection import collect_episodes
from briee.algorithms.paper.config import BrieeConfig, CollectConfig
from briee.algorithms.paper.decoders import Encoded
from briee.algorithms.paper.held_out_game import Level, held_out_loss, play
from briee.algorithms.paper.level_features import balanced_rows, growth
from briee.algorithms.paper.lsvi import lsvi
from briee.envs.block import BlockState
from briee.envs.emission import VectorEmission
from briee.envs.lock import CombinationLock
from briee.envs.random_block import RandomBlockMDP
from briee.rollout.policies import UniformPolicy
from briee.rollout.samplers import ScanSampler, evaluate
from briee.testing import check_agent
from reads import FieldReads
from small_runs import PAPER_READS

H = 4


@pytest.fixture(scope="module")
def algorithm():
    return BrieeAlgorithm(ScanSampler(CombinationLock(horizon=H, instance_seed=3)), BrieeConfig.practical(H))


@pytest.fixture(scope="module")
def updated(algorithm):
    return algorithm.update(algorithm.init(jax.random.key(0)))


def test_every_transition_is_kept_and_half_of_the_episodes_deviate_once():
    sampler = ScanSampler(CombinationLock(horizon=H))
    rows, trajectories = collect_episodes(sampler, UniformPolicy(10), jax.random.key(0), 400, 0.5)
    np.testing.assert_array_equal(rows.observation[1], trajectories.observation[:, 1])
    np.testing.assert_array_equal(rows.next_observation[H - 1], trajectories.observation[:, H])
    assert bool(rows.valid.all())
    assert rows.roll_in is not None
    once = np.asarray(rows.on_policy).sum(0)
    assert set(once) == {0, 1}
    assert once.mean() == pytest.approx(0.5, abs=0.1)
    level = np.asarray(rows.on_policy)[:, once == 1].argmax(0)
    assert (np.bincount(level, minlength=H) > 25).all(), "every level, about 50 of 200 episodes"
    follows = np.asarray(rows.on_policy)[:-1] == ~np.asarray(rows.on_policy | rows.roll_in)[1:]
    assert follows.all(), "the second uniform action belongs to D', the next level's"
    assert int(rows.counted("deviations").sum()) == int((rows.valid & ~rows.roll_in).sum())


def test_an_update_collects_in_rounds_and_keeps_all_rows(algorithm, updated):
    assert int(updated.episodes) == 10
    assert int(updated.env_steps) == 10 * H
    np.testing.assert_array_equal(updated.buffers.inserted, [10] * H)
    before = algorithm.init(jax.random.key(0))
    assert jax.tree.structure(before) == jax.tree.structure(updated)
    np.testing.assert_array_equal(updated.growth, np.zeros(H))  # every level was learned


def test_rounds_must_divide_the_episodes():
    with pytest.raises(ValueError, match="rounds must divide episodes = 30, got 4"):
        CollectConfig(episodes=30, rounds=4)
    with pytest.raises(ValueError, match="rounds must divide episodes = None, got 3"):
        CollectConfig(rounds=3)


def test_the_held_out_game_refuses_decoders_it_cannot_fit():
    config = BrieeConfig.practical(H)
    with pytest.raises(ValueError, match=r"held_out.*needs features\.decoder='linear'.*not 'mlp'"):
        replace(config, features=replace(config.features, decoder="mlp"))


def chain(counts: dict[tuple[int, int, int], int], horizon: int, states: int, actions: int) -> Transitions:
    """One-hot rows of a chain in which state 0 goes to state 1 with every action, and state 1 stays."""
    n = max(sum(c for (h, _, _), c in counts.items() if h == level) for level in range(horizon))
    state, action = np.zeros((horizon, n), int), np.zeros((horizon, n), int)
    valid = np.zeros((horizon, n), bool)
    for h in range(horizon):
        filled = [(s, a) for (level, s, a), c in counts.items() if level == h for _ in range(c)]
        state[h, : len(filled)], action[h, : len(filled)] = np.array(filled).T
        valid[h, : len(filled)] = True
    one_hot = jnp.asarray(np.eye(states)[state], jnp.float32)
    after = jnp.asarray(np.eye(states)[np.ones_like(state)], jnp.float32)
    valid = jnp.asarray(valid)
    return Transitions(one_hot, jnp.asarray(action), jnp.zeros(state.shape), after, valid, valid)


@pytest.mark.parametrize("horizon", [5, 20])
@pytest.mark.parametrize("visits", [20, 200])
def test_an_untried_action_is_worth_the_cap_more_than_the_worst_next_state(horizon, visits):
    """The rule of docs/protocol.md by hand. In state 0, action 0 was tried once and led to state 1, where
    each of A actions was tried N times at every later level; action 1 was never tried."""
    A, config = 3, BrieeConfig.practical(horizon)
    alpha, lam, cap = config.bonus.alpha, config.bonus_lam, config.bonus.cap
    counts = {(h, 1, a): visits for h in range(1, horizon) for a in range(A)} | {(0, 0, 0): 1}
    rows = chain(counts, horizon, 2, A)
    bonus = exploration_bonus(rows.observation, rows.action, rows.valid, A, lam, alpha, cap)
    q = lsvi(rows, Encoded(), config.lsvi.lam, A, bonus, prior=config.lsvi.prior)
    values = np.asarray(q(jnp.int32(0), jnp.array([1.0, 0.0])))
    inherited = (horizon - 1) * alpha / np.sqrt(visits + lam)
    assert values[1] == pytest.approx(cap + inherited, rel=1e-4), "alpha / sqrt(lam) is the cap"
    assert values[0] == pytest.approx(alpha / np.sqrt(1 + lam) + inherited, rel=1e-4)


@pytest.mark.parametrize("horizon", [5, 20])
@pytest.mark.parametrize("visits", [2, 20, 200])
def test_with_a_prior_of_zero_an_untried_action_must_beat_the_inherited_bonus(horizon, visits):
    """The same data with Algorithm 3's own ridge: the untried action wins only after (5 / cap)^2 visits."""
    A, alpha, cap = 3, 5 / horizon, 2.0
    lam = (alpha / cap) ** 2
    counts = {(h, 1, a): visits for h in range(1, horizon) for a in range(A)} | {(0, 0, 0): 1}
    rows = chain(counts, horizon, 2, A)
    bonus = exploration_bonus(rows.observation, rows.action, rows.valid, A, lam, alpha, cap)
    values = np.asarray(lsvi(rows, Encoded(), lam, A, bonus)(jnp.int32(0), jnp.array([1.0, 0.0])))
    shrink = visits / (visits + lam)
    later = sum(alpha / np.sqrt(visits + lam) * shrink**j for j in range(horizon - 1))
    tried = later / (1 + lam) + min(alpha / np.sqrt(1 + lam), cap)
    np.testing.assert_allclose(values[:2], [tried, cap], rtol=1e-4)
    assert (values[1] > values[0]) == (visits > (5 / cap) ** 2)


@pytest.mark.parametrize("prior", ["zero", "least"])
def test_an_untried_action_of_the_worst_state_hides_those_before_it_with_a_prior_of_zero(prior):
    """State 1 has an untried action at the last level, worth the cap; all others were tried 200 times. With a
    prior of zero its value is inherited by the first level, where no untried action can then compete."""
    horizon, A, config = 8, 3, BrieeConfig.practical(8)
    counts = {(h, 1, a): 200 for h in range(1, horizon) for a in range(A)} | {(0, 0, 0): 200}
    del counts[horizon - 1, 1, 2]
    rows = chain(counts, horizon, 2, A)
    alpha, lam, cap = config.bonus.alpha, config.bonus_lam, config.bonus.cap
    bonus = exploration_bonus(rows.observation, rows.action, rows.valid, A, lam, alpha, cap)
    q = lsvi(rows, Encoded(), lam, A, bonus, prior=prior)
    values = np.asarray(q(jnp.int32(0), jnp.array([1.0, 0.0])))
    assert (values[1] > values[0]) == (prior == "least")


def test_with_the_table_of_the_paper_the_inherited_bonus_grows_with_the_horizon():
    """lam = 1, alpha = H / 5: at H = 20 the untried action loses with the very data of the test above."""
    horizon, A, visits = 20, 3, 200
    counts = {(h, 1, a): visits for h in range(1, horizon) for a in range(A)} | {(0, 0, 0): 1}
    rows = chain(counts, horizon, 2, A)
    bonus = exploration_bonus(rows.observation, rows.action, rows.valid, A, 1.0, horizon / 5, 2.0)
    values = np.asarray(lsvi(rows, Encoded(), 1.0, A, bonus)(jnp.int32(0), jnp.array([1.0, 0.0])))
    assert values[1] == pytest.approx(2.0, rel=1e-5)
    assert values[0] > values[1]


def test_growth_is_that_of_the_log_determinants_of_a_level_and_the_one_before():
    def bonus(n: list[int]) -> Bonus:
        factor = jnp.stack([jnp.eye(2)[None] / jnp.sqrt(1.0 + count) for count in n])
        return Bonus(factor, jnp.float32(1), jnp.float32(2))

    grown = np.asarray(growth(bonus([0, 3, 9]), bonus([1, 3, 4])))
    np.testing.assert_allclose(grown, [2 * np.log(2), 2 * np.log(2), 0], rtol=1e-5)


@pytest.mark.parametrize("horizon", [6, 25, 100])
def test_two_newly_tried_cells_have_their_level_and_the_next_one_learned_anew(horizon):
    """log det grows by log(1 + 1/lam) for each cell, at any horizon."""
    config, known = BrieeConfig.practical(horizon), 200

    def bonus(tried: int) -> Bonus:
        count = jnp.where(jnp.arange(10) < 5, known, 0) + (jnp.arange(10) >= 10 - tried)
        factor = jnp.eye(3)[None] / jnp.sqrt(count + config.bonus_lam)[:, None, None]
        unseen = factor.at[:, 1:, 1:].set(jnp.eye(2) / jnp.sqrt(config.bonus_lam))  # one state is visited
        return Bonus(jnp.stack([unseen] * 2), jnp.float32(1), jnp.float32(2))

    new_cell = np.log1p(1 / config.bonus_lam)
    assert config.replearn.growth is not None
    for tried in (0, 1, 2):
        grown = np.asarray(growth(bonus(0), bonus(tried)))
        np.testing.assert_allclose(grown, tried * new_cell * np.array([1, 2]), rtol=1e-4, atol=1e-6)
    assert new_cell < config.replearn.growth < 2 * new_cell


def test_a_level_without_a_row_is_learned_later():
    config = BrieeConfig.practical(12)
    alone = replace(config.replearn, rows="deviations")
    config = replace(config, replearn=alone, collect=replace(config.collect, episodes=2, rounds=1), workers=1)
    algorithm = BrieeAlgorithm(ScanSampler(CombinationLock(horizon=12, instance_seed=31)), config)
    state = algorithm.update(algorithm.init(jax.random.key(0)))
    seen = np.asarray(state.buffers.rows.only("deviations").valid).any(-1)
    assert 0 < seen.sum() < 12
    np.testing.assert_array_equal(np.asarray(state.rounds) > 0, seen)
    assert np.isinf(np.asarray(state.growth)[~seen]).all()
    assert np.isfinite(algorithm.metrics(state)["replearn_gap"]), "the levels that wait are not counted"


def test_a_balanced_sample_has_the_newest_rows_and_the_rare_ones():
    rng = np.random.default_rng(0)
    label = (np.arange(3000) % 300 == 0).astype(int)  # 10 rare rows
    psi, action, rank = np.eye(2)[label], rng.integers(10, size=3000), rng.permutation(3000)
    rows = balanced_rows(psi, action, rank, 400, rng)
    assert len(set(rows)) == len(rows) == 400
    assert set(np.argsort(-rank)[:200]) <= set(rows)
    assert label[rows].sum() >= 9, "drawn uniformly there would be one or two"
    np.testing.assert_array_equal(balanced_rows(psi, action, rank, 5000, rng), np.arange(3000))


def test_practical_opens_a_lock_of_horizon_four(algorithm):
    state = algorithm.init(jax.random.key(7))
    for _ in range(20):
        state = algorithm.update(state)
        returns = evaluate(algorithm.sampler, algorithm.policy(state), jax.random.key(99), 100)
        if returns.mean() == 1.0:
            break
    assert returns.mean() == 1.0, f"after {int(state.episodes)} episodes the return is {returns.mean()}"


def test_features_blind_to_the_state_are_replaced_by_ones_that_see_it():
    """Two latent states far apart, and a next state that depends on state and action."""
    rng, n, reads = np.random.default_rng(0), 300, FieldReads()
    latent, action = rng.integers(0, 2, n), rng.integers(0, 2, n)
    x = rng.normal(size=(n, 4))
    x[:, 0] += 8.0 * latent
    F = np.where(latent == action, 1.0, -1.0)[:, None] + 0.1 * rng.normal(size=(n, 1))
    level = Level(x, action, F, np.arange(n) % 2, 2, 2)
    blind = np.zeros((2, 5))
    played = play(level, blind, [], reads.watch(BrieeConfig.practical(2).held_out))
    assert played.accepted
    assert held_out_loss(played.units, level) < 0.1 * held_out_loss(blind, level)
    decoded = (x @ played.units[:, :-1].T + played.units[:, -1]).argmax(1)
    assert max((decoded == latent).mean(), (decoded != latent).mean()) > 0.99
    assert {"rounds", "evaluations"} <= reads.names


class LowRank(RandomBlockMDP):
    """A random low-rank MDP: the latent state is resampled from softmax(scores / tau) before each step, and
    the reward is linear in these soft features."""

    emission: VectorEmission
    temperature: float = eqx.field(static=True)

    def __init__(self, temperature: float, **arguments: Any):
        super().__init__(**arguments)
        self.temperature = temperature

    def psi(self, state: BlockState) -> jax.Array:
        return jax.nn.softmax(self.emission.scores(state.level, state.emission) / self.temperature)

    def transition(self, state, action, rng):
        resample, rest = jax.random.split(rng)
        source = jax.random.categorical(resample, jnp.log(self.psi(state))).astype(jnp.int32)
        return super().transition(BlockState(source, state.level, state.emission), action, rest)

    def reward(self, state, action, next_state, rng):
        return self.reward_table[state.level, :, action] @ self.psi(state)

    @property
    def optimal_return(self) -> float:
        """By dynamic programming, with many draws of the soft features of each latent state."""
        Z = self.num_latents
        noise = np.random.default_rng(0).normal(size=(4096, Z)) * np.asarray(self.emission.std[:Z])
        weights = np.exp((np.eye(Z)[:, None] + noise) / self.temperature)
        return self.latent_model().optimal_return(weights / weights.sum(-1, keepdims=True))


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.2, 0.5])
def test_practical_solves_a_random_low_rank_mdp(temperature):
    env = LowRank(temperature, horizon=6, num_latents=4, num_actions=4, instance_seed=31)
    config = BrieeConfig.practical(6)
    config = replace(config, features=replace(config.features, num_latents=4))
    algorithm = BrieeAlgorithm(ScanSampler(env), config)
    state = algorithm.init(jax.random.key(0))
    for _ in range(100):
        state = algorithm.update(state)
    assert int(state.episodes) == 1_000
    returns = evaluate(algorithm.sampler, algorithm.policy(state), jax.random.key(1), 4000)
    assert returns.mean() > 0.97 * env.optimal_return


@pytest.mark.slow
def test_the_contract_holds():
    env, reads = CombinationLock(horizon=2, instance_seed=1), FieldReads()
    config = reads.watch(BrieeConfig.practical(2))

    def make(seed: int, **changes) -> Agent:
        return Agent(env, algo="briee", config=replace(config, **changes), seed=seed)

    check_agent(make, iterations=8, many_workers=lambda seed: make(seed, workers=4))
    assert reads.unread(config) == PAPER_READS | {"held_out.evaluations"}, "no discriminator was found yet"
