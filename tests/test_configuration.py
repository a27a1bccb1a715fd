"""Presets: provenance, and which values are refused."""

from dataclasses import fields, is_dataclass, replace
from typing import Any

import pytest

from briee.algorithms.efficient.config import EfficientConfig, StationaryConfig
from briee.algorithms.paper.config import BrieeConfig
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
