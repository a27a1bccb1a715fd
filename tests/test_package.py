"""The package as others see it: public names, Gymnasium ids, metadata; the public contract suite."""

import random
import re
import subprocess
import sys
import tomllib
import zipfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import jax
import numpy as np
import pytest
import yaml

import briee
from briee.agent.agent import Agent
from briee.algorithms import registry as algorithms
from briee.algorithms.efficient.cell_planning import trial_values
from briee.algorithms.paper.briee import BrieeAlgorithm
from briee.algorithms.registry import BASELINES
from briee.configuration import with_value
from briee.envs import registry
from briee.envs.block import knowledge_of
from briee.envs.lock import CombinationLock
from briee.testing import check_agent, equal
from reads import FieldReads
from small_runs import PRACTICAL_READS, make_env, tiny

ROOT = Path(__file__).parents[1]


def test_public_names_exist_and_others_do_not():
    for name in briee.__all__:
        assert getattr(briee, name) is not None
    assert set(dir(briee)) == set(briee.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = briee.nothing


def test_what_is_known_before_an_environment_is_made_is_true():
    for name, entry in registry.ENVIRONMENTS.items():
        pure = registry.make(name)
        assert (entry.horizon, entry.dense) == (pure.horizon, knowledge_of(pure).dense), name
        assert entry == registry.registered(name) == registry.registered(entry.id)
    assert registry.registered("FrozenLake-v1") is None


def test_importing_the_package_registers_the_environments():
    program = (
        "import sys, briee, gymnasium as gym; assert 'jax' not in sys.modules; assert briee.doctor.examine; "
        "print(gym.make('briee/CombinationLock-v0', horizon=3).observation_space.shape, "
        "gym.make_vec('briee/CombinationLock-v0', num_envs=5, horizon=3).observation_space.shape)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "(8,) (5, 8)"
    registry.register()  # a second time changes nothing
    assert gym.spec("briee/CombinationLock-v0").kwargs == {"name": "lock"}


def test_metadata_agrees():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == project["version"]
    assert [author["family-names"] for author in citation["preferred-citation"]["authors"]] == [
        "Zhang", "Song", "Uehara", "Wang", "Agarwal", "Sun",
    ]  # fmt: skip
    assert f"## [{project['version']}]" in (ROOT / "CHANGELOG.md").read_text()
    assert "MIT License" in (ROOT / "LICENSE").read_text()


def test_links_inside_the_documents_lead_somewhere():
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")):
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}, which does not exist"


def listed_modules(page: str) -> set[str]:
    """Paths in src/briee that the first block of docs/architecture.md names, one package after the other."""
    block = page.split("```")[1]
    found, folders = set(), []
    for line in block.splitlines()[2:]:
        if line and line[0].isspace() and (head := re.match(r"( +)(\w+)/ ", line)):
            folders = [*folders[: len(head[1]) // 2 - 1], head[2]]
            line = line[head.end() :]
        elif re.match(r"  \w+\.py", line):
            folders = []
        found |= {"/".join([*folders, word]) for word in re.findall(r"\w+", line)}
    return found


def test_the_architecture_names_every_module():
    source, page = ROOT / "src" / "briee", (ROOT / "docs" / "architecture.md").read_text()
    modules = {path.relative_to(source).with_suffix("").as_posix() for path in source.rglob("*.py")}
    wanted = {name for name in modules if not name.endswith("__") or "/" not in name} - {"__main__"}
    assert wanted <= listed_modules(page), "docs/architecture.md lists every module in its room"
    without = page.replace("level_fit, ", "", 1)
    assert wanted - listed_modules(without) == {"algorithms/efficient/level_fit"}


@pytest.mark.slow
def test_the_package_is_built_and_its_description_renders_on_an_index(tmp_path):
    subprocess.run([sys.executable, "-m", "build", "-o", str(tmp_path), str(ROOT)], check=True)
    built = sorted(map(str, tmp_path.iterdir()))
    subprocess.run([sys.executable, "-m", "twine", "check", "--strict", *built], check=True)
    with zipfile.ZipFile(built[0]) as wheel:
        (metadata,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
        text = wheel.read(metadata).decode()
        assert "briee/report/plotly.min.js.gz" in wheel.namelist()
    assert "Requires-Dist: plotly" not in text.split("extra ==")[0]
    assert "Project-URL: Paper, https://arxiv.org/abs/2202.00063" in text
    assert re.findall(r"\]\((?!https?:|#)", text) == [], "an index has no files of the repository"


SLOW = pytest.mark.slow
PRESETS = [pytest.param("default", marks=SLOW), "paper", pytest.param("released", marks=SLOW)]


def few_rows(config):
    """Small strata, and a fit in every update."""
    strata = replace(config.strata, rows=128, fit_rows=128)
    return replace(config, strata=strata, refit=replace(config.refit, min_rows=20), workers=1)


def read_known_after(config: Any) -> None:
    """Only the rule `tries` reads this field."""
    trial_values(jax.numpy.zeros((1, 2)), replace(config.explore, rule="tries"))


def small(preset: str):
    """A registered preset, made small."""
    algorithm = "efficient" if preset == "default" else "briee"
    config = algorithms.preset(algorithm, preset, 2)
    if preset == "default":
        return few_rows(config)
    return replace(tiny(), bonus=config.bonus, lsvi=config.lsvi, evaluation=config.evaluation)


def test_every_preset_is_checked():
    marked = {getattr(preset, "values", (preset,))[0] for preset in PRESETS}
    own = {preset for name in ("briee", "efficient") for preset in algorithms.ALGORITHMS[name].presets}
    assert marked | {"practical"} == own, "practical has a test of its own"


@pytest.mark.parametrize("preset", PRESETS)
def test_presets_keep_the_contract_and_read_every_field(preset):
    reads = FieldReads()
    config = reads.watch(small(preset))
    algo = "efficient" if preset == "default" else "briee"
    make = lambda seed, config=config: Agent(make_env(), preset, algo=algo, seed=seed, config=config)  # noqa: E731
    crowd = with_value(config, "workers", 2, preset)
    agent = check_agent(make, many_workers=lambda seed: make(seed, crowd), iterations=1)
    assert agent.iterations == 2
    if preset == "default":
        read_known_after(config)
    assert reads.unread(config) == (set() if preset == "default" else PRACTICAL_READS)


def image_lock() -> CombinationLock:
    return CombinationLock(horizon=2, num_actions=3, emission="image", templates=1)


STANDARD = replace(tiny(), features=replace(tiny().features, standardize=True))
WAYS: dict[str, dict[str, Any]] = {
    "reward-free": {"algorithm": "reward-free", "config": tiny()},
    "stationary": {
        "algorithm": "stationary",
        "config": few_rows(algorithms.preset("stationary", "default", 2)),
    },
    "mlp": {"decoder": "mlp", "config": tiny()},
    "standardised": {"decoder": "mlp", "config": STANDARD},
    "cnn": {"decoder": "cnn", "config": tiny(), "env": image_lock()},
}


def test_every_algorithm_is_checked():
    """The baselines have a test of their own, and so has the preset theory."""
    own = {way.get("algorithm", "briee") for way in WAYS.values()} | {"efficient", "general", "theory"}
    assert own | set(BASELINES) == set(algorithms.ALGORITHMS)


@SLOW
@pytest.mark.parametrize("way", WAYS)
def test_other_ways_to_learn_keep_the_contract(way):
    reads = FieldReads()
    settings: dict[str, Any] = {"env": make_env()} | WAYS[way]
    settings["config"] = reads.watch(settings["config"])
    agent = check_agent(lambda seed: Agent(**settings, seed=seed), iterations=1)
    if way == "stationary":
        read_known_after(agent.config)
    unread = set(settings["config"].unused) if way == "stationary" else PRACTICAL_READS
    assert reads.unread(settings["config"]) == unread


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


@dataclass(frozen=True)
class Part:
    reward: float = 1.0
    size: int = 2


@dataclass(frozen=True)
class Whole:
    part: Part = field(default_factory=Part)
    reward: float = 3.0
    rounds: int = 4

    @property
    def twice(self) -> int:
        return 2 * self.rounds


def test_only_what_is_read_on_the_configuration_itself_counts():
    reads = FieldReads()
    config = reads.watch(Whole())
    assert config.part.size == 2
    assert reads.unread(config) == {"part.reward", "reward", "rounds"}
    assert config.twice == 8
    assert config.reward == 3.0
    assert reads.unread(config) == {"part.reward"}, "another field of that name was read"


def test_copies_and_comparisons_read_nothing():
    reads = FieldReads()
    config = reads.watch(Whole())
    other = replace(config, rounds=5)
    assert config != other
    assert config == replace(other, rounds=4)
    assert {config: 1}[replace(other, rounds=4)] == 1
    assert reads.names == set()
    assert replace(config, rounds=7).rounds == 7
    assert reads.names == {"rounds"}
