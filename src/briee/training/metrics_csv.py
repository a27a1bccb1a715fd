"""metrics.csv and other tables: one writer, one reader. Imports no JAX."""

import csv
import io
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from briee.errors import RunError
from briee.training.files import write_atomically

Table = Sequence[Mapping[str, str]]
"""Rows of a CSV file."""


class MetricsFile:
    """`metrics.csv`: append-only, one row per iteration."""

    def __init__(self, path: Path):
        self.path = path
        self.columns: list[str] | None = None

    def rewind(self, iteration: int) -> None:
        """Drop an incomplete last line and the rows after `iteration`, which a resumed run computes again."""
        if not self.path.exists() and iteration == 0:
            return
        lines = _complete_lines(self.path)
        if len(lines) <= iteration:
            rows = max(len(lines) - 1, 0)
            raise RunError(f"{self.path} lacks rows: it has {rows} of {iteration} iterations")
        write_atomically(self.path, "".join(lines[: iteration + 1]) if iteration else "")
        self.columns = lines[0].strip().split(",") if iteration else None

    def append(self, row: Mapping[str, Any]) -> None:
        """Add one row; None becomes an empty cell, and the first row fixes the columns.

        The row survives a crash of this process at once, and a crash of the machine after `sync`.
        """
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        if self.columns is None:
            self.columns = list(row)
            writer.writerow(self.columns)
        if list(row) != self.columns:
            raise ValueError(f"every row needs the columns {self.columns}, got {list(row)}")
        writer.writerow(_cell(value) for value in row.values())
        with open(self.path, "a") as file:
            file.write(text.getvalue())

    def sync(self) -> None:
        """Push the rows to disk."""
        with open(self.path, "a") as file:
            os.fsync(file.fileno())


def read_table(path: Path, column: str | None = None) -> list[dict[str, str]]:
    """The complete rows of a CSV file, none if there is no file; `RunError` if it has no such `column`."""
    table = csv.DictReader(_complete_lines(path))
    if column is not None and column not in (table.fieldnames or [column]):
        raise RunError(f"cannot read {path}: its first line does not name the column {column!r}")
    return [row for row in table if None not in row and None not in row.values()]


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The complete rows of metrics.csv as numbers, with None for empty cells."""
    return [{name: _number(cell) for name, cell in row.items()} for row in read_table(path, "iteration")]


def write_table(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Write rows with equal columns."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]) if rows else [], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def _complete_lines(path: Path) -> list[str]:
    """The lines of a file, without a last one that lacks its end."""
    try:
        lines = path.read_text().splitlines(keepends=True)
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        raise RunError(f"cannot read {path}: {error}") from None
    return [line for line in lines if line.endswith("\n")]


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return str(value) if isinstance(value, int) else format(value, ".9g")


def _number(cell: str) -> float | int | None:
    for kind in (int, float):
        try:
            return kind(cell)
        except ValueError:
            pass
    return None
