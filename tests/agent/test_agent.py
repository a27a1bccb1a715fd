"""The agent a user holds: learning, acting, saving, and what it says when something is wrong."""

import json
import signal
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import cast

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from briee.agent.agent import BRIEE, Agent, NotLearnedError
from briee.agent.arguments import chosen
from briee.agent.files import load
from briee.agent.prediction import encode
from briee.algorithms.registry import ALGORITHMS, default_preset, preset
from briee.envs.adapters.rich import RichObservation
from briee.envs.lock import CombinationLock
from briee.rollout.host import HostSampler
from briee.rollout.samplers import ScanSampler, adapt
from briee.training.checkpoint import CheckpointError
from briee.training.loop import DivergedError
from briee.training.session import run
from countdown import Countdown
from small_runs import QUIET, H, make_env, tiny


@pytest.fixture(scope="module")
def learned() -> Agent:
    return BRIEE(make_env(), config=tiny()).learn(iterations=2, **QUIET)


def test_pure_environments_are_compiled_and_others_stepped_on_the_host():
    assert isinstance(adapt(make_env()).sampler, ScanSampler)
    single = adapt(gym.make("briee/CombinationLock-v0", horizon=H))
    assert isinstance(single.sampler, ScanSampler)
    assert (single.name, single.arguments) == ("lock", {"horizon": H})
    assert isinstance(adapt(CombinationLock(horizon=H)).sampler, ScanSampler)
    cut = adapt(make_env(), horizon=1).sampler
    assert isinstance(cut, HostSampler)
    assert cut.horizon == 1
    changed = gym.wrappers.TransformReward(
        gym.make("briee/CombinationLock-v0", horizon=H), lambda r: 2 * float(r)
    )
    assert isinstance(adapt(changed).sampler, HostSampler)
    assert adapt(gym.make("FrozenLake-v1")).sampler.horizon == 100
    assert adapt("lock", 4).sampler.horizon == 4


def test_learning_counts_and_keeps_the_metrics(learned):
    assert (learned.iterations, learned.episodes) == (2, 2 * 20 * H)
    assert [row["iteration"] for row in learned.history] == [1, 2]
    assert learned.summary()["episodes"] == learned.episodes
    assert "2 updates, 80 episodes" in repr(learned)


def test_it_learns_what_a_run_with_the_same_values_learns(learned, tmp_path):
    spec = replace(learned.spec, episodes=80)
    run(learned.algorithm, spec, tmp_path / "run")
    rows = (tmp_path / "run" / "metrics.csv").read_text().splitlines()
    for text, row in zip(rows[1:], learned.history, strict=True):
        cells = dict(zip(rows[0].split(","), text.split(","), strict=True))
        for name in ("episodes", "env_steps", "eval_return", "explore_return", "replearn_gap"):
            assert float(cells[name]) == pytest.approx(row[name], rel=1e-8)


def test_predictions_have_the_shape_of_the_question(learned):
    observations, _ = make_env().reset(seed=3)
    assert isinstance(learned.predict(observations[0], step=1), int)
    assert learned.predict(observations, step=1).shape == (4,)
    assert learned.predict(list(observations[0]), step=1) == learned.predict(observations, step=1)[0]
    np.testing.assert_allclose(learned.latent_states(observations, step=0).sum(axis=1), 1, rtol=1e-5)
    assert learned.latent_states(observations[0], step=0).shape == (3,)
    result = learned.evaluate(episodes=10)
    assert result.mean == pytest.approx(result.returns.mean())
    assert result.optimal_return == pytest.approx(1.0)


