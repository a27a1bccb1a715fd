"""Exact oracles, discriminator classes, RepLearn; `--algo theory` from the command line, its environments."""

import csv
import json
from itertools import product
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from briee import envs
from briee.agent.agent import Agent
from briee.algorithms import registry as algorithms
from briee.algorithms.theory.algorithm import Theory
from briee.algorithms.theory.config import TheoryConfig
from briee.algorithms.theory.exploration import draw
from briee.algorithms.theory.oracle import (
    explained,
    first_class,
    loss,
    maximise,
    mixture,
    random_class,
    replearn,
    second_class,
    section_4,
)
from briee.cli.main import main
from briee.envs.finite_block import lock_block_mdp, random_block_mdp
from briee.numerics.keys import stream
from briee.rollout.policies import UniformPolicy
from briee.rollout.samplers import ScanSampler
from briee.testing import check_agent
from reads import FieldReads
from theory_lemmas import appendix_c, explore, mixture_regret, partitions, ridge_weights, uniform_policy

H, Z, A = 3, 2, 2


def symmetric(rng, *shape):
    matrix = rng.normal(size=shape)
    return matrix + np.swapaxes(matrix, -1, -2)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_the_maximum_over_a_box_is_above_a_fine_grid_and_attained(n):
    rng = np.random.default_rng(n)
    B = 40
    matrix, slope = (
        symmetric(rng, B, n, n) - rng.uniform(0, 3, size=(B, 1, 1)) * np.eye(n),
        rng.normal(size=(B, n)),
    )
    low = -rng.uniform(0.5, 1.5, size=(B, n))
    high = low + rng.uniform(0.5, 2.0, size=(B, n))
    x, top = maximise(matrix, slope, low, high)
    assert ((x >= low) & (x <= high)).all()
    np.testing.assert_allclose(
        np.einsum("bi,bij,bj->b", x, matrix, x) + 2 * (slope * x).sum(1), top, atol=1e-12
    )
    grid = np.array(list(product(np.linspace(0, 1, 41), repeat=n)))
    points = low[:, None] + grid * (high - low)[:, None]
    values = np.einsum("bvi,bij,bvj->bv", points, matrix, points) + 2 * np.einsum("bi,bvi->bv", slope, points)
    assert (top >= values.max(axis=1) - 1e-12).all()
    assert (top <= values.max(axis=1) + 0.2).all(), "and not far above it"
    at_corner = ((x == low) | (x == high)).all(axis=1)
    assert 0 < at_corner.sum() < B, "some maxima are at corners, some are not"


def test_vertices_alone_would_miss_interior_maxima():
    x, top = maximise(-np.eye(2)[None], np.array([[0.3, -0.2]]), -np.ones((1, 2)), np.ones((1, 2)))
    np.testing.assert_allclose(x[0], [0.3, -0.2])
    assert top[0] == pytest.approx(0.13)


@pytest.fixture(scope="module")
def problem():
    """Decoders of a level, rewards there, and a data set of the level before."""
    rng = np.random.default_rng(5)
    mdp = random_block_mdp(rng, H, Z, A, emissions=3)
    classes = random_class(rng, mdp, 4)
    rho, _, _ = mixture(mdp, uniform_policy(mdp))
    counts = draw(rng, 2000, rho[0][..., None] * mdp.transition[0])
    return mdp, classes, counts


def direct_member(rng, decoders, reward, c, H=H):
    """Some f of F2, by its definition."""
    labels = decoders[rng.integers(len(decoders))]
    w = rng.uniform(0, c, size=(Z, A)) * rng.integers(0, 2, size=(Z, A))
    w_prime = rng.uniform(-1, 1, size=(Z, A))
    return np.max((reward + np.minimum(w[labels], 2.0)) / (2 * H + 1) + w_prime[labels], axis=1)


