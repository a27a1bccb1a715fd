"""RepLearn, Algorithm 2, as a game on held-out rows.

Symbols: x white observations s, F values f(s') of the discriminators [n, m], phi = psi ⊗ e_a with psi =
softmax(M [x, 1]), rival phi tilde, T rounds. The paper's game, played differently: f comes from a finite
class (`discriminator_class`), the ridge weights are eliminated and the features fitted by L-BFGS
(`projected_loss`), and both sides of line 5 are compared on rows that neither was fitted to, so that a rival
cannot win by fitting noise. In the fit, z are coordinates of observations [n, d], W_a ridge weights and lam
their regularisation.
"""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int

from briee.algorithms.paper.config import HeldOutConfig
from briee.algorithms.paper.discriminator_class import LARGEST, orthonormal_basis, top_directions
from briee.algorithms.paper.starts import LEAST_BIAS, Units, labels, prototypes, psi
from briee.compute import quick_jit
from briee.numerics.linalg import minimise, ridge

PRINCIPAL, FUTURE = 3, 4  # directions of x of largest variance, and those that explain F best
PRIOR_TRIES = 5.0  # damps the correlations of actions that were tried only a few times
MISSED = 0.5  # rows whose error exceeds this share of the largest one count as missed
ALIKE = 0.995  # starts that agree on more rows than this are one start
SHARP = 2.0  # temperature of units placed at missed rows


class Level(NamedTuple):
    """The data of one level: white observations, actions, values of F, and the fold of each row."""

    x: Float[np.ndarray, "n D"]
    action: Int[np.ndarray, " n"]
    F: Float[np.ndarray, "n m"]
    fold: Int[np.ndarray, " n"]
    num_actions: int
    num_folds: int


class Played(NamedTuple):
    """Features, the last verdict's largest gap, rounds played, and whether line 6 accepted."""

    units: Units
    gap: float
    rounds: int
    accepted: bool


def play(level: Level, units: Units, pool: Sequence[Units], config: HeldOutConfig) -> Played:
    """Algorithm 2 from these first features; `pool` holds further starts of both players."""
    if level.F.shape[1] == 0:  # nothing that comes next can be told apart: line 6 accepts
        return Played(units, 0.0, 1, True)
    game, found, gap = Game(level, pool, config), [], 0.0
    for t in range(config.rounds):
        f, gap = game.select_discriminator(units)  # Alg. 2, l. 5
        if f is None:  # Alg. 2, l. 6
            return Played(units, gap, t + 1, True)
        found.append(f)
        new = game.select_features(units, found)  # Alg. 2, l. 7
        if held_out_loss(new, level) >= held_out_loss(units, level):
            return Played(units, gap, t + 1, True)  # not better on held-out rows: the verdict was chance
        units = new
    return Played(units, gap, config.rounds, False)


