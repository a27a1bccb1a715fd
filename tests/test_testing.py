"""The public contract suite: agents that keep their promises pass, others are caught."""

import random
from dataclasses import replace
from typing import Any

import jax
import numpy as np
import pytest

from briee.agent.agent import BRIEE, Agent
from briee.algorithms import registry as algorithms
from briee.algorithms.paper.briee import BrieeAlgorithm
from briee.algorithms.registry import BASELINES
from briee.configuration import with_value
from briee.envs.lock import CombinationLock
from briee.testing import check_agent, equal
from small_runs import make_env, tiny

SLOW = pytest.mark.slow
PRESETS = ["paper", *(pytest.param(preset, marks=SLOW) for preset in ("practical", "released", "default"))]


def small(preset: str):
    """A registered preset, made small."""
    config = algorithms.preset(*algorithms.choose(None, preset), 2)
    if preset in ("default", "practical"):
        return with_value(config, "workers", 1, preset)
    return replace(tiny(), bonus=config.bonus, lsvi=config.lsvi, evaluation=config.evaluation)


def test_every_preset_is_checked():
    marked = {getattr(preset, "values", (preset,))[0] for preset in PRESETS}
    own = {preset for name in ("briee", "efficient") for preset in algorithms.ALGORITHMS[name].presets}
    assert marked == own


@pytest.mark.parametrize("preset", PRESETS)
def test_presets_keep_the_contract(preset):
    config = small(preset)
    make = lambda seed, config=config: BRIEE(make_env(), preset, seed=seed, config=config)  # noqa: E731
    crowd = with_value(config, "workers", 2, preset)
    agent = check_agent(make, many_workers=lambda seed: make(seed, crowd), iterations=1)
    assert agent.iterations == 2


def image_lock() -> CombinationLock:
    return CombinationLock(horizon=2, num_actions=3, emission="image", templates=1)


STANDARD = replace(tiny(), features=replace(tiny().features, standardize=True))
WAYS: dict[str, dict[str, Any]] = {
    "reward-free": {"algorithm": "reward-free", "config": tiny()},
    "stationary": {"algorithm": "stationary"},
    "mlp": {"decoder": "mlp", "config": tiny()},
    "standardised": {"decoder": "mlp", "config": STANDARD},
    "cnn": {"decoder": "cnn", "config": tiny(), "env": image_lock()},
}


def test_every_algorithm_is_checked():
    """The baselines have a test of their own, and so has the preset theory."""
    own = {way.get("algorithm", "briee") for way in WAYS.values()} | {"efficient", "theory"}
    assert own | set(BASELINES) == set(algorithms.ALGORITHMS)


@SLOW
@pytest.mark.parametrize("way", WAYS)
def test_other_ways_to_learn_keep_the_contract(way):
    settings: dict[str, Any] = {"env": make_env()} | WAYS[way]
    check_agent(lambda seed: Agent(**settings, seed=seed), iterations=1)


class Forgetful(BrieeAlgorithm):
    """An algorithm that draws from NumPy's global generator."""

    name = "forgetful"

    def plan(self, state, bonus):
        state = super().plan(state, bonus)
        noise = np.random.normal(size=state.gaps.shape)  # noqa: NPY002
        return replace(state, gaps=jax.numpy.asarray(noise, "float32"))


class Careless(BrieeAlgorithm):
    """An algorithm that draws from Python's global generator."""

    name = "careless"

    def plan(self, state, bonus):
        return replace(super().plan(state, bonus), gaps=jax.numpy.full_like(state.gaps, random.random()))


class Obstinate(BrieeAlgorithm):
    """An algorithm whose state does not depend on the seed."""

    name = "obstinate"

    def init(self, key):
        return super().init(jax.random.key(0))


@pytest.mark.parametrize(
    ("algorithm", "sentence"),
    [
        (Forgetful, "touched NumPy's global generator"),
        (Careless, "the same seed gave another result"),
        (Obstinate, "another seed gave the same result"),
    ],
)
def test_broken_promises_are_caught(algorithm, sentence):
    with pytest.raises(AssertionError, match=sentence):
        check_agent(
            lambda seed: Agent(make_env(), algorithm=algorithm, config=tiny(), seed=seed), iterations=1
        )


def test_equality_is_exact():
    one = {"a": np.array([1.0, np.nan]), "k": jax.random.key(1)}
    assert equal(one, {"a": np.array([1.0, np.nan]), "k": jax.random.key(1)})
    assert not equal(one, {"a": np.array([1.0, np.nan]), "k": jax.random.key(2)})
    assert not equal(one, {"a": np.array([1.0 + 1e-15, np.nan]), "k": jax.random.key(1)})