def test_the_second_class_is_enclosed_by_its_pieces(problem):
    """No member, by the definition, beats the certified bound; and what was found is a member."""
    mdp, classes, _ = problem
    rng, decoders, reward, c = np.random.default_rng(0), classes[1], mdp.reward[1], 5.0
    inner, outer = second_class(decoders, Z, reward, H, c)
    members = np.array([direct_member(rng, decoders, reward, c) for _ in range(2000)])
    for _ in range(5):
        form = symmetric(rng, 6, 6)
        found, f, _ = inner.maximise(form[None])
        bound, _, _ = outer.maximise(form[None])
        best = np.einsum("ms,st,mt->m", members, form, members).max()
        assert best <= bound + 1e-9
        assert found <= bound + 1e-9
        assert bound - found < 0.1 * bound
        assert is_second_class(f, decoders, reward, c)
    assert all(is_second_class(inner.sample(rng), decoders, reward, c) for _ in range(200))
    assert not is_second_class(np.array([3.0, 0, 0, 0, 0, 0]), decoders, reward, c)


def is_second_class(f, decoders, reward, c) -> bool:
    """f = max_a (r + v[psi, a]) for some v within bounds: the largest v below f is the only candidate."""
    r, low, high = reward / (2 * H + 1), -1.0, 1.0 + min(c, 2.0) / (2 * H + 1)
    for labels in decoders:
        v = np.full((Z, A), high)
        for z in range(Z):
            if (labels == z).any():
                v[z] = np.minimum((f[:, None] - r)[labels == z].min(axis=0), high)
        if (v >= low - 1e-9).all() and np.allclose((r + v[labels]).max(axis=1), f, atol=1e-9):
            return True
    return False


def test_the_first_class_by_its_definition(problem):
    _, classes, _ = problem
    rng, decoders = np.random.default_rng(1), classes[1]
    pieces, form = first_class(decoders, Z), symmetric(rng, 6, 6)
    top, f, _ = pieces.maximise(form[None])
    assert f @ form @ f == pytest.approx(top)
    for _ in range(500):
        i, j = rng.integers(len(decoders), size=2)
        theta, theta_prime = rng.choice([-1.0, 1.0], size=(2, Z, A))
        f = (theta[decoders[i]] - theta_prime[decoders[j]]).mean(axis=1)
        assert f @ form @ f <= top + 1e-9
    assert pieces.bound() == 2.0


def test_the_class_of_appendix_c_by_its_definition(problem):
    mdp, classes, _ = problem
    rng, decoders, c = np.random.default_rng(2), classes[1][:3], 4.0
    form = symmetric(rng, 6, 6)
    top = appendix_c(decoders, Z, A, H, c).maximise(form[None])[2]
    wider = appendix_c(decoders, Z, A, H, c, printed=True).maximise(form[None])[2]
    s = np.arange(6)
    for _ in range(500):
        psi, psi_prime, one, two = decoders[rng.integers(3, size=4)]
        pi, pi_prime = rng.integers(A, size=(2, Z))
        theta, w_prime = rng.choice([-1.0, 1.0], size=(2, Z, A))
        w = rng.choice([0.0, c], size=(Z, A))
        a, a_prime = pi[one[s]], pi_prime[two[s]]
        numerator = theta[psi_prime, a_prime] + np.minimum(w[psi, a], 2.0)
        f = numerator / (2 * H + 1) + w_prime[psi, a]
        assert f @ form @ f <= top + 1e-9
        w, theta, w_prime = c * rng.choice([-1.0, 1.0], size=(3, Z, A))
        f = (theta[psi_prime, a_prime] + np.minimum(w[psi, a], 2.0)) / (2 * H + 1) + w_prime[psi, a]
        assert f @ form @ f <= wider + 1e-9
    assert wider > top
    assert len(partitions(mdp.truth[1][None], Z, A)) == 1, "one decoder: the finest partition is its own"