class Game:
    """The two players on the data of one level."""

    def __init__(self, level: Level, pool: Sequence[Units], config: HeldOutConfig):
        self.level, self.pool, self.config = level, pool, config
        n = len(level.x)
        self.masks = [level.fold != k for k in range(level.num_folds)] + [np.ones(n, bool)]
        centred = level.x - level.x.mean(0)
        self.principal = top_directions(centred.T @ centred, PRINCIPAL)
        self.futures = [future_directions(level, mask) for mask in self.masks]
        self.rows = max(config.rows, n)
        self.one_hot = self.padded(np.eye(level.num_actions)[level.action])

    def select_discriminator(self, units: Units) -> tuple[int | None, float]:
        """Alg. 2, l. 5: the f on which a rival is clearly better on held-out rows, and by how much; None if
        there is no such f.

        First a rival that is fitted to all f at once, then one for each of the f that the features predict
        worst, until one of them is clearly better.
        """
        F, config = self.level.F, self.config
        known = self.distinct(units)
        bases = [self.basis(future, known) for future in self.futures]
        own = held_out_errors([psi(units, self.level.x)] * self.level.num_folds, self.level, F)
        worst = [int(j) for j in np.argsort(-own.sum(0)) if own[:, j].sum() > config.gain]
        largest, alone = 0.0, worst[: config.singles] if len(worst) > 1 else []
        for columns in [worst, *([j] for j in alone)] if worst else []:
            rivals = []
            for mask, basis in zip(self.masks[:-1], bases[:-1], strict=True):
                starts = [*known, *self.at_missed_rows(units, F[:, columns], mask, basis)]
                rivals.append(self.fit(starts, basis, mask, F[:, columns], config.rival_evaluations))
            delta = own[:, columns] - held_out_errors(
                [psi(rival, self.level.x) for rival in rivals], self.level, F[:, columns]
            )
            gap, clear = delta.sum(0), clearly_positive(delta, config)
            largest = max(largest, float(gap.max()))
            if clear.any():
                best = int(np.argmax(np.where(clear, gap, -np.inf)))
                return columns[best], float(gap[best])
        return None, largest

    def select_features(self, units: Units, found: list[int]) -> Units:
        """Alg. 2, l. 7: least squares on all discriminators so far, from several starts."""
        F, everything = self.level.F[:, found], self.masks[-1]
        known = self.distinct(units)
        basis = self.basis(self.futures[-1], known)
        starts = [*known, *self.at_missed_rows(units, F, everything, basis)]
        rival = self.fit(starts, basis, everything, F[:, -1:], self.config.rival_evaluations)
        starts += [rival, *self.at_missed_rows(rival, F, everything, basis)]
        return self.fit(starts, basis, everything, F, self.config.evaluations)

    def distinct(self, units: Units) -> list[Units]:
        """These features, and starts that split the rows in another way; of two alike, the sharper one."""
        chosen, seen = [units], [labels(units, self.level.x)]
        for start in sorted(self.pool, key=lambda start: -np.linalg.norm(start[:, :-1])):
            label = labels(start, self.level.x)
            if all(agreement(label, other) < ALIKE for other in seen):
                chosen.append(start)
                seen.append(label)
        return chosen

    def basis(self, future: Float[np.ndarray, "D k"], known: Sequence[Units]) -> Float[np.ndarray, "D d"]:
        """The subspace of a fit: far fewer directions than D, so that a decoder cannot tell rows apart by
        chance."""
        known_first = [units[:, :-1].T for units in known]
        columns = np.concatenate([known_first[0], self.principal, future, *known_first[1:]], axis=1)
        return orthonormal_basis(columns)[:, : self.config.directions]

    def fit(
        self,
        starts: Sequence[Units],
        basis: Float[np.ndarray, "D d"],
        mask: Bool[np.ndarray, " n"],
        F: Float[np.ndarray, "n T"],
        evaluations: int,
    ) -> Units:
        """Least squares on these rows and columns, in the subspace of `basis`."""
        missing = self.config.directions - basis.shape[1]
        basis = np.pad(
            basis, ((0, 0), (0, max(missing, 0)))
        )  # the same sizes for all levels: one compilation
        inside = np.stack([np.column_stack([u[:, :-1] @ basis, u[:, -1]]) for u in starts])
        z, weight = self.padded(self.level.x @ basis), self.padded(mask.astype(float))
        wide = np.pad(F, ((0, 0), (0, (LARGEST if F.shape[1] > 1 else 1) - F.shape[1])))
        fitted = best_units(
            inside.astype(np.float32), z, self.one_hot, weight, self.padded(wide), evaluations
        )
        fitted = np.asarray(fitted, float)
        return np.column_stack([fitted[:, :-1] @ basis.T, fitted[:, -1]])

    def at_missed_rows(
        self,
        units: Units,
        F: Float[np.ndarray, "n T"],
        mask: Bool[np.ndarray, " n"],
        basis: Float[np.ndarray, "D d"],
    ) -> list[Units]:
        """Two starts that may explain what the features predict worst: units at the mean of the missed rows
        of the worst actions, one each; and the features with one such unit instead of the smallest."""
        z, K, action = self.level.x @ basis, len(units), self.level.action
        error = residuals(psi(units, self.level.x), self.level, F) * mask[:, None]
        worst = error[:, np.argmax((error**2).sum(0))]
        worst = worst if worst.max() > -worst.min() else -worst
        missed = np.where(worst > MISSED * worst.max(), worst, 0)
        energy = np.bincount(action, missed**2, self.level.num_actions)
        centre = np.median(z, axis=0)
        means = [
            missed[action == a] @ z[action == a] / missed[action == a].sum() if energy[a] > 0 else centre
            for a in np.argsort(-energy)[: K - 1]
        ]
        fresh = np.stack([*means, centre]) if means else centre[None]
        label = psi(units, self.level.x).argmax(1)
        size = np.bincount(label, minlength=K)
        old = np.stack(
            [np.median(z[label == k], axis=0) if size[k] else np.zeros(z.shape[1]) for k in range(K)]
        )
        old[size.argmin()] = fresh[0]
        far = np.full(K, np.inf)
        placed = [prototypes(centres, far[: len(centres)], z.shape[1], SHARP) for centres in (fresh, old)]
        unused = np.zeros((K - len(fresh), z.shape[1] + 1))  # there are fewer actions than units
        unused[:, -1] = LEAST_BIAS
        placed[0] = np.concatenate([placed[0], unused])
        return [np.column_stack([u[:, :-1] @ basis.T, u[:, -1]]) for u in placed]

    def padded(self, array: Float[np.ndarray, "n ..."]) -> Float[np.ndarray, "rows ..."]:
        """The array with further rows of zeros, so that one compilation serves all numbers of rows."""
        missing = self.rows - len(array)
        return np.pad(array, [(0, missing), *[(0, 0)] * (array.ndim - 1)]).astype(np.float32)


