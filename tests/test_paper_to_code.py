"""The table of docs/paper_to_code.md and the citations in the code stay in step."""

import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
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
