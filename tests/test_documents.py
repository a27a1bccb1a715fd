"""The README and the documents keep their word: examples run, commands are understood, tables are true."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from briee import envs
from briee.agent.agent import Agent
from briee.algorithms.registry import ALGORITHMS
from briee.cli import COMMANDS
from briee.cli.main import main, parse, split_options
from briee.cli.train import parse_train
from briee.training.directory import read_table
from reads import Place, method, references
from small_runs import tiny

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
TUTORIAL = ROOT / "docs" / "own_environment.md"
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
RUN_ALONE = {"environments.md", TUTORIAL.name}
"""Each block of the first runs in a namespace of its own; the tutorial has a test of its own."""


def blocks(page: Path) -> list[tuple[str, str]]:
    """Language and text of the blocks of a page."""
    return re.findall(r"^```(\w*)\n(.*?)^```", page.read_text(), flags=re.M | re.S)


def examples(page: Path) -> list[str]:
    """The Python blocks of a page."""
    return [text for language, text in blocks(page) if language == "python"]


def commands(page: Path) -> list[str]:
    """`briee` commands in the blocks of a page, and in its sentences if nothing is left open."""
    text = "".join(text for language, text in blocks(page) if language != "python")
    shown = re.findall(r"^(?:\$ )?(briee [^\n#]*)", text, flags=re.M)
    said = re.findall(r"`(briee \w+ \w[^`\n]*)`", page.read_text())
    return [*shown, *(line for line in said if not re.search(r"\b(ENV|DIR|FILE|NAME|K)\b|…|\.\.\.|\|", line))]


WITH_EXAMPLES = [page for page in PAGES if examples(page) and page.name not in RUN_ALONE]
COMMAND_LINES = sorted({line.strip() for page in PAGES for line in commands(page)})


def test_the_pages_have_examples_and_commands():
    assert {"README.md", "agent.md", "reward_free.md"} <= {page.name for page in WITH_EXAMPLES}
    assert len(examples(ROOT / "docs" / "agent.md")) >= 4
    assert len(COMMAND_LINES) > 15


@pytest.mark.parametrize("page", WITH_EXAMPLES, ids=lambda page: page.name)
def test_examples_run(page, tmp_path, monkeypatch, capsys):
    """In order, in one namespace, as a reader would type them; learning is made short."""
    learn, init = Agent.learn, Agent.__init__

    def short_learn(self: Agent, *args: Any, **kwargs: Any) -> Agent:
        return learn(self, iterations=1, callbacks=kwargs.get("callbacks", ()), progress=False)

    def small_init(self: Agent, env: Any, preset: str | None = None, **kwargs: Any) -> None:
        init(self, env, preset, **kwargs)  # the words of the page must be understood
        if not {"config", "reward_free"} & kwargs.keys():
            init(self, env, **kwargs, config=tiny(6))

    monkeypatch.setattr(Agent, "learn", short_learn)
    monkeypatch.setattr(Agent, "__init__", small_init)
    monkeypatch.setattr("briee.testing.check_agent", lambda make: make(1))  # it has tests of its own
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {"observation": np.zeros(16, np.float32)}
    for example in examples(page):
        exec(compile(example, str(page), "exec"), namespace)
    assert os.listdir(tmp_path) == (["lock.briee"] if 'save("lock.briee")' in page.read_text() else [])


@pytest.mark.slow
def test_the_example_of_the_readme_opens_the_lock(capsys):
    """As it stands, not shortened."""
    (example,) = examples(ROOT / "README.md")
    exec(compile(example, "README.md", "exec"), {})
    assert capsys.readouterr().out.strip().endswith("1.0")


@pytest.mark.parametrize("line", COMMAND_LINES)
def test_commands_are_understood(line, tmp_path, monkeypatch):
    _, command, *argv = shlex.split(line)
    assert command in COMMANDS
    if command == "train":
        monkeypatch.chdir(tmp_path)
        Path("corridor.py").write_text(examples(ROOT / "docs" / "environments.md")[1])
        for text in examples(TUTORIAL):
            if file := re.match(r"# (\w+\.py)\n", text):
                Path(file[1]).write_text(text)
        for name, package in (("MiniGrid", "minigrid"), ("bsuite", "bsuite")):
            if name in line:
                pytest.importorskip(package)
        parse_train(argv)
        return
    module = importlib.import_module(f"briee.cli.{command}")
    if command == "doctor":
        argv, _ = split_options(argv, "--env.")
        argv, _ = split_options(argv, "--rich.")
    parse(getattr(module, f"{command.title()}Args"), argv, f"briee {command}")


def follow_tutorial(monkeypatch, tmp_path, commands_too: bool) -> dict[str, Any]:
    """Save the files, run the examples in order, and the commands unless the tutorial is made short."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    names: dict[str, Any] = {}
    for language, text in blocks(TUTORIAL):
        if file := re.match(r"# (\w+\.py)\n", text):
            Path(file[1]).write_text(text)
        elif language == "python":
            exec(compile(text, TUTORIAL.name, "exec"), names)
        elif commands_too:
            for line in re.findall(r"^\$ briee (.*)", text, flags=re.M):
                assert main(shlex.split(line)) == 0
    return names