def agreement(one: Int[np.ndarray, " n"], two: Int[np.ndarray, " n"]) -> float:
    """The share of rows in which one partition is a function of the other, whichever share is smaller."""
    table = np.zeros((one.max() + 1, two.max() + 1))
    np.add.at(table, (one, two), 1)
    return float(min(table.max(0).sum(), table.max(1).sum()) / len(one))


def future_directions(level: Level, mask: Bool[np.ndarray, " n"]) -> Float[np.ndarray, "D k"]:
    """Directions of x that best explain F on these rows, action by action."""
    products = []
    for a in range(level.num_actions):
        rows = mask & (level.action == a)
        if rows.sum() > 1:
            x, F = level.x[rows], level.F[rows]
            products.append((x - x.mean(0)).T @ (F - F.mean(0)) / np.sqrt(rows.sum() + PRIOR_TRIES))
    joined = np.concatenate(products, 1) if products else np.zeros((level.x.shape[1], 1))
    return top_directions(joined @ joined.T, FUTURE)


def held_out_errors(
    psis: Sequence[Float[np.ndarray, "n K"]], level: Level, F: Float[np.ndarray, "n T"]
) -> Float[np.ndarray, "n T"]:
    """Squared errors on each fold of the ridge weights of the others; the features may differ by fold."""
    errors = np.zeros_like(F)
    for k in range(level.num_folds):
        test = level.fold == k
        W = ridge_weights(psis[k][~test], level.action[~test], F[~test], level.num_actions)
        errors[test] = (np.einsum("nk,nkt->nt", psis[k][test], W[level.action[test]]) - F[test]) ** 2
    return errors


def clearly_positive(delta: Float[np.ndarray, "n *T"], config: HeldOutConfig) -> Bool[np.ndarray, "*T"]:
    """Whether differences of held-out errors, summed over rows, exceed `gain` and `z` standard errors."""
    return np.asarray(delta.sum(0) > np.maximum(config.gain, config.z * np.sqrt((delta**2).sum(0))))