def test_printed_bounds_break_the_claim_that_discriminators_are_at_most_2(problem):
    mdp, classes, _ = problem
    assert section_4(classes[1], Z, mdp.reward[1], H, c=100.0).bound() <= 2.0
    assert section_4(classes[1], Z, mdp.reward[1], H, c=100.0, signed=True).bound() > 10.0


def test_the_quadratic_form_is_the_ridge_loss(problem):
    _, classes, counts = problem
    rng, lam = np.random.default_rng(3), 2.5
    s, a, t = np.nonzero(counts)
    weight = counts[s, a, t]
    for labels in classes[0]:
        f = rng.normal(size=6)
        phi = np.zeros((len(s), Z * A))
        phi[np.arange(len(s)), labels[s] * A + a] = 1.0
        w = np.linalg.solve((phi.T * weight) @ phi + lam * np.eye(Z * A), (phi.T * weight) @ f[t])
        direct = (weight @ (phi @ w - f[t]) ** 2 + lam * w @ w) / weight.sum()
        assert loss(counts, labels, Z, lam, f) == pytest.approx(direct)
        np.testing.assert_allclose(ridge_weights(counts, labels, Z, lam, f).ravel(), w)
        assert explained(counts, labels, Z, lam).shape == (6, 6)


def test_replearn_finds_the_truth_and_nothing_beats_what_it_returns(problem):
    """With ell small it ends at a decoder that no rival and no discriminator improves by more than ell."""
    mdp, classes, counts = problem
    F = section_4(classes[1], Z, mdp.reward[1], H, c=5.0)
    for start in range(3):
        result = replearn(counts, classes[0], Z, F, lam=3.0, rounds=20, ell=0.01, start=start)
        np.testing.assert_array_equal(classes[0][result.index], mdp.truth[0])
        assert result.gaps[0] > 0.01 >= result.gaps[-1]
        rng = np.random.default_rng(start)
        for f in (F.sample(rng) for _ in range(300)):
            losses = [loss(counts, labels, Z, 3.0, f) for labels in classes[0]]
            assert losses[result.index] - min(losses) <= result.certified + 1e-12
    patient = replearn(counts, classes[0], Z, F, lam=3.0, rounds=20, ell=10.0)
    assert (patient.index, patient.rounds) == (0, 1), "a large threshold accepts the first decoder"


def test_the_lock_is_a_lock():
    mdp = lock_block_mdp(np.random.default_rng(0), horizon=4, num_actions=3)
    assert mdp.optimal_return == 1.0
    np.testing.assert_allclose(mdp.transition.sum(axis=-1), 1.0)
    assert mdp.initial.sum() == pytest.approx(1.0)


def table(path: Path) -> dict[str, np.ndarray]:
    with (path / "metrics.csv" if path.is_dir() else path).open() as file:
        rows = list(csv.DictReader(file))
    return {name: np.array([float(row[name] or "nan") for row in rows]) for name in rows[0]}


def train(*argv: str) -> int:
    return main(["train", argv[0], "--preset", "theory", "--horizon", "3", *argv[1:]])


@pytest.mark.parametrize("env", ["finite-lock", "finite-block"])
def test_the_value_converges_and_the_mixture_ends_within_epsilon(env, tmp_path, monkeypatch, capsys):
    """Theorem 1 with a hundredth of its bonus, which shows at 10^11 samples what it shows at 10^19."""
    monkeypatch.chdir(tmp_path)
    few = ["--episodes", str(5 * 10**11), "--alpha-scale", "0.01", "--growth", "1.8", "--seed", "3"]
    assert train(env, *few, "--evaluation.episodes", "100", "--run-dir", "run") == 0
    metrics, summary = table(tmp_path / "run"), json.loads((tmp_path / "run" / "summary.json").read_text())
    best = summary["optimal_return"]
    many = metrics["samples"] > 1e4  # with so small a bonus the first few plans are not optimistic
    assert (metrics["optimistic_value"][many] >= best - 1e-6).all(), "almost optimism"
    assert metrics["optimistic_value"].max() > best + 0.3
    assert metrics["optimistic_value"][-1] - best < 0.1, "the value converges to the optimum"
    assert metrics["mixture_regret"][-1] < 0.1, "within epsilon"
    assert metrics["regret"][-1] < 1e-6
    assert metrics["decoder_accuracy"][-1] == 1.0
    assert metrics["eval_return"][-1] > best - 0.1 - 0.1, "the mixture, sampled"
    assert summary["finished"]
    capsys.readouterr()
    assert main(["evaluate", "run", "--policy", "greedy", "--episodes", "300", "--json"]) == 0
    played = json.loads(capsys.readouterr().out)
    assert played["mean"] == pytest.approx(best, abs=4 * played["standard_error"] + 1e-6)


