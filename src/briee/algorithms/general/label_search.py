"""Labels that an observation predicts and that predict its context: EM, and the search for their number.

Given a regression with left-out predictions phi (`kernels`) and the contexts of the rows (`contexts`), EM
alternates

    phi = regression of q on the observations, each row left out
    q_k proportional to phi_k ctx_k(i)

from a start q. A labelling is worth its score on held-out rows: in each of four folds their contexts are
neither counted nor used in the E-step, and only they are scored; less `charge` nats per label after the
first. The search starts from the old labels and from one label. It *splits* a label by an event (rows of one
previous cell, or of one action and outcome) or *joins* two labels as long as that worth rises. Once labels
are found, their regression is made again from more rows.
"""

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from briee.algorithms.general.contexts import Contexts, shares
from briee.algorithms.general.decoders import Decoders
from briee.algorithms.general.kernel_bank import Bank, embed, no_bank, predict, put
from briee.algorithms.general.kernels import Smoother, kernel, probabilities, reduced

FOLDS = 4
STEPS, FIRST_STEPS = 8, 6  # EM steps; fewer for the many starts of a split
STARTS, FINALISTS = 24, 3  # starts of a split, and how many of them are cross-validated
MOVED, SPREAD = (
    0.8,
    0.1,
)  # share of an event's rows, and of all others, that a new label takes from an old one
LEAST_ROWS = 2.0
CORRECTIONS = 3  # times that contexts correct the labels of further rows


class Labels(NamedTuple):
    """A labelling: its worth in nats, responsibilities q and left-out predictions phi."""

    worth: float
    q: Float[np.ndarray, "n _"]
    phi: Float[np.ndarray, "n _"]


class Search:
    """The search for labels of n rows."""

    def __init__(
        self,
        regression: Smoother,
        contexts: Contexts,
        most: int,
        charge: float,
        rng: np.random.Generator,
        joins: bool = True,
    ):
        self.regression, self.contexts = regression, contexts
        self.most, self.charge, self.rng, self.joins = most, charge, rng, joins
        self.events = contexts.events()
        self.fold = rng.permutation(len(contexts.use)) % FOLDS

    def best(self, starts: list[Float[np.ndarray, "n _"]]) -> Labels:
        """The best labelling found from any of the starts."""
        return max((self.climb(q) for q in starts), key=lambda found: found.worth)

    def climb(self, q: Float[np.ndarray, "n K"]) -> Labels:
        """Split and join until neither helps."""
        found = self.again(q)
        for _ in range(2 * self.most):
            better = self.split(found) or self.join(found)
            if better is None:
                break
            found = better
        return found

    def again(self, q: Float[np.ndarray, "n K"]) -> Labels:
        """The labels after EM, started from these."""
        return self.settled(q, self.worth(q[:, None])[0] if q.shape[1] > 1 else 0.0)

    def split(self, found: Labels) -> Labels | None:
        """The best labelling with one label more, if it is worth more."""
        q, K = found.q, found.q.shape[1]
        if self.most <= K:
            return None
        pairs = [
            (event, k)
            for event in self.events
            for k in range(K)
            if min((event * q[:, k]).sum(), ((1 - event) * q[:, k]).sum()) >= LEAST_ROWS
        ]
        if not pairs:
            return None
        chosen = self.rng.permutation(len(pairs))[:STARTS]
        starts = np.stack([_split(q, *pairs[i]) for i in chosen], 1)
        _, phi = self.em(starts, FIRST_STEPS)
        order = np.argsort(-self.contexts.scores(phi).sum(0), kind="stable")[:FINALISTS]
        return self.better(starts[:, order], found.worth)

    def join(self, found: Labels) -> Labels | None:
        """The best labelling with two labels joined, if it is worth more."""
        q, K = found.q, found.q.shape[1]
        if K < 2 or not self.joins:
            return None
        return self.better(np.stack([_joined(q, j, k) for k in range(K) for j in range(k)], 1), found.worth)

    def better(self, starts: Float[np.ndarray, "n J K"], than: float) -> Labels | None:
        """The start of the highest worth, after EM, if it is worth more than this."""
        worth = self.worth(starts)
        best = int(worth.argmax())
        return self.settled(starts[:, best], worth[best]) if worth[best] > than else None

    def settled(self, q: Float[np.ndarray, "n K"], worth: float) -> Labels:
        """The labelling that EM makes of a start."""
        if q.shape[1] == 1:
            return Labels(float(worth), q, q)
        q, phi = self.em(q[:, None], STEPS)
        return Labels(float(worth), q[:, 0], phi[:, 0])

    def em(self, q: Float[np.ndarray, "n J K"], steps: int) -> tuple[np.ndarray, np.ndarray]:
        """q and phi after this many steps; contexts of rows that are not counted do not enter."""
        use = self.contexts.use[:, None, None]
        for _ in range(steps):
            phi = self.regression.left_out(q)
            context = self.contexts.ratios(q, shares(phi))
            q = phi * np.where(use > 0, context, 1.0)
            q = q / q.sum(-1, keepdims=True)
        return q, self.regression.left_out(q)

    def worth(self, q: Float[np.ndarray, "n J K"]) -> Float[np.ndarray, " J"]:
        """Held-out score of each start, less the charge."""
        total = np.zeros(q.shape[1])
        for fold in range(FOLDS):
            use = self.contexts.use = (self.fold != fold).astype(np.float32)
            counted = use[:, None, None]
            mean = (q * counted).sum(0, keepdims=True) / use.sum()
            _, phi = self.em(np.where(counted > 0, q, mean), STEPS)
            total += self.contexts.scores(phi)[use == 0].sum(0)
        self.contexts.use = np.ones(len(q), np.float32)
        return total - self.charge * (q.shape[2] - 1)


