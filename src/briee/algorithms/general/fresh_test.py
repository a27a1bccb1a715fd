"""Labels are tested on episodes that no fit has seen, and withdrawn if they do not predict them.

Neighbouring levels may agree on labels that predict one another in the kept episodes and nowhere else. Before
further episodes are kept, their contexts are predicted from those kept before: log sum_k phi_k ctx_k(i), with
phi the decoder's label probabilities. True labels gain nothing where the policy always takes the same action
in a state, but they do not mislead. After `ROWS` rows, labels that lose more than `MOST_LOSS` nats a row
against no labels are forgotten, unless held-out rows had proved their worth, and new ones must be worth more.
"""

import numpy as np
from jaxtyping import Float, Int

from briee.algorithms.general.contexts import Contexts, shares
from briee.algorithms.general.decoders import KERNEL, predictions, put_one
from briee.algorithms.general.kernels import probabilities
from briee.algorithms.general.state import GeneralState

ROWS, MOST_LOSS = 40, 0.1
DEARER = 6.0  # nats that further labels of a level must be worth in addition after a failure
KEPT = 400  # the newest kept rows that predictions are made from
WORST = -4.6  # nats: no single row decides


def gains(
    phi: Float[np.ndarray, "n K"],
    known: Int[np.ndarray, " m"],
    previous: Int[np.ndarray, " rows"] | None,
    action: Int[np.ndarray, " rows"],
    outcome: Int[np.ndarray, " rows"],
    num_actions: int,
) -> Float[np.ndarray, " n"]:
    """Nats by which labels predict the contexts of n fresh rows from m kept ones, which come first."""
    contexts = Contexts(previous, action, outcome, num_actions)
    contexts.use[len(known) :] = 0.0
    label = np.eye(phi.shape[1], dtype=np.float32)[known]
    q = np.concatenate([label, phi.astype(np.float32)])[:, None]
    ratio = contexts.ratios(q, shares(label[:, None]))[len(known) :, 0]
    return np.maximum(np.log(np.maximum((phi * ratio).sum(1), 1e-9)), WORST)


def observe(
    state: GeneralState,
    x: Float[np.ndarray, "E levels D"],
    label: Int[np.ndarray, "E levels"],
    action: Int[np.ndarray, "E H"],
    num_actions: int,
) -> None:
    """Note in place how well the labels predict further episodes."""
    n = int(state.data.size)
    first = max(n - KEPT, 0)
    old, tried = state.data.label[first:n], state.data.action[first:n]
    if float(state.transfer) > 0:  # labels of other levels proved right
        return
    for h in np.flatnonzero((state.decoders.kind == KERNEL) & (state.decoders.states > 1)):
        both, acted = np.concatenate([old, label]), np.concatenate([tried, action])
        previous = both[:, h - 1] * num_actions + acted[:, h - 1] if h else None
        outcome = both[:, h + 1] if h + 1 < action.shape[1] else np.zeros(len(both), np.int32)
        phi = probabilities(predictions(state.decoders, int(h), x[:, h]))
        known = np.clip(old[:, h] - 1, 0, phi.shape[1] - 1)
        state.fresh_score[h] += gains(phi, known, previous, acted[:, h], outcome, num_actions).sum()
        state.fresh_rows[h] += len(x)


def withdraw(state: GeneralState, settled: float) -> list[int]:
    """Forget the labels of levels that failed and are worth less than `settled`, in place; these levels."""
    tested = state.fresh_rows >= ROWS
    failed = tested & (state.fresh_score < -MOST_LOSS * state.fresh_rows) & (state.decoders.kind == KERNEL)
    failed &= state.value < settled
    for h in np.flatnonzero(failed):
        put_one(state.decoders, int(h))
        state.data.label[: int(state.data.size), h] = 1
        state.value[h], state.choice[h], state.race[h] = 0.0, 0, 0
        state.charge[h] += DEARER
    state.fresh_rows[tested], state.fresh_score[tested] = 0, 0.0
    return [int(h) for h in np.flatnonzero(failed)]
