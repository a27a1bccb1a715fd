"""The page on environments: its code runs, its example is short, its table is true."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest

from briee import envs

PAGE = (Path(__file__).parents[2] / "docs" / "environments.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)


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
    rows = [line.split("|")[1:7] for line in PAGE.splitlines() if line.startswith("| `") and "briee/" in line]
    listed = {row[0].strip(" `"): [cell.strip(" `") for cell in row[1:]] for row in rows}
    for row in envs.describe_all():
        env_id, horizon, actions, observation, best = listed.pop(row.name)
        assert (env_id, int(horizon), int(actions)) == (row.id, row.horizon, row.num_actions)
        assert int(observation) == row.observation_shape[0]
        assert float(best) == pytest.approx(row.optimal_return, abs=0.005)
    assert not listed


def test_published_episodes_are_those_of_the_runs():
    path = Path(__file__).parents[2] / "results" / "worlds" / "runs.csv"
    with open(path, newline="") as file:
        rows = list(csv.DictReader(file))
    for environment in ("frozen-lake", "deep-sea-10-noise"):
        own = [row for row in rows if row["world"] == environment]
        assert [row["seed"] for row in own] == ["1", "12", "123", "1234", "12345"]
        assert all(row["solved"] == "True" for row in own)
        assert f"| {', '.join(row['episodes_to_solve'] for row in own)} |" in PAGE