@pytest.mark.slow
def test_the_bonus_of_theorem_1_as_it_stands(tmp_path):
    """All defaults: 10^17 samples per level, alpha_n with every hidden constant one."""
    assert train("finite-lock", "--run-dir", str(tmp_path / "run")) == 0
    metrics = table(tmp_path / "run")
    assert metrics["samples"][-1] >= 1e17
    assert metrics["mixture_regret"][-1] < 0.1
    falling = metrics["optimistic_value"][metrics["samples"] > 1e12]
    assert falling[-1] < 0.35 * falling[0]


def test_without_its_bonus_it_does_not_converge(tmp_path):
    """The same run with alpha = 0 is not optimistic, which the first test would notice."""
    few = ["--episodes", "5000", "--alpha-scale", "0", "--growth", "1.8", "--evaluation.episodes", "1"]
    assert train("finite-lock", *few, "--run-dir", str(tmp_path / "run")) == 0
    assert (table(tmp_path / "run")["optimistic_value"][3:10] < 1.0 - 1e-6).any()


@pytest.mark.parametrize("env", ["lock", "random-block", "FrozenLake-v1"])
def test_other_environments_are_refused_in_one_sentence(env, tmp_path, capsys):
    assert train(env, "--run-dir", str(tmp_path / "run")) == 2
    error = capsys.readouterr().err
    assert "finite-block and finite-lock have them" in error
    assert error.count("\n") == 1


def test_a_run_is_the_experiment_of_the_lemmas():
    """The algorithm of `briee train` does what `explore` does, of which the lemmas are asserted."""
    algorithm = Theory(ScanSampler(envs.make("finite-lock")), TheoryConfig(alpha_scale=0.01, growth=2.0))
    state = algorithm.init(jax.random.key(0))
    for _ in range(6):
        state = algorithm.update(state)

    class Replayed:
        """The random numbers that the run drew, in the order in which `explore` asks for them."""

        def __init__(self):
            self.iteration, self.calls = 0, 0
            self.renew()

        def renew(self):
            key = stream(jax.random.key(0), "collect", self.iteration)
            self.rng = np.random.default_rng([int(word) for word in np.asarray(jax.random.key_data(key))])

        def multinomial(self, size, p):
            if self.calls == 5:  # D_0, D_1, D'_1, D_2, D'_2
                self.iteration, self.calls = self.iteration + 1, 0
                self.renew()
            self.calls += 1
            return self.rng.multinomial(size, p)

    history = list(explore(algorithm.setting, int(state.samples), Replayed()))  # type: ignore[arg-type]
    assert len(history) == 6
    np.testing.assert_array_equal(history[-1].counts, state.counts)
    np.testing.assert_array_equal(history[-1].counts_prime, state.counts_prime)
    np.testing.assert_array_equal(history[-1].policy.argmax(axis=2), state.optimistic)
    first = algorithm.value(np.full(state.optimistic.shape, -1))
    mixed = mixture_regret(history, algorithm.mdp.optimal_return, first)[-1]
    assert algorithm.metrics(state)["mixture_regret"] == pytest.approx(mixed)


