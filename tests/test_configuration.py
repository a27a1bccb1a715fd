"""Presets: provenance, and which values are refused."""

import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from briee import compute
from briee.algorithms.efficient.config import EfficientConfig, StationaryConfig
from briee.algorithms.paper.config import BrieeConfig
from briee.compute import in_thread, known_options, quick_jit, still_computing
from briee.configuration import with_value


def leaves(config, prefix=""):
    for f in fields(config):
        value = getattr(config, f.name)
        if is_dataclass(value):
            yield from leaves(value, f"{prefix}{f.name}.")
        else:
            yield f"{prefix}{f.name}", value


def test_the_paper_preset_has_the_numbers_of_appendix_e():
    config = dict(leaves(BrieeConfig.paper(horizon=6)))
    assert config["collect.episodes_per_level"] == 50
    assert config["collect.buffer_size"] == 10_000
    assert config["features.temperature"] == 1.0
    assert config["features.first_temperature"] == 0.1
    assert config["replearn.rounds"] == 30
    assert config["replearn.feature_steps"] == 64
    assert config["replearn.discriminator_steps"] == 128
    assert config["replearn.feature_batch"] == config["replearn.discriminator_batch"] == 512
    assert config["replearn.feature_learning_rate"] == config["replearn.discriminator_learning_rate"] == 1e-2
    assert config["replearn.momentum"] == 0.99
    assert config["bonus.alpha"] == pytest.approx(6 / 5)
    assert config["bonus.cap"] == 2.0
    assert config["lsvi.lam"] == 1.0
    assert config["evaluation.episodes"] == 20
    assert config["evaluation.streak"] == 5


@pytest.mark.parametrize(("horizon", "dense", "warmup"), [(25, False, 0), (50, False, 10_000), (50, True, 0)])
def test_warm_up_is_for_long_sparse_locks(horizon, dense, warmup):
    assert BrieeConfig.paper(horizon, dense=dense).collect.warmup_episodes == warmup


def test_dense_rewards_have_a_smaller_bonus():
    assert BrieeConfig.paper(30, dense=True).bonus.alpha == pytest.approx(30 / 50)


def test_the_presets_differ_where_the_released_program_departs_from_the_paper():
    paper, released = (dict(leaves(make(6))) for make in (BrieeConfig.paper, BrieeConfig.released))
    assert {name for name in paper if paper[name] != released[name]} == {
        "bonus.cap",
        "bonus.covariance",
        "replearn.ell",
        "replearn.first_player",
        "replearn.ascent",
        "replearn.wait_for_rival",
        "replearn.discriminator_steps",
        "replearn.hidden_sizes",
        "lsvi.clip",
        "evaluation.policy",
    }


@pytest.mark.parametrize(
    ("field", "value", "sentence"),
    [
        ("rounds", 2, "explore.rounds has no effect on the stationary variant, got 2: leave it out"),
        ("max_levels", 3, "refit.max_levels has no effect on the stationary variant, got 3: leave it out"),
        ("episodes", 5, "episodes must be even for the stationary variant, got 5"),
    ],
)
def test_what_the_stationary_variant_cannot_use_is_refused(field, value, sentence):
    with pytest.raises(ValueError) as caught:
        with_value(StationaryConfig.efficient(6), field, value, "stationary")
    assert str(caught.value) == sentence


def test_the_stationary_variant_has_two_halves_of_episodes_and_no_rounds():
    config = StationaryConfig.efficient(6)
    assert replace(config, explore=replace(config.explore, episodes=2)).explore.episodes == 2


def test_configs_are_frozen_and_replaceable():
    config = BrieeConfig.paper(6)
    with pytest.raises(AttributeError, match="cannot assign to field 'workers'"):
        config.workers = 3  # type: ignore[misc]
    assert replace(config, workers=3).workers == 3