def test_habits_from_elsewhere_work(learned, tmp_path):
    observations, _ = make_env().reset(seed=3)
    steps = [learned.act(observations) for _ in range(H)]
    with pytest.raises(ValueError, match=r"the 2 steps of this episode are over: call reset_episode\(\)"):
        learned.act(observations)
    learned.reset_episode()
    np.testing.assert_array_equal(learned.act(observations), steps[0])
    np.testing.assert_array_equal(learned.predict(observations, 1, deterministic=True), steps[1])
    soft = learned.latent_states(observations, 1)
    np.testing.assert_array_equal(learned.decode(observations, 1), soft.argmax(axis=1))
    assert learned.decode(observations[0], 1) == int(soft[0].argmax())
    learned.save(tmp_path / "lock.briee")
    assert BRIEE.load(tmp_path / "lock.briee").spec == learned.spec
    played = learned.evaluate(episodes=9)
    said = f"mean return {played.mean:.4g} ± {played.standard_error:.2g} (standard error) over 9 episodes"
    assert str(played) == f"{played!r}" == f"{said}; optimal 1"


def test_the_exploring_policy_draws_anew_at_each_call():
    agent = Agent(make_env(), algo="ppo").learn(iterations=1, **QUIET)
    observation = make_env().reset(seed=3)[0][0]
    assert len({agent.predict(observation, 0) for _ in range(20)}) == 1
    assert len({agent.predict(observation, 0, deterministic=False) for _ in range(20)}) > 1


def test_an_agent_draws_and_reports_what_it_learned(learned, tmp_path):
    assert learned.plot()._repr_png_().startswith(b"\x89PNG")  # what a notebook shows
    drawn = learned.plot().axes[0].lines[0]
    np.testing.assert_array_equal(drawn.get_xdata(), [40, 80])
    np.testing.assert_array_equal(drawn.get_ydata(), [row["eval_return"] for row in learned.history])
    path = learned.report(tmp_path / "page.html")
    assert path == tmp_path / "page.html"
    page = path.read_text()
    assert "BRIEE, Algorithm 1" in page
    assert " on lock" in page
    assert "the run has no checkpoint" not in page


def test_a_budget_in_steps_and_a_target_of_ones_own():
    agent = BRIEE(make_env(), config=tiny(), target_return=0.0)
    agent.learn(total_timesteps=81, **QUIET)
    assert (agent.env_steps, agent.iterations) == (160, 2)
    agent.learn(episodes=cast(int, 1e3), progress=False)
    assert agent.solved
    assert agent.iterations == 5


def test_a_time_limit_without_a_spec_is_the_horizon():
    assert adapt(gym.wrappers.TimeLimit(Countdown(), 7)).sampler.horizon == 7
    copies = gym.vector.SyncVectorEnv([lambda: gym.wrappers.TimeLimit(Countdown(), 7)] * 2)
    assert adapt(copies).sampler.horizon == 7


def test_a_budget_in_episodes_is_on_top_of_those_before():
    agent = BRIEE(make_env(), config=tiny())
    agent.learn(episodes=1, **QUIET).learn(episodes=1, **QUIET)
    assert agent.iterations == 2


def test_callbacks_get_the_metrics_and_may_stop():
    seen = []
    agent = BRIEE(make_env(), config=tiny())
    agent.learn(iterations=5, callbacks=[seen.append, lambda row: row["iteration"] == 2], **QUIET)
    assert [row["episodes"] for row in seen] == [40, 80]
    assert agent.iterations == 2
    both = []
    agent.learn(iterations=1, callbacks=lambda row, agent: both.append((row, agent.iterations)), **QUIET)
    agent.learn(iterations=5, callbacks=lambda agent: agent.iterations == 4, **QUIET)
    assert both == [(agent.history[2], 3)]
    assert agent.iterations == 4


def test_ctrl_c_keeps_what_was_learned(capsys):
    agent = BRIEE(make_env(), config=tiny())
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # it may be ignored in the background
    try:
        agent.learn(iterations=5, callbacks=lambda row: signal.raise_signal(signal.SIGINT), **QUIET)
    finally:
        signal.signal(signal.SIGINT, before)
    assert agent.iterations == 1
    assert "kept 1 complete updates" in capsys.readouterr().out
    assert agent.learn(iterations=1, **QUIET).iterations == 2


def test_progress_is_shown_and_solved_agents_stop(capsys):
    config = replace(tiny(), evaluation=replace(tiny().evaluation, streak=1))
    agent = BRIEE(make_env(), config=config).learn(iterations=8)
    assert agent.solved
    assert "solved after" in capsys.readouterr().out
    assert agent.learn(iterations=1, progress=False).iterations == agent.iterations < 8