def test_the_mixture_plays_each_member_as_often_as_it_collected():
    algorithm = Theory(ScanSampler(envs.make("finite-block")), TheoryConfig(growth=3.0))
    state = algorithm.init(jax.random.key(0))
    with pytest.raises(ValueError, match="no member"):
        algorithm.policy(state, "mixture")
    for _ in range(3):
        state = algorithm.update(state)
    assert state.shares[:4].tolist() == [1, 2, 6, 0]
    mixture = algorithm.policy(state, "mixture")
    keys = jax.random.split(jax.random.key(1), 4000)
    tables = jax.vmap(lambda key: mixture.draw(key).table)(keys)  # type: ignore[attr-defined]
    wanted = jnp.asarray(algorithm.table(state.members[2]))
    share = np.asarray((tables == wanted).all(axis=(1, 2, 3))).mean()
    alike = sum(state.shares[i] for i in range(3) if (state.members[i] == state.members[2]).all()) / 9
    assert share == pytest.approx(alike, abs=0.03)


def test_a_full_mixture_drops_its_smallest_share():
    algorithm = Theory(ScanSampler(envs.make("finite-block")), TheoryConfig(growth=3.0, members=2))
    state = algorithm.init(jax.random.key(0))
    for _ in range(4):
        state = algorithm.update(state)
    assert sorted(state.shares.tolist()) == [6, 18]


def test_the_preset_is_an_agent_like_any_other_and_reads_every_field():
    reads = FieldReads()
    config = reads.watch(TheoryConfig(growth=2.0))
    env = envs.make("finite-block")
    check_agent(lambda seed: Agent(env, algo="theory", config=config, seed=seed))
    assert reads.unread(config) == set(config.unused)


def test_settings_that_make_no_sense():
    mistakes: list[dict[str, Any]] = [{"class_size": 0}, {"growth": 0.5}, {"delta": 1}, {"constants": "any"}]
    for wrong in mistakes:
        with pytest.raises(ValueError, match=next(iter(wrong))):
            TheoryConfig(**wrong)
    assert algorithms.preset("briee", "theory", 3) == TheoryConfig()


def test_the_environment_is_the_block_mdp_that_the_theory_sees():
    """Frequencies of a long compiled rollout against the exact tables."""
    for name in ("finite-block", "finite-lock"):
        env = envs.make(name, instance_seed=4)
        block, sampler = env.block, ScanSampler(env)
        episodes = sampler.rollout(UniformPolicy(env.num_actions), jax.random.key(1), 4000)
        seen = np.asarray(episodes.observation).argmax(axis=2)
        np.testing.assert_allclose(
            np.bincount(seen[:, 0], minlength=len(block.initial)) / 4000, block.initial, atol=0.04
        )
        action, reward = np.asarray(episodes.action), np.asarray(episodes.reward)
        for h in range(env.horizon):
            np.testing.assert_array_equal(block.truth[h, seen[:, h]], np.asarray(episodes.latent)[:, h])
            np.testing.assert_allclose(reward[:, h], block.reward[h, seen[:, h], action[:, h]], rtol=1e-6)
            start = block.transition[h][seen[:, h], action[:, h]].mean(axis=0)
            next_share = np.bincount(seen[:, h + 1], minlength=len(start)) / 4000
            np.testing.assert_allclose(next_share, start, atol=0.04)
        assert env.optimal_return == pytest.approx(block.optimal_return, abs=1e-6)


def test_the_committed_run_of_theorem_1():
    """Every default, 10^17 samples: V-hat falls towards V* = 1 from its cap, the mixture is within 0.1."""
    metrics = table(Path(__file__).parents[3] / "results" / "theory" / "theorem1.csv")
    assert metrics["samples"][-1] >= 1e17
    assert metrics["optimistic_value"].max() > 6.9
    assert 1.0 <= metrics["optimistic_value"][-1] < 1.5
    assert (metrics["optimistic_value"] >= 1.0).all(), "optimistic throughout"
    assert metrics["mixture_regret"][-1] < 0.1
