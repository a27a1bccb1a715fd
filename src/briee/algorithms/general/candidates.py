"""The states of a level: candidates propose them, the best predictor of contexts wins.

Clouds are tried first: they are cheap and never look at the context. Kernel regressions follow, unless clouds
proved right at most levels. Which of them could predict anything is told by a cheap screen: how much better
than their mean each regression predicts the *events* of the context, every row left out. The best are
searched for labels (`label_search`).
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from briee.algorithms.general.clouds import Clouds, find_clouds
from briee.algorithms.general.contexts import Contexts, Groups, groups
from briee.algorithms.general.decoders import COORDINATES as CLOUD_COORDINATES
from briee.algorithms.general.decoders import Decoders
from briee.algorithms.general.kernel_bank import (
    BOTH,
    COORDINATES,
    HALF,
    LINEAR,
    PATCHES,
    TEACHERS,
    ask,
    side_by_side,
)
from briee.algorithms.general.kernels import PRODUCTS, QUADRATIC, RBF, Smoother, kernel, smoother
from briee.algorithms.general.label_search import Labels, Search
from briee.algorithms.general.patches import by_patches_alone, coordinates
from briee.algorithms.general.whitening import White, whiten

PENALTIES = 0.03, 0.2  # ridge penalties of the regressions
CHARGE = 3.0  # nats that a further label must gain on held-out rows
SCREEN_ROWS = 250  # rows of the screen
BY_CHANCE = 3.0  # rows of an event that a regression may explain by chance
MOST_LABELS = 8  # labels of one level that are searched for
RACED = 2  # regressions that are searched
LEAST_EVENT = 3  # rows of an event of the screen
LEAST_SPREAD = 0.3  # of the teachers' predictions, the scale of their kernel
WARM = 0.9  # certainty of the old labels as a start
FLOOR = 1e-6


class Rows(NamedTuple):
    """Rows of a level, with what surrounds them."""

    observation: Float[np.ndarray, "n D"]
    label: Int[np.ndarray, " n"]
    previous: Int[np.ndarray, " n"] | None
    action: Int[np.ndarray, " n"]
    outcome: Int[np.ndarray, " n"]
    level: Int[np.ndarray, " n"] | None = None
    """The level of each row, if they are of several."""

    def some(self, chosen: Int[np.ndarray, " m"]) -> "Rows":
        """These of the rows."""
        return Rows(*(None if column is None else column[chosen] for column in self))  # type: ignore[arg-type]


class Regression(NamedTuple):
    """A candidate: coordinates of the rows, which `values` describe, and a kernel with its penalty."""

    name: int
    z: Float[np.ndarray, "n E"]
    kind: int
    scale: float
    penalty: float
    values: dict[str, Any]

    def smoother(self, chosen: Int[np.ndarray, " m"] | None = None) -> Smoother:
        """The regression on all or some of the rows."""
        z = self.z if chosen is None else self.z[chosen]
        return smoother(kernel(self.kind, self.scale, z, z), self.penalty)

    def arrays(self, q: Float[np.ndarray, "n K"]) -> dict[str, Any]:
        """The regression of the labels q, as the arrays of a bank."""
        offset, weight = self.smoother().weights(q)
        arrays = {"kind": self.kind, "scale": self.scale, "penalty": self.penalty, "support": self.z}
        arrays |= {"rows": len(q), "states": q.shape[1], "offset": offset, "weight": weight}
        return self.values | arrays


class Found(NamedTuple):
    """The states of a level: clouds or a regression as arrays, the worth in nats, and the rows' labels."""

    clouds: dict[str, Any] | None
    regression: dict[str, Any] | None
    teacher: dict[str, Any] | None
    worth: float
    label: Int[np.ndarray, " n"]
    states: int
    name: int = 0
    """The name of the regression."""


class Rules(NamedTuple):
    """How a level is fitted."""

    candidates: tuple[str, ...]
    """Names of those that are tried, as in the configuration."""
    joins: bool
    num_actions: int
    most: int
    """Clouds, at most."""
    charge: float
    """Nats that a further label must gain on held-out rows."""
    team: Int[np.ndarray, " T"]
    """Levels whose teachers may be asked."""
    trusted: bool
    """Clouds proved right at other levels: they are accepted without a race."""
    last_resort: bool
    """Nothing is left to discover: a single trusted cloud has to win a race, and two states under one label
    are the likeliest mistake of a regression."""
    hopeful: bool
    """No regression won anywhere: a few clouds win unless a regression is worth at least `proven`."""
    proven: float
    incumbent: int
    """The name of the level's regression, which takes part in every race; 0 for none."""
    settled: bool
    """There is no race: the incumbent and its labels stay, with what EM makes of them. They are split and
    joined only if nothing is left to discover."""