def test_save_and_load(learned, tmp_path):
    path = tmp_path / "lock.briee"
    learned.save(path)
    loaded = load(path)
    assert isinstance(loaded, BRIEE)
    assert loaded.spec == learned.spec
    assert loaded.history == learned.history
    observations, _ = make_env(8).reset(seed=1)
    np.testing.assert_array_equal(loaded.predict(observations, 1), learned.predict(observations, 1))
    assert loaded.evaluate(20).mean == learned.evaluate(20).mean
    with zipfile.ZipFile(path) as archive:
        assert all(name.endswith((".npy", ".json")) for name in archive.namelist())


@pytest.mark.parametrize(("algorithm", "preset"), [(a, p) for a in ALGORITHMS for p in ALGORITHMS[a].presets])
def test_every_preset_can_be_saved_and_loaded(algorithm, preset, tmp_path):
    if algorithm.startswith("sb3:"):
        pytest.importorskip("stable_baselines3")
    env = "finite-lock" if algorithm in ("theory", "olive") else "lock"
    agent = Agent(env, preset, algorithm=algorithm, horizon=H)
    agent.save(tmp_path / "new.briee")
    loaded = load(tmp_path / "new.briee")
    assert loaded.spec == agent.spec
    for new, old in zip(jax.tree.leaves(loaded.state), jax.tree.leaves(agent.state), strict=True):
        assert (new.shape, new.dtype) == (old.shape, old.dtype)


def test_what_the_default_preset_learned_is_saved(tmp_path):
    agent = BRIEE(make_env()).learn(iterations=1, **QUIET)
    agent.save(tmp_path / "lock.briee")
    observations, _ = make_env(8).reset(seed=1)
    loaded = load(tmp_path / "lock.briee")
    np.testing.assert_array_equal(loaded.predict(observations, 1), agent.predict(observations, 1))


def test_agents_on_other_environments_need_theirs_again(tmp_path):
    env = RichObservation(gym.make("FrozenLake-v1", is_slippery=False), noise=0.05)
    agent = BRIEE(env, config=tiny(3), horizon=3, num_latents=4).learn(iterations=1, **QUIET)
    observation, _ = env.reset(seed=0)
    action = agent.predict(observation, step=0)
    assert action in range(4)
    assert agent.predict(np.stack([observation] * 3), step=0).tolist() == [action] * 3
    assert agent.latent_states(observation, 2).shape == (4,)
    agent.save(tmp_path / "lake.briee")
    with pytest.raises(CheckpointError, match=r"learned on FrozenLake-v1: give it again, load\(path, env"):
        load(tmp_path / "lake.briee")
    assert load(tmp_path / "lake.briee", env).predict(observation, step=0) == action
    with pytest.raises(CheckpointError, match=r"the environment has .* the agent learned with"):
        load(tmp_path / "lake.briee", make_env())


def test_discrete_observations_are_encoded():
    adapted = adapt(gym.make("FrozenLake-v1"), 3)
    rows, single = encode(adapted, 5)
    assert rows.shape == (1, 17)
    assert single
    batch, single = encode(adapted, np.array([1, 2, 3]))
    assert batch.argmax(1).tolist() == [1, 2, 3]
    assert not single
    np.testing.assert_array_equal(encode(adapted, batch)[0], batch)  # encoded already


def test_an_agent_that_has_not_learned_says_so(tmp_path):
    agent = BRIEE(make_env(), config=tiny())
    with pytest.raises(NotLearnedError, match=r"call learn\(...\) before predict"):
        agent.predict(np.zeros(8), 0)
    agent.save(tmp_path / "new.briee")
    assert load(tmp_path / "new.briee").iterations == 0


def rewrite(path: Path, change) -> Path:
    """A copy of a saved agent with another structure."""
    other = path.with_name("changed.briee")
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(other, "w") as new:
        for info in old.infolist():
            data = old.read(info)
            if info.filename == "checkpoint.json":
                structure = json.loads(data)
                change(structure["extra"]["agent"])
                data = json.dumps(structure).encode()
            new.writestr(zipfile.ZipInfo(info.filename), data)
    return other


