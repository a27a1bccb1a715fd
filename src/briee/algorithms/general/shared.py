"""One regression for all levels, where they share the way in which states look.

Rows of all levels are one sample, and labels of all levels one set: a level has its own contexts (previous
cells, actions and outcomes are those of a level), but the observation predicts the label everywhere in the
same way. The search for labels is that of one level. Each level adds to the evidence, and a level that nobody
has explored has labels before its contexts tell anything: a state that is new there is seen at its first
visit.

Whether levels share anything is measured: the rows of each level are predicted from the labels of all other
levels, in closed form. `transfer` is the score of these predictions, relative to the score of those that each
row is left out of.
"""

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from briee.algorithms.general.candidates import (
    WARM,
    Regression,
    Rows,
    Rules,
    contexts_of,
    entrants,
    of_regression,
    regressions,
    starts,
)
from briee.algorithms.general.config import FitConfig
from briee.algorithms.general.contexts import Contexts, groups
from briee.algorithms.general.decoders import Decoders
from briee.algorithms.general.kernel_bank import STATES
from briee.algorithms.general.label_search import Labels, Search, predicted
from briee.algorithms.general.state import balanced

SHARE = 0.8  # of the score of the labels that levels have: a shared regression must be worth as much
LEVELS = 3  # levels at which a shared regression must prove its worth
STILL = 0.6  # the least transfer of a shared regression that is in use


class Sample(NamedTuple):
    """Rows of all levels, and the episode of each."""

    rows: Rows
    episode: Int[np.ndarray, " n"]
    level: Int[np.ndarray, " n"]


class Shared(NamedTuple):
    """Labels of all levels: the regression as arrays, and what it is worth."""

    regression: dict[str, Any]
    name: int
    """The name of the regression."""
    label: Int[np.ndarray, " n"]
    """Labels of the sampled rows, each left out."""
    worth: float
    transfer: float
    share: float
    """Their score over that of the labels that the levels have."""
    level_worth: Float[np.ndarray, " H"]
    """The score of the sampled rows of each level."""


def sample_rows(
    observation: Float[np.ndarray, "N levels D"],
    label: Int[np.ndarray, "N levels"],
    action: Int[np.ndarray, "N H"],
    outcome: Int[np.ndarray, "N H"],
    num_actions: int,
    size: int,
    rng: np.random.Generator,
) -> Sample:
    """At most `size` rows of all levels, balanced over the cells of every level before and after."""
    N, H = action.shape
    L, Y, A = int(label.max()) + 1, int(outcome.max()) + 1, num_actions
    level = np.broadcast_to(np.arange(H), (N, H))
    own = (level * L + label[:, :H]) * A + action
    previous = level * L * A  # the first level has one previous cell
    previous[:, 1:] += label[:, : H - 1] * A + action[:, :-1]
    chosen = balanced([previous.ravel(), own.ravel()], size, rng)
    episode, h = np.unravel_index(chosen, (N, H))
    rows = Rows(
        observation[episode, h],
        label[episode, h],
        previous[episode, h],
        (level * A + action)[episode, h],
        (level * Y + outcome)[episode, h],
        h,
    )
    return Sample(rows, episode, h)


def fit_shared(
    rows: Rows, horizon: int, decoders: Decoders, rules: Rules, rng: np.random.Generator
) -> Shared | None:
    """The best labels of all levels; None if one label is as good."""
    assert rows.level is not None
    contexts = contexts_of(rows, rules.num_actions)
    candidates = list(regressions(rows.observation, decoders, rules))
    best: tuple[Labels, Regression] | None = None
    for one in entrants(candidates, rows, rules, rng):
        search = Search(one.smoother(), contexts, STATES, rules.charge, rng, rules.joins)
        first = starts(rows.label, STATES) if rules.incumbent else starts(np.ones_like(rows.label), STATES)
        labels = search.climb(first[0]) if rules.settled else search.best(first)
        if best is None or labels.worth > best[0].worth:
            best = labels, one
    if best is None or best[0].worth <= 0:
        return None
    found = of_regression(*best, candidates)
    assert found.regression is not None
    labels, one = best
    score = contexts.scores(labels.phi[:, None])[:, 0]
    elsewhere = one.smoother().left_out_together(labels.q, rows.level).astype(np.float32)
    transferred = float(contexts.scores(elsewhere[:, None]).sum())
    return Shared(
        found.regression,
        found.name,
        found.label,
        found.worth,
        float(np.clip(transferred / max(float(score.sum()), 1e-9), 0.0, 1.0)),
        float(score.sum() / max(labels_score(rows.label, contexts), 1e-9)),
        np.bincount(rows.level, score, minlength=horizon),
    )


def transfers(found: Shared, used: bool, rule: FitConfig) -> bool:
    """Whether the regression may be used, or used further: labels of other levels are nearly as good."""
    if used:
        return found.worth > rule.settled and found.transfer >= STILL
    return proven(found, rule) and found.transfer >= rule.transfer and found.share >= SHARE


def hopeless(found: Shared, rule: FitConfig) -> bool:
    """Whether several levels have labels, and none that another could use."""
    return proven(found, rule) and found.transfer < STILL


def proven(found: Shared, rule: FitConfig) -> bool:
    """Whether the labels proved their worth at several levels."""
    return int((found.level_worth > rule.proven).sum()) >= LEVELS


def labels_of(regression: dict[str, Any], decoders: Decoders, x: Float[np.ndarray, "n D"]) -> np.ndarray:
    """1 + the label of each observation, i32[n]."""
    return (predicted(regression, decoders, x)[1].argmax(1) + 1).astype(np.int32)


def labels_score(label: Int[np.ndarray, " n"], contexts: Contexts) -> float:
    """The score of labels that are given, not predicted."""
    member = groups(label).member
    phi = WARM * member + (1 - WARM) / member.shape[1]
    return float(contexts.scores(phi[:, None].astype(np.float32)).sum())
