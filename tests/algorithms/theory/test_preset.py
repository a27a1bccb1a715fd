"""The preset `theory` from the command line: convergence, mixture, exit codes; its environments."""

import csv
import json
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
from briee.cli.main import main
from briee.numerics.keys import stream
from briee.rollout.policies import UniformPolicy
from briee.rollout.samplers import ScanSampler
from briee.testing import check_agent
from reads import FieldReads
from theory_runs import explore, mixture_regret


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