@pytest.mark.parametrize(
    ("section", "field", "value", "message"),
    [
        ("features", "num_latents", 0, "num_latents must be >= 1, got 0"),
        ("features", "temperature", 0.0, "temperature must be > 0, got 0.0"),
        ("collect", "episodes_per_level", -1, "episodes_per_level must be >= 1, got -1"),
        ("replearn", "lam", float("nan"), "lam must be > 0, got nan"),
        ("replearn", "ascent", "sideways", "ascent must be one of joint, alternating, got 'sideways'"),
        ("replearn", "hidden_sizes", (64, 0), r"hidden_sizes must all be >= 1, got \(64, 0\)"),
        ("bonus", "cap", -2.0, "cap must be >= 0, got -2.0"),
        ("evaluation", "streak", 0, "streak must be >= 1, got 0"),
    ],
)
def test_bad_values_are_named(section, field, value, message):
    with pytest.raises(ValueError, match=message):
        replace(getattr(BrieeConfig.paper(6), section), **{field: value})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tolerance": 1.5}, "tolerance must be <= 1, got 1.5"),
        ({"episodes": 10}, r"episodes must be a multiple of rounds \(4\), got 10"),
        ({"rounds": 40}, r"episodes must be a multiple of rounds \(40\), got 20"),
    ],
)
def test_bad_values_of_exploration_are_named(changes: dict[str, Any], message):
    with pytest.raises(ValueError, match=message):
        EfficientConfig(explore=replace(EfficientConfig().explore, **changes))


@pytest.fixture(autouse=True)
def forget():
    yield
    known_options.cache_clear()


def test_numbers_are_those_of_the_function_itself():
    function = quick_jit(lambda x, power: jnp.cumsum(x**power))
    np.testing.assert_array_equal(function(jnp.arange(5), 2), np.cumsum(np.arange(5) ** 2))


def test_a_call_in_a_thread_returns_and_raises_as_the_function_does():
    assert in_thread(lambda: threading.current_thread()) is not threading.current_thread()
    with pytest.raises(ValueError, match="refused"):
        in_thread(lambda: _refuse(1))
    assert not still_computing()


def test_ctrl_c_leaves_a_thread_behind_until_it_ends(monkeypatch):
    go, waited, main = threading.Event(), [], threading.get_ident()
    monkeypatch.setattr(compute.atexit, "register", waited.append)
    threading.Timer(0.2, lambda: signal.pthread_kill(main, signal.SIGINT)).start()
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            in_thread(go.wait)
    finally:
        signal.signal(signal.SIGINT, before)
    assert still_computing()
    go.set()
    assert waited[0]()  # as the interpreter does before it ends
    assert not still_computing()


def test_threads_share_one_compilation():
    traced = []
    function = quick_jit(lambda x: traced.append(0) or x + 1)
    with ThreadPoolExecutor(4) as pool:
        assert [int(y) for y in pool.map(function, [jnp.int32(i) for i in range(8)])] == list(range(1, 9))
    assert len(traced) == 1


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="options are for CPUs")
def test_options_that_the_compiler_does_not_know_are_left_out(monkeypatch):
    known = {"xla_backend_optimization_level": 1}
    assert known.items() <= known_options().items() <= compute.OPTIONS.items()
    known_options.cache_clear()
    monkeypatch.setattr(compute, "OPTIONS", known | {"xla_no_such_option": True})
    assert known_options() == known
    assert int(quick_jit(lambda x: x + 1)(jnp.int32(1))) == 2


def test_inside_a_traced_function_it_is_the_function_itself():
    zeros, double = quick_jit(lambda n: jnp.zeros(n)), quick_jit(lambda x: 2 * x)
    assert jax.eval_shape(lambda x: zeros(3) + double(x), 1.0).shape == (3,)
    np.testing.assert_array_equal(jax.jit(lambda x: zeros(3) + double(x))(1.0), np.full(3, 2.0))
    np.testing.assert_array_equal(zeros(3), np.zeros(3))
    with pytest.raises(ValueError, match="refused"):
        quick_jit(_refuse)(1)


def _refuse(x):
    raise ValueError("refused")


VARIABLES = (*compute.ONE_THREAD, "JAX_COMPILATION_CACHE_DIR", "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS")