def fit_level(rows: Rows, decoders: Decoders, rules: Rules, rng: np.random.Generator) -> Found:
    """The best candidate."""
    x = rows.observation.astype(np.float64)
    contexts = contexts_of(rows, rules.num_actions)
    own, worth = None, 0.0
    if not by_patches_alone(decoders.patches.shape):
        white = whiten(x, rows.label, CLOUD_COORDINATES)
        clouds = find_clouds(x, white, rules.most)
        worth = cloud_worth(clouds, contexts)
        own = of_clouds(white, clouds, worth)
        usable = clouds.fits and "clouds" in rules.candidates
        stuck = rules.last_resort and own.states == 1
        if not contexts.informative or (usable and rules.trusted and not stuck):
            return own
        own = own if usable else None
    candidates = list(regressions(rows.observation, decoders, rules))
    best: tuple[Labels, Regression] | None = None
    for one in entrants(candidates, rows, rules, rng):
        search = Search(one.smoother(), contexts, MOST_LABELS, rules.charge, rng, rules.joins)
        first = starts(rows.label, MOST_LABELS)
        if rules.settled:
            labels = search.climb(first[0]) if rules.last_resort else search.again(first[0])
        else:
            labels = search.best(first)
        if best is None or labels.worth > best[0].worth:
            best = labels, one
    rival = max(best[0].worth, 0.0) if best else 0.0
    if rules.trusted and best is not None and rival > 0 and own is not None:
        white = whiten(x, best[0].phi.argmax(1), CLOUD_COORDINATES)  # the noise within these labels
        clouds = find_clouds(x, white, rules.most)
        worth = cloud_worth(clouds, contexts)
        own = of_clouds(white, clouds, worth)
    hopeful = rules.hopeful and rival < rules.proven
    if own is not None and (worth >= rival or (hopeful and own.states <= MOST_LABELS)):
        return own
    if best is None or rival == 0.0:
        return Found(None, None, None, 0.0, np.ones(len(x), np.int32), 1)
    return of_regression(*best, candidates)


def entrants(
    candidates: list[Regression], rows: Rows, rules: Rules, rng: np.random.Generator
) -> list[Regression]:
    """The regressions that enter the race: every kernel if rows are of several levels, else the best two."""
    own = [i for i, one in enumerate(candidates) if one.name == rules.incumbent]
    if rules.settled and own:
        return [candidates[i] for i in own]
    several = rows.level is not None
    size = len(rows.action) if several else SCREEN_ROWS
    skill = [screen(one, rows, rules.num_actions, rng, size) for one in candidates]
    able = [i for i in best_penalties(candidates, skill) if skill[i] > 0 or several]
    able = able if several else able[:RACED]
    return [candidates[i] for i in able + [i for i in own if i not in able]]


def contexts_of(rows: Rows, num_actions: int) -> Contexts:
    """The contexts of rows."""
    return Contexts(rows.previous, rows.action, rows.outcome, num_actions, rows.level)


def cloud_worth(clouds: Clouds, contexts: Contexts) -> float:
    """The score of the clouds, less the charge for any of them."""
    if not contexts.informative or len(clouds.bias) == 1:
        return 0.0
    return float(contexts.scores(clouds.left_out[:, None].astype(np.float32)).sum()) - CHARGE


def of_clouds(white: White, clouds: Clouds, worth: float) -> Found:
    """Clouds as the result of a fit."""
    arrays = {
        "mean": white.mean,
        "transform": white.transform,
        "centre": clouds.centre,
        "weight": clouds.weight,
        "bias": clouds.bias,
        "group": np.arange(len(clouds.bias)),
        "radius": clouds.radius,
    }
    label = (clouds.part + 1).astype(np.int32)
    return Found(arrays, None, None, worth, label, len(clouds.bias))


def of_regression(labels: Labels, chosen: Regression, candidates: list[Regression]) -> Found:
    """A regression as the result of a fit, without labels that no row has.

    The teacher is the regression itself or, if that asked teachers, the first candidate.
    """
    used = np.unique(labels.phi.argmax(1))
    q = labels.q[:, used] / labels.q[:, used].sum(1, keepdims=True)
    label = (labels.phi[:, used].argmax(1) + 1).astype(np.int32)
    own = chosen.values["embedding"] != TEACHERS
    teacher = (chosen if own else candidates[0]).arrays(q)
    return Found(None, chosen.arrays(q), teacher, labels.worth, label, len(used), chosen.name)