def test_the_code_of_the_tutorial_runs(monkeypatch, tmp_path, capsys):
    """Learning is made short: what is tried is that every line works."""
    learn = Agent.learn
    monkeypatch.setattr(Agent, "learn", lambda self, **_: learn(self, iterations=1, progress=False))
    assert follow_tutorial(monkeypatch, tmp_path, False)["agent"].iterations == 1
    assert {path.name for path in tmp_path.iterdir()} >= {"grid.py", "picture.py", "grid.briee", "map.png"}
    assert "mean return" in capsys.readouterr().out


@pytest.mark.slow
def test_the_tutorial_solves_both_worlds(monkeypatch, tmp_path, capsys):
    """Word by word, commands included."""
    assert follow_tutorial(monkeypatch, tmp_path, True)["agent"].solved
    said = capsys.readouterr().out
    assert said.count("solved after ") == 3  # two runs, and the agent
    assert "mean return 1.0000" in said
    assert (tmp_path / "both.html").stat().st_size > 1e6


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_run(path, monkeypatch, tmp_path):
    spec = importlib.util.spec_from_file_location("docs_site", ROOT / "docs" / "site.py")
    assert spec is not None
    assert spec.loader is not None
    site = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(site)
    monkeypatch.chdir(tmp_path)
    kept, now = json.loads(path.read_text()), site.run_notebook(path)
    kinds = lambda book: [  # noqa: E731
        [(output["output_type"], *output.get("data", ())) for output in cell["outputs"]]
        for cell in book["cells"]
        if cell["cell_type"] == "code"
    ]
    assert kinds(now) == kinds(kept), "make them anew with `python docs/site.py notebooks`"
    last = "".join(now["cells"][-2]["outputs"][-1]["text"])
    assert re.search(r"solved True|\d+ updates, \d+ episodes>", last)
    assert os.listdir(tmp_path) == []


def columns_of(module: str, name: str) -> set[str]:
    """Keys of the dictionaries in the method `metrics` of a class, and in functions of that name it calls."""
    found = method(module, name, "metrics")
    assert found is not None
    todo, columns = [Place(*found, (module, name))], set()
    while todo:
        place = todo.pop()
        for node in ast.walk(place.node):
            keys = node.keys if isinstance(node, ast.Dict) else []
            columns |= {str(key.value) for key in keys if isinstance(key, ast.Constant)}
        for other in references(place):
            if isinstance(other.node, ast.FunctionDef) and other.node.name == "metrics":
                todo += [other] if other.node is not place.node else []
    return columns


@pytest.mark.parametrize("home", sorted({f"briee.algorithms.{entry.path}" for entry in ALGORITHMS.values()}))
def test_every_column_of_an_algorithm_is_on_the_page(home):
    cells = re.findall(r"^\| (`.*?) \|", (ROOT / "docs" / "metrics.md").read_text(), flags=re.M)
    module, _, name = home.partition(":")
    columns = columns_of(module, name)
    assert "explore_return" in columns
    assert columns <= {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}


@pytest.mark.parametrize("task", ["image-lock-h5-cnn", "minigrid-empty-5x5-mlp"])
def test_published_episodes_of_other_decoders_are_those_of_the_runs(task):
    found = [row for row in read_table(ROOT / "results" / "worlds" / "runs.csv") if row["world"] == task]
    assert [row["seed"] for row in found if row["solved"] == "True"] == ["1", "12", "123", "1234", "12345"]
    said = " ".join(re.sub("<!--.*?-->", "", (ROOT / "docs" / "agent.md").read_text()).split())
    assert ", ".join(f"{int(row['episodes_to_solve']):,}" for row in found) + " episodes" in said