@pytest.fixture
def bare(monkeypatch, tmp_path):
    """A process in which nothing is set, with its cache in `tmp_path`."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(compute, "jax_computes", lambda: False)
    monkeypatch.setattr(compute, "_set_cache", lambda *_: None)
    return tmp_path


def test_cores_are_those_of_this_process_where_the_system_tells_them(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 2, 5}, raising=False)
    assert compute.available_cores() == 3


def test_cores_without_affinity_are_all_and_at_least_one(monkeypatch):
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    assert compute.available_cores() == 8
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert compute.available_cores() == 1


@pytest.mark.parametrize(
    ("platform", "folder"),
    [("linux", "home/.cache"), ("darwin", "home/Library/Caches"), ("win32", "home/AppData/Local")],
)
def test_the_cache_is_where_the_system_keeps_caches(monkeypatch, tmp_path, platform, folder):
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(Path, "home", lambda: tmp_path / "home")
    for name in ("XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    assert compute.cache_folder() == tmp_path / folder
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "local"))
    assert compute.cache_folder() == tmp_path / ("local" if platform == "win32" else folder)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "mine"))
    assert compute.cache_folder() == tmp_path / "mine"


def test_threads_and_cache_are_set_where_nothing_is(bare):
    compute.prepare_process()
    assert {name: os.environ[name] for name in compute.ONE_THREAD} == compute.ONE_THREAD
    assert os.environ["JAX_COMPILATION_CACHE_DIR"] == str(bare / "briee" / "jax")
    assert (bare / "briee" / "jax").is_dir()
    assert os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] == compute.CACHED_SECONDS


def test_what_the_user_set_is_kept(bare, monkeypatch):
    for name in VARIABLES:
        monkeypatch.setenv(name, "mine")
    compute.prepare_process()
    assert {os.environ[name] for name in VARIABLES} == {"mine"}
    assert not (bare / "briee").exists()


def test_a_folder_that_cannot_be_written_means_no_cache(bare, monkeypatch):
    (bare / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(bare / "file"))
    compute.prepare_process()
    assert "JAX_COMPILATION_CACHE_DIR" not in os.environ
    assert os.environ["OMP_NUM_THREADS"] == "1"


def test_threads_are_left_alone_once_jax_computes(bare, monkeypatch):
    monkeypatch.setattr(compute, "jax_computes", lambda: True)
    compute.prepare_process()
    assert "XLA_FLAGS" not in os.environ
    assert "JAX_COMPILATION_CACHE_DIR" in os.environ


def test_jax_computes_in_this_process():
    jax.devices()
    assert compute.jax_computes()


NOTEBOOK = """
import os, sys, pathlib
{before}
import briee
briee.Agent({env}, algo="lsvi-ucb", horizon=2)
import jax
print(os.environ.get("XLA_FLAGS"), jax.config.jax_compilation_cache_dir)
jax.jit(lambda x: x * 2)(1.0)
cache = pathlib.Path(jax.config.jax_compilation_cache_dir)
print(sum(1 for file in cache.iterdir()) > 0)
"""


@pytest.mark.parametrize(
    ("before", "env", "threads", "cache"),
    [
        ("", "'lock'", compute.ONE_THREAD["XLA_FLAGS"], "own"),
        ("import jax", "__import__('gymnasium').make('briee/CombinationLock-v0', horizon=2)",
         compute.ONE_THREAD["XLA_FLAGS"], "own"),
        ("import jax; jax.jit(lambda x: x + 1)(1.0)", "'lock'", "None", "own"),
        ("import jax; jax.config.update('jax_compilation_cache_dir', os.environ['XDG_CACHE_HOME'])", "'lock'",
         compute.ONE_THREAD["XLA_FLAGS"], "user's"),
    ],
    ids=["fresh", "jax imported, env first", "jax computes", "user's cache"],
)  # fmt: skip
def test_a_notebook_has_the_threads_and_the_cache_of_the_command_line(tmp_path, before, env, threads, cache):
    environment = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    environment |= {"XDG_CACHE_HOME": str(tmp_path), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    program = NOTEBOOK.format(before=before, env=env)
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    folder = tmp_path if cache == "user's" else tmp_path / "briee" / "jax"
    assert done.stdout.splitlines() == [f"{threads} {folder}", "True"]


@pytest.mark.parametrize(("given", "threads"), [(None, {1}), ("2", {2})])
def test_the_blas_of_numpy_has_one_thread_unless_the_user_says_otherwise(given, threads):
    environment = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    environment |= {"OPENBLAS_NUM_THREADS": given} if given else {}
    program = (
        "import numpy, briee.compute, threadpoolctl; briee.compute.prepare_process(); "
        "pools = threadpoolctl.threadpool_info(); "
        "print({pool['num_threads'] for pool in pools if pool['user_api'] == 'blas'})"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.strip() in (str(threads), "set()")  # no pool: a BLAS without threads