def test_foreign_and_hostile_files_are_refused_with_one_sentence(learned, tmp_path):
    path = tmp_path / "agent.briee"
    learned.save(path)

    def spec(**changes):
        return lambda about: about["spec"].update(changes)

    for change, reason in (
        (spec(horizon=10**7), "it is too small for its horizon"),
        (spec(horizon="2"), "operand"),
        (spec(env="os:system"), "the agent learned on os:system"),
        (spec(algorithm="subprocess:Popen"), "unknown algorithm 'subprocess:Popen'"),
        (spec(env_arguments={"horizon": 3}), "horizon"),
        (spec(config={"unknown": 1}), "unknown configuration field 'unknown'"),
        (spec(config={"features": {"num_latents": 10**12}}), "another algorithm or configuration"),
        (
            spec(config={"features": {"num_latents": "three"}}),
            "num_latents must be a number >= 1, got 'three'",
        ),
        (lambda about: about.pop("progress"), "not a saved agent"),
        (lambda about: about.pop("spec"), "'spec'"),
        (lambda about: about.update(num_actions=7), "the environment has"),
    ):
        with pytest.raises(CheckpointError, match=reason) as caught:
            load(rewrite(path, change))
        assert "\n" not in str(caught.value)
    for content in (b"", b"not a file of ours", path.read_bytes()[:-200]):
        (tmp_path / "bad.briee").write_bytes(content)
        with pytest.raises(CheckpointError, match="cannot load"):
            load(tmp_path / "bad.briee")
    with pytest.raises(CheckpointError, match="there is no such file"):
        load(tmp_path / "nowhere.briee")
    with pytest.raises(CheckpointError, match="cannot write"):
        learned.save(tmp_path / "no" / "folder.briee")


def test_nan_weights_are_refused(learned, tmp_path, monkeypatch):
    now = learned.now
    weights = jnp.full_like(now.state.greedy.weights, jnp.nan)
    agent = BRIEE(make_env(), config=tiny())
    agent.take(now._replace(state=replace(now.state, greedy=replace(now.state.greedy, weights=weights))))
    with pytest.raises(DivergedError, match=r"greedy.weights holds NaN or infinity at level 0"):
        agent.save(tmp_path / "nan.briee")
    assert not (tmp_path / "nan.briee").exists()
    monkeypatch.setattr("briee.training.loop.check_finite", lambda *args: None)
    agent.save(tmp_path / "nan.briee")
    with pytest.raises(CheckpointError, match=r"greedy.weights.* is not a finite number"):
        load(tmp_path / "nan.briee")


@pytest.mark.parametrize("name", ["efficient", "theory"])
def test_a_preset_that_became_an_algorithm_is_understood_with_one_warning(name):
    env = "finite-lock" if name == "theory" else make_env()
    with pytest.warns(UserWarning, match=f"preset='{name}' now means algo='{name}'") as told:
        agent = BRIEE(env, preset=name)
    assert len(told) == 1
    assert (agent.spec.algorithm, agent.spec.preset) == (name, "default")


def test_other_presets_and_the_default_say_nothing():
    """Warnings are errors in these tests."""
    assert Agent(make_env()).spec.algorithm == "general"
    assert (BRIEE(make_env()).spec.algorithm, BRIEE(make_env()).spec.preset) == ("briee", "practical")
    assert BRIEE(make_env(), preset="paper").spec.algorithm == "briee"
    assert Agent(make_env(), "released", algorithm="reward-free").spec.preset == "released"


@pytest.mark.parametrize("name", [name for name in ALGORITHMS if not name.startswith("sb3:")])
def test_a_configuration_alone_names_its_algorithm(name):
    config = preset(name, default_preset(name), H)
    same = {"reward-free": "briee", "ppo-rnd": "ppo"}.get(name, name)
    assert chosen(None, None, config).algorithm == same