def row_errors(units: Units, level: Level) -> Float[np.ndarray, " n"]:
    """The held-out errors of rows, summed over all f."""
    return held_out_errors([psi(units, level.x)] * level.num_folds, level, level.F).sum(1)


def held_out_loss(units: Units, level: Level) -> float:
    """The held-out loss over all f."""
    return float(row_errors(units, level).sum())


def residuals(
    psi: Float[np.ndarray, "n K"], level: Level, F: Float[np.ndarray, "n T"]
) -> Float[np.ndarray, "n T"]:
    """The part of the target that the features leave unexplained on the rows they were fitted to."""
    W = ridge_weights(psi, level.action, F, level.num_actions)
    return F - np.einsum("nk,nkt->nt", psi, W[level.action])


def ridge_weights(
    psi: Float[np.ndarray, "n K"],
    action: Int[np.ndarray, " n"],
    F: Float[np.ndarray, "n T"],
    num_actions: int,
) -> Float[np.ndarray, "A K T"]:
    """W_a, block by block."""
    K = psi.shape[1]
    features = (np.eye(num_actions)[action][:, :, None] * psi[:, None, :]).reshape(len(psi), -1)
    gram = (features.T @ psi).reshape(num_actions, K, K) + RIDGE * np.eye(K)
    return np.linalg.solve(gram, (features.T @ F).reshape(num_actions, K, -1))


RIDGE = 0.1  # lam, on the sum over rows: a tenth of a row
DECAY = 0.02  # of the squared weights of the decoder, on the same sum: keeps the features soft


def projected_loss(
    M: Float[Array, " numbers"],
    z: Float[Array, "n d"],
    action: Float[Array, "n A"],
    weight: Float[Array, " n"],
    F: Float[Array, "n T"],
) -> Float[Array, ""]:
    """min_W sum_i w_i ||F_i - W_{a_i}^T psi(z_i)||^2 + lam ||W||^2, plus the decay (Alg. 2, l. 3, as a sum).

    At the minimum the derivative by W is zero, so the gradient treats W as a constant (envelope theorem).
    """
    units = M.reshape(-1, z.shape[1] + 1)
    psi = jax.nn.softmax(z @ units[:, :-1].T + units[:, -1])
    fixed = jax.lax.stop_gradient(psi)
    K = fixed.shape[1]
    features = (action[:, :, None] * (fixed * weight[:, None])[:, None, :]).reshape(len(fixed), -1)
    gram = (features.T @ fixed).reshape(-1, K, K)
    W = ridge(gram, (features.T @ F).reshape(-1, K, F.shape[1]), RIDGE)
    predicted = jnp.einsum("nk,nkt->nt", psi, jnp.tensordot(action, W, 1))
    error = jnp.sum(weight[:, None] * (predicted - F) ** 2)
    return error + RIDGE * jnp.sum(W**2) + DECAY * jnp.sum(units[:, :-1] ** 2)


@quick_jit
def best_units(
    starts: Float[ArrayLike, "S K columns"],
    z: Float[ArrayLike, "n d"],
    action: Float[ArrayLike, "n A"],
    weight: Float[ArrayLike, " n"],
    F: Float[ArrayLike, "n T"],
    evaluations: int,
) -> Float[Array, "K columns"]:
    """The best of the local minima from these starts, by L-BFGS."""
    z, action, weight, F, starts = (jnp.asarray(array) for array in (z, action, weight, F, starts))
    loss = partial(projected_loss, z=z, action=action, weight=weight, F=F)
    flat = starts.reshape(starts.shape[0], -1)
    ends, values = jax.lax.map(lambda start: minimise(loss, start, evaluations), flat)
    return ends[jnp.argmin(jnp.where(jnp.isfinite(values), values, jnp.inf))].reshape(starts.shape[1:])