def test_published_costs_of_checkpoints_are_those_measured():
    found = json.loads((ROOT / "results" / "speed.json").read_text())["checkpoints"]
    said = " ".join((ROOT / "docs" / "metrics.md").read_text().split())
    efficient, paper = found["efficient"], found["paper"]
    assert found["horizon"] == 100
    assert f"{efficient['megabytes']:.0f} MB with the preset `efficient`" in said
    assert f"written in {efficient['seconds_write']:.1f} s" in said
    assert f"{paper['megabytes'] / 1000:.2f} GB, written in {paper['seconds_write']:.1f} s" in said
    assert f"{paper['seconds_write_processor']:.1f} s of the processors" in said
    assert efficient["share_of_run"] < 0.1
    assert f"{efficient['share_of_run']:.1%} of its time".replace("%", " %") in said


ENVIRONMENTS = (ROOT / "docs" / "environments.md").read_text()
BLOCKS = examples(ROOT / "docs" / "environments.md")


@pytest.mark.parametrize("index", range(len(BLOCKS)))
def test_code_on_the_page_runs(index, capsys):
    scope: dict = {"__name__": "page"}
    exec(compile(BLOCKS[index], f"docs/environments.md, block {index}", "exec"), scope)
    if "data" in scope:
        assert scope["data"].observation.shape == (100, 11, 9)
        assert "(100, 11, 9)" in capsys.readouterr().out


def test_bringing_an_environment_takes_less_than_forty_lines():
    example = next(block for block in BLOCKS if "class Corridor" in block)
    assert len(example.strip().splitlines()) < 40


def test_the_table_lists_what_is_registered():
    rows = [
        line.split("|")[1:7]
        for line in ENVIRONMENTS.splitlines()
        if line.startswith("| `") and "briee/" in line
    ]
    listed = {row[0].strip(" `"): [cell.strip(" `") for cell in row[1:]] for row in rows}
    for row in envs.describe_all():
        env_id, horizon, actions, observation, best = listed.pop(row.name)
        assert (env_id, int(horizon), int(actions)) == (row.id, row.horizon, row.num_actions)
        assert int(observation) == row.observation_shape[0]
        assert float(best) == pytest.approx(row.optimal_return, abs=0.005)
    assert not listed


def test_published_episodes_are_those_of_the_runs():
    rows = read_table(ROOT / "results" / "worlds" / "runs.csv")
    for environment in ("frozen-lake", "deep-sea-10-noise"):
        own = [row for row in rows if row["world"] == environment]
        assert [row["seed"] for row in own] == ["1", "12", "123", "1234", "12345"]
        assert all(row["solved"] == "True" for row in own)
        assert f"| {', '.join(row['episodes_to_solve'] for row in own)} |" in ENVIRONMENTS


TABLE = (ROOT / "docs" / "paper_to_code.md").read_text()
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in TABLE.splitlines()
    if line.startswith("|") and "`" in line
]
CITATION = re.compile(r"Alg\. \d+, l\. \d+|Eq\. \(\d+\)|Thm\. \d+|Table \d+|Lemma \d+")
STATEMENTS = {
    "Definition {}": 1,
    "Alg. {}": 4,
    "Thm. {}": 6,
    "Lemma {}": 16,
    "Eq. ({})": 15,
    "Table {}": 7,
}
"""How many of each the paper numbers."""


@pytest.mark.parametrize("kind", STATEMENTS)
def test_every_numbered_statement_has_a_row_and_no_row_has_another_number(kind):
    wanted = {kind.format(number) for number in range(1, STATEMENTS[kind] + 1)}
    pattern = re.compile(re.escape(kind).replace(r"\{\}", r"\d+"))
    assert {row[0] for row in ROWS if pattern.fullmatch(row[0])} == wanted


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row[0]} {row[2]}")
def test_every_row_names_code_and_a_test_that_exist(row):
    module, _, names = row[2].strip("`").partition(":")
    if module.endswith(".py"):  # outside the package
        assert f"def {names}(" in (ROOT / module).read_text()
    else:
        target = importlib.import_module(module)
        for name in names.split("."):
            target = getattr(target, name)
    path, _, test = row[3].strip("`").partition("::")
    assert (ROOT / path).exists()
    assert f"def {test}(" in (ROOT / path).read_text() or not test


def test_every_citation_in_the_code_is_in_the_table():
    known = {row[0] for row in ROWS}
    missing = {}
    for path in (ROOT / "src").rglob("*.py"):
        for citation in CITATION.findall(path.read_text()):
            if citation not in known:
                missing.setdefault(citation, []).append(path.name)
    assert not missing


def test_every_line_of_an_algorithm_in_the_table_is_cited_in_the_code():
    cited = {c for path in (ROOT / "src").rglob("*.py") for c in CITATION.findall(path.read_text())}
    lines = {row[0] for row in ROWS if re.fullmatch(r"Alg\. \d+, l\. \d+", row[0])}
    assert lines <= cited