def on_more_rows(
    regression: dict[str, Any], decoders: Decoders, x: Float[np.ndarray, "n D"], contexts: Contexts
) -> dict[str, Any]:
    """The regression on further observations, whose labels are those that the contexts make likely.

    A label that is read wrongly rarely fits what came before and what followed. So contexts correct the
    labels that the regression gives to observations it was not made from, and those of the next regression
    again.
    """
    bank, f, z = predicted(regression, decoders, x)
    support = bank.support[0, : regression["rows"]]
    K, inner = (kernel(regression["kind"], regression["scale"], of, support) for of in (z, support))
    larger, found = reduced(K, inner, regression["penalty"]), {}
    for _ in range(CORRECTIONS):
        phi = probabilities(f).astype(np.float32)[:, None]
        q = phi * contexts.ratios(phi, shares(phi))
        offset, weight = larger.weights((q / q.sum(-1, keepdims=True))[:, 0])
        f, found = offset + K @ weight, {"offset": offset, "weight": weight}
    return regression | found


def predicted(
    regression: dict[str, Any], decoders: Decoders, x: Float[np.ndarray, "n D"]
) -> tuple[Bank, Float[np.ndarray, "n K"], Float[np.ndarray, "n E"]]:
    """The regression as a bank of one level; predictions for observations, and their coordinates."""
    D, rows = decoders.bank.mean.shape[1], regression["rows"]
    bank = no_bank(1, D, rows)
    put(bank, no_bank(1, D, rows), 0, **regression)
    z = embed(bank, decoders.teachers, decoders.patches, 0, x)
    return bank, predict(bank, 0, z), z


def _split(q: Float[np.ndarray, "n K"], event: Float[np.ndarray, " n"], k: int) -> np.ndarray:
    """Labels in which a new one takes the rows of an event from label k."""
    new = (MOVED * event + SPREAD) * q[:, k]
    q = np.concatenate([q, new[:, None]], 1).astype(np.float32)
    q[:, k] -= new
    return q


def _joined(q: Float[np.ndarray, "n K"], j: int, k: int) -> np.ndarray:
    """Labels in which k is part of j."""
    q = q.copy()
    q[:, j] += q[:, k]
    return np.delete(q, k, 1)
