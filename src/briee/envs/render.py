"""Images of an episode: a row per latent state, a column per level, with visited states and right actions.

At most `WINDOW` levels around the current one are shown. As text:

    level     0  1  2  3
    good 0    o  .  .  .     o  visited       @  current
    good 1    .  o  .  .
    bad  2    .  .  @  .
    action    4  1           the action taken
    right     4  7           the right action (- if there is none)
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from briee.envs.lock import CombinationLock

WINDOW = 25
CELL = 24
PAPER, INK, GRID = (255, 255, 255), (60, 60, 60), (225, 225, 225)
GOOD, BAD, GOAL = (232, 240, 254), (205, 205, 205), (253, 214, 155)
VISITED, HERE = (66, 133, 244), (15, 70, 180)
RIGHT, WRONG = (52, 168, 83), (219, 68, 55)

# Digits of 3 × 5 pixels, one octal number per row.
DIGITS = ("75557", "26227", "71747", "71717", "55711", "74717", "74757", "71122", "75757", "75717")


class Trail(NamedTuple):
    """One episode so far: latent states [t + 1], actions [t]."""

    latents: list[int]
    actions: list[int]


def right_actions(pure: Any, trail: Trail) -> list[int | None]:
    """The right action at each step of the trail; None if there is none."""
    if not isinstance(pure, CombinationLock):
        return [None] * len(trail.actions)
    table, good = np.asarray(pure.combination), _good(pure)
    pairs = enumerate(trail.latents[: len(trail.actions)])
    return [int(table[level, latent]) if good[latent] else None for level, latent in pairs]


def window(pure: Any, level: int) -> range:
    """The levels that are shown."""
    first = max(0, min(level - WINDOW // 2, pure.horizon + 1 - WINDOW))
    return range(first, min(first + WINDOW, pure.horizon + 1))


def ansi(pure: Any, trail: Trail) -> str:
    """The episode as text."""
    level, good = len(trail.actions), _good(pure)
    shown = window(pure, level)
    rows = [("level", [str(h) for h in shown])]
    for latent in range(pure.num_latents):
        marks = []
        for h in shown:
            visited = h <= level and trail.latents[h] == latent
            marks.append(("@" if h == level else "o") if visited else ".")
        rows.append((f"{'good' if good[latent] else 'bad '} {latent}", marks))
    right = right_actions(pure, trail)
    done = [h for h in shown if h < level]
    rows.append(("action", [str(trail.actions[h]) for h in done]))
    rows.append(("right", ["-" if right[h] is None else str(right[h]) for h in done]))
    return "\n".join(f"{name:<8}" + "".join(f"{mark:>4}" for mark in marks) for name, marks in rows) + "\n"


def rgb_array(pure: Any, trail: Trail) -> np.ndarray:
    """The episode as an image, uint8 [height, width, 3]; the last row shows right and wrong actions."""
    level, good, right = len(trail.actions), _good(pure), right_actions(pure, trail)
    shown = window(pure, level)
    table = np.asarray(pure.combination) if isinstance(pure, CombinationLock) else None
    image = np.full(((pure.num_latents + 1) * CELL, len(shown) * CELL, 3), PAPER, np.uint8)
    for column, h in enumerate(shown):
        for latent in range(pure.num_latents):
            visited = h <= level and trail.latents[h] == latent
            colour = GOAL if good[latent] and h == pure.horizon else GOOD if good[latent] else BAD
            if visited:
                colour = HERE if h == level else VISITED
            cell = _cell(image, latent, column)
            cell[_disc()] = colour
            if table is not None and good[latent] and h < pure.horizon:
                _number(cell, int(table[h, latent]), PAPER if visited else INK)
        if h < level:
            cell = _cell(image, pure.num_latents, column)
            cell[2:-2, 2:-2] = (
                RIGHT if trail.actions[h] == right[h] else WRONG if right[h] is not None else BAD
            )
            _number(cell, trail.actions[h], PAPER)
    image[pure.num_latents * CELL] = GRID
    return image


def _good(pure: Any) -> np.ndarray:
    """bool[Z]: the latent states from which the goal can be reached."""
    return np.asarray(pure.good(np.arange(pure.num_latents)))


def _cell(image: np.ndarray, row: int, column: int) -> np.ndarray:
    return image[row * CELL : (row + 1) * CELL, column * CELL : (column + 1) * CELL]


def _disc() -> np.ndarray:
    offset = np.arange(CELL) - (CELL - 1) / 2
    return offset[:, None] ** 2 + offset[None, :] ** 2 <= (CELL / 2 - 1.5) ** 2


def _number(cell: np.ndarray, number: int, colour: tuple[int, int, int]) -> None:
    """Write a number of up to two digits into the middle of a cell, with doubled pixels."""
    text = str(number)[-2:]
    left = (CELL - 8 * len(text) + 2) // 2
    for position, digit in enumerate(text):
        rows = [[int(row) >> (2 - bit) & 1 for bit in range(3)] for row in DIGITS[int(digit)]]
        pixels = np.kron(np.array(rows, bool), np.ones((2, 2), bool))
        x = left + 8 * position
        cell[7:17, x : x + 6][pixels] = colour