def regressions(x: Float[np.ndarray, "n D"], decoders: Decoders, rules: Rules) -> Iterator[Regression]:
    """All candidates that are kernel regressions."""
    image, names, team = len(decoders.patches.patch) > 0, rules.candidates, rules.team
    kinds = {"rbf": RBF} if image else {"rbf": RBF, "quadratic": QUADRATIC, "products": PRODUCTS}
    embedded: list[tuple[np.ndarray, int, float, dict[str, Any]]] = []
    if not by_patches_alone(decoders.patches.shape):
        mean, transform = standardised(x, image)
        z = ((x - mean) @ transform).astype(np.float32)
        values = {"embedding": LINEAR, "mean": mean, "transform": transform}
        embedded = [(z, kind, float(z.shape[1]), values) for name, kind in kinds.items() if name in names]
    if image and ("patches" in names or "both" in names):
        seen = coordinates(decoders.patches, x).astype(np.float32)
        if "patches" in names:
            embedded.append((seen, RBF, float(seen.shape[1]), {"embedding": PATCHES}))
        if "both" in names and not by_patches_alone(decoders.patches.shape):
            mean, transform = standardised(x, image, HALF)
            z = np.zeros_like(seen)
            z[:, : transform.shape[1]] = (x - mean) @ transform
            z = side_by_side(np, z, seen)
            values = {"embedding": BOTH, "mean": mean, "transform": transform}
            embedded.append((z, RBF, float((z**2).sum(1).mean()), values))
    if (team >= 0).any() and "teachers" in names:
        said = ask(decoders.teachers, decoders.patches, team, x)
        spread = max(LEAST_SPREAD, float(said.var(0).sum()))
        embedded.append((said, RBF, spread, {"embedding": TEACHERS, "team": team}))
    for z, kind, scale, values in embedded:
        for i, penalty in enumerate(PENALTIES):
            name = 1 + i + len(PENALTIES) * (kind + 3 * values["embedding"])
            yield Regression(name, z, kind, scale, penalty, values)


def standardised(
    x: Float[np.ndarray, "n D"], image: bool, most: int = COORDINATES
) -> tuple[np.ndarray, np.ndarray]:
    """Mean and linear map to coordinates of variance one; all pixels of an image have the same scale."""
    mean = x.mean(0)
    deviation = np.full(x.shape[1], x.std()) if image else x.std(0)
    transform = np.diag(1 / (deviation + FLOOR))
    if x.shape[1] > most:
        basis = np.linalg.svd((x - mean) @ transform, full_matrices=False)[2][:most].T
        transform = transform @ basis
    return mean.astype(np.float32), transform.astype(np.float32)


def starts(label: Int[np.ndarray, " n"], most: int) -> list[Float[np.ndarray, "n _"]]:
    """The old labels, if there are several but not too many, and one label."""
    old = groups(label).member
    K = old.shape[1]
    found = [(WARM * old + (1 - WARM) / K).astype(np.float32)] if 1 < K <= most else []
    return [*found, np.ones((len(label), 1), np.float32)]


def best_penalties(candidates: list[Regression], skill: list[float]) -> list[int]:
    """The candidates by their skill, each kernel with its better penalty alone."""
    best: dict[tuple[int, int], int] = {}
    for i in np.argsort(skill)[::-1]:
        one = candidates[i]
        best.setdefault((one.values["embedding"], one.kind), int(i))
    return list(best.values())


def screen(
    one: Regression, rows: Rows, num_actions: int, rng: np.random.Generator, size: int = SCREEN_ROWS
) -> float:
    """Rows that a regression explains of the events, every row left out, beyond what chance explains.

    Events are the previous action, given the previous state, and the outcome, given the action: what actions
    do not change is not a state.
    """
    n = len(rows.action)
    chosen = rng.permutation(n)[:size]
    g = events(rows, chosen, num_actions)
    if not g.shape[1]:
        return 0.0
    regression = one.smoother(chosen)
    error = (g - regression.S @ g) / (1 - regression.d[:, None])
    total = (g**2).sum(0)
    explained = (total - (error**2).sum(0)) / total * len(chosen)
    return float(np.maximum(explained - BY_CHANCE, 0.0).sum())


def events(rows: Rows, chosen: Int[np.ndarray, " n"], num_actions: int) -> Float[np.ndarray, "n events"]:
    """Indicators of events, less their frequency in a group that actions did not choose."""
    found = []
    if rows.previous is not None:
        previous = rows.previous[chosen]
        found.append(_centred(groups(previous), groups(previous // num_actions)))
    outcome, action = rows.outcome[chosen], rows.action[chosen]
    pair = action.astype(np.int64) * (int(outcome.max()) + 1) + outcome
    found.append(_centred(groups(pair), groups(action)))
    return np.concatenate(found, 1)


def _centred(event: Groups, given: Groups) -> Float[np.ndarray, "n events"]:
    """Indicators less their frequency among the rows of the same group; events of a few rows are left out."""
    frequency = given.member.T @ event.member / given.member.sum(0)[:, None]
    centred = event.member - frequency[given.of_row]
    size = event.member.sum(0)
    return centred[:, (size >= LEAST_EVENT) & ((centred**2).sum(0) > FLOOR)]
