"""The package as others see it: public names, Gymnasium ids, metadata."""

import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import gymnasium as gym
import pytest
import yaml

import briee
from briee.envs import registry
from briee.envs.block import knowledge_of

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
