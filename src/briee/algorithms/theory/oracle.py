"""Exact oracles: RepLearn, Algorithm 2, by enumeration of a finite class, and values by dynamic programming.

The data is counts [S, A, S], which suffice for finitely many observations, so 10^12 samples cost as much as
ten. With one-hot features the loss of line 3 is a quadratic form:
k min_w L(phi, w, f) = sum_i f(s'_i)^2 - f' G_phi f, where G_phi = sum over (z, a) of u u' / (N(z, a) + lam)
and u counts the next observations. So line 5 maximises f' (G_other - G_current) f.

Symbols: H levels, Z latent states, A actions, S observations per level, M decoders per level. Observation s
of level h belongs to latent state `truth[h, s]` alone. Float64 throughout.

The discriminator classes of Section 4 are affine images of boxes. With one-hot features a discriminator
assigns a number to each cell of a partition of the observations: F1 is x[psi(s)] - y[psi'(s)], F2 is max_a
(r(s, a) / (2H + 1) + v[psi(s), a]). A `Pieces` is a union of sets {B x + o : low <= x <= high}. F1 is such a
union. F2 is one if no decoder merges observations of different rewards; otherwise it lies between two of
them, `inner` and `outer`, which bound the gap.
"""

from dataclasses import dataclass
from itertools import combinations, product

import numpy as np

from briee.envs.finite_block import BlockMDP

TOLERANCE = 1e-12


@dataclass(frozen=True)
class Pieces:
    """A union of P affine images of boxes: basis [P, S, n], offset [P, S], low and high [P, n]."""

    basis: np.ndarray
    offset: np.ndarray
    low: np.ndarray
    high: np.ndarray

    def maximise(self, forms: np.ndarray) -> tuple[float, np.ndarray, int]:
        """max f'Mf over the union and over the matrices M of forms [J, S, S]: value, f [S], and which M."""
        J, P, n = len(forms), *self.low.shape
        transformed = np.einsum("psi,jst->jpit", self.basis, forms)
        matrix = np.einsum("jpit,ptk->jpik", transformed, self.basis).reshape(J * P, n, n)
        matrix = (matrix + matrix.transpose(0, 2, 1)) / 2.0  # exactly symmetric, despite rounding
        slope = np.einsum("jpit,pt->jpi", transformed, self.offset).reshape(J * P, n)
        constant = np.einsum("ps,jst,pt->jp", self.offset, forms, self.offset).ravel()
        x, value = maximise(matrix, slope, np.tile(self.low, (J, 1)), np.tile(self.high, (J, 1)))
        best = int(np.argmax(value + constant))
        j, p = divmod(best, P)
        return float(value[best] + constant[best]), self.basis[p] @ x[best] + self.offset[p], j

    def sample(self, rng: np.random.Generator) -> np.ndarray:
        """Some f [S] of the union: a random point of a random box."""
        p = rng.integers(len(self.low))
        return self.basis[p] @ rng.uniform(self.low[p], self.high[p]) + self.offset[p]

    def bound(self) -> float:
        """The largest |f(s)| in the union."""
        up = np.maximum(self.basis * self.high[:, None], self.basis * self.low[:, None]).sum(axis=2)
        down = np.minimum(self.basis * self.high[:, None], self.basis * self.low[:, None]).sum(axis=2)
        return float(max((up + self.offset).max(), -(down + self.offset).min()))


@dataclass(frozen=True)
class Discriminators:
    """A class F_h between `inner` and `outer`, which are equal if the class is exact."""

    inner: list[Pieces]
    outer: list[Pieces]

    def maximise(self, forms: np.ndarray) -> tuple[float, np.ndarray, float]:
        """The best value found, its f [S], and an upper bound on every value, of max_f max_M f'Mf."""
        value, f, _ = max((piece.maximise(forms) for piece in self.inner), key=lambda found: found[0])
        outer = [piece for piece in self.outer if not any(piece is known for known in self.inner)]
        return value, f, max([value, *(piece.maximise(forms)[0] for piece in outer)])

    def sample(self, rng: np.random.Generator) -> np.ndarray:
        """Some member."""
        return self.inner[rng.integers(len(self.inner))].sample(rng)

    def bound(self) -> float:
        """L: no member is larger in absolute value."""
        return max(piece.bound() for piece in self.outer)


def indicator(labels: np.ndarray, size: int) -> np.ndarray:
    """[S, size] one-hot rows."""
    return np.eye(size)[labels]


def first_class(decoders: np.ndarray, num_latents: int) -> Pieces:
    """F1 of decoders [M, S] of level h + 1: x[psi(s)] - y[psi'(s)] with entries in [-1, 1].

    The mean over a of theta[z, a] is any number in [-1, 1], so one number per latent state is the class.
    """
    onehot = [indicator(labels, num_latents) for labels in decoders]
    pairs = [np.hstack([onehot[i], -onehot[j]]) for i in range(len(onehot)) for j in range(i, len(onehot))]
    basis = np.stack(pairs)
    shape = (len(pairs), 2 * num_latents)
    return Pieces(basis, np.zeros(basis.shape[:2]), np.full(shape, -1.0), np.ones(shape))


def second_class(
    decoders: np.ndarray, num_latents: int, reward: np.ndarray, horizon: int, c: float, signed: bool = False
) -> tuple[Pieces, Pieces]:
    """F2, as pieces inside it and around it, for decoders [M, S] and r_{h+1} [S, A].

    v = min(w, 2) / (2H + 1) + w' is any number between its bounds. w stands for a bonus, so it is in [0, c];
    `signed` takes it in [-c, c], as printed, which breaks |f| <= 2 when c > 2H + 1.
    """
    scale = 2 * horizon + 1
    low, high = -1.0 - (c if signed else 0.0) / scale, 1.0 + min(c, 2.0) / scale
    r, A = reward / scale, reward.shape[1]
    inner, outer = [], []
    for labels in decoders:
        onehot = indicator(labels, num_latents)
        rows = [np.unique(r[labels == z], axis=0) for z in range(num_latents)]
        # One action attains the maximum in a latent state: the best one if all rewards are equal, else any.
        choices = [[int(np.argmax(row[0]))] if len(row) == 1 else range(A if len(row) else 1) for row in rows]
        for rule in product(*choices):
            offset = r[np.arange(len(labels)), np.asarray(rule)[labels]]
            floor = np.full(num_latents, low)
            for z, row in enumerate(rows):
                if len(row):  # no other action may be higher, even at its lowest
                    floor[z] += (row.max(axis=1) - row[:, rule[z]]).max()
            inner.append((onehot, offset, floor, np.full(num_latents, high)))
        outer.append(_relaxed(labels, num_latents, r, low, high))
    return stack(inner), stack(outer)


def _relaxed(labels: np.ndarray, num_latents: int, r: np.ndarray, low: float, high: float):
    """All f with f(s0) in its range for one s0 per latent state, and f(s) - f(s0) between the smallest and
    the largest difference of their rewards."""
    columns, offset, bounds = [], np.zeros(len(labels)), []
    for z in range(num_latents):
        members = np.flatnonzero(labels == z)
        columns.append((labels == z).astype(float))
        bounds.append((low, high))
        if members.size == 0:
            continue
        offset[members] = r[members[0]].max()
        rows = np.unique(r[members], axis=0)
        for row in rows[(rows != r[members[0]]).any(axis=1)]:
            columns.append((labels == z) * (r == row).all(axis=1).astype(float))
            difference = row - r[members[0]]
            bounds.append((difference.min(), difference.max()))
    limits = np.asarray(bounds)
    return np.stack(columns, axis=1), offset, limits[:, 0], limits[:, 1]


def stack(pieces: list[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]]) -> Pieces:
    """Pieces of one width: absent columns are zero, their numbers too."""
    n = max(basis.shape[1] for basis, *_ in pieces)
    pad = lambda array: np.pad(array, [(0, 0)] * (array.ndim - 1) + [(0, n - array.shape[-1])])  # noqa: E731
    return Pieces(
        np.stack([pad(basis) for basis, *_ in pieces]),
        np.stack([offset for _, offset, *_ in pieces]),
        np.stack([pad(low) for *_, low, _ in pieces]),
        np.stack([pad(high) for *_, high in pieces]),
    )


def section_4(
    decoders: np.ndarray, num_latents: int, reward: np.ndarray, horizon: int, c: float, signed: bool = False
) -> Discriminators:
    """F = F1 and F2, for the features of level h + 1."""
    first = first_class(decoders, num_latents)
    inner, outer = second_class(decoders, num_latents, reward, horizon, c, signed)
    exact = inner.basis.shape == outer.basis.shape and len(inner.low) == len(decoders)
    return Discriminators([first, inner], [first, inner] if exact else [first, outer])


def maximise(
    matrix: np.ndarray, slope: np.ndarray, low: np.ndarray, high: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """argmax [B, n] and max [B] of x'Mx + 2g'x over low <= x <= high, for B problems at once.

    matrix [B, n, n] symmetric; slope, low, high [B, n]. The maximum is a stationary point in the interior of
    some face of the box, on which the function is concave. So all faces are enumerated: the vertices, and the
    stationary point for each set of free coordinates on which the matrix is negative definite. (If it is
    singular, a smaller face attains the maximum too.)
    """
    B, n = slope.shape
    corners = (np.arange(2**n)[:, None] >> np.arange(n)) & 1
    x = low[:, None] + corners * (high - low)[:, None]
    value = quadratic(matrix, slope, x)
    best = value.argmax(axis=1)
    argmax, top = x[np.arange(B), best], value[np.arange(B), best]
    scale = np.maximum(np.abs(matrix).max(axis=(1, 2)), 1e-300)
    concave = np.diagonal(matrix, axis1=1, axis2=2) < -TOLERANCE * scale[:, None]
    open_box = high > low
    for size in range(1, n + 1):
        for free in combinations(range(n), size):
            at = list(free)
            which = np.flatnonzero((concave[:, at] & open_box[:, at]).all(axis=1))
            if which.size == 0:
                continue
            block = matrix[which][:, at][:, :, at]
            definite = np.linalg.eigvalsh(block)[:, -1] < -TOLERANCE * scale[which]
            which, block = which[definite], block[definite]
            if which.size == 0:
                continue
            rest = [i for i in range(n) if i not in free]
            pattern = (np.arange(2 ** len(rest))[:, None] >> np.arange(len(rest))) & 1
            fixed = low[which][:, None, rest] + pattern * (high - low)[which][:, None, rest]
            pull = slope[which][:, at, None] + matrix[which][:, at][:, :, rest] @ fixed.transpose(0, 2, 1)
            inner = np.linalg.solve(block, -pull).transpose(0, 2, 1)
            inside = ((inner >= low[which][:, None, at]) & (inner <= high[which][:, None, at])).all(axis=2)
            x = np.zeros((which.size, len(pattern), n))
            x[..., at], x[..., rest] = inner, fixed
            value = np.where(inside, quadratic(matrix[which], slope[which], x), -np.inf)
            best = value.argmax(axis=1)
            better = value[np.arange(which.size), best] > top[which]
            top[which[better]] = value[np.arange(which.size), best][better]
            argmax[which[better]] = x[np.arange(which.size), best][better]
    return argmax, top


def quadratic(matrix: np.ndarray, slope: np.ndarray, x: np.ndarray) -> np.ndarray:
    """x'Mx + 2g'x [B, V] at the points x [B, V, n]."""
    return np.einsum("bvi,bvi->bv", x @ matrix, x) + 2.0 * np.einsum("bi,bvi->bv", slope, x)


@dataclass(frozen=True)
class RepLearnResult:
    """The chosen decoder, rounds played, line 5's objective in each round, an upper bound on the last one,
    and the discriminators [rounds, S]."""

    index: int
    rounds: int
    gaps: list[float]
    certified: float
    discriminators: list[np.ndarray]


def aggregate(counts: np.ndarray, labels: np.ndarray, num_latents: int) -> np.ndarray:
    """Counts [Z, A, S] of (psi(s), a, s')."""
    total = np.zeros((num_latents, *counts.shape[1:]))
    np.add.at(total, labels, counts)
    return total


def explained(counts: np.ndarray, labels: np.ndarray, num_latents: int, lam: float) -> np.ndarray:
    """G_phi [S, S] divided by the number k of samples: f'Gf is the part of f(s') that phi predicts."""
    u = aggregate(counts, labels, num_latents)
    weight = 1.0 / (u.sum(axis=-1) + lam)
    return np.einsum("zas,za,zat->st", u, weight, u) / max(counts.sum(), 1)


def loss(counts: np.ndarray, labels: np.ndarray, num_latents: int, lam: float, f: np.ndarray) -> float:
    """min_w L_{lam,D}(phi, w, f) (Alg. 2, l. 3), with lam / k as in Appendix B."""
    second_moment = counts.sum(axis=(0, 1)) @ f**2 / max(counts.sum(), 1)
    return float(second_moment - f @ explained(counts, labels, num_latents, lam) @ f)


def replearn(
    counts: np.ndarray,
    decoders: np.ndarray,
    num_latents: int,
    discriminators: Discriminators,
    lam: float,
    rounds: int,
    ell: float,
    start: int = 0,
) -> RepLearnResult:
    """Algorithm 2 on counts [S, A, S] for the class decoders [M, S], from decoder number `start` (l. 2)."""
    forms = np.stack([explained(counts, labels, num_latents, lam) for labels in decoders])
    index, gaps, found, certified = start, [], [], 0.0
    for _ in range(rounds):  # Alg. 2, l. 4
        gap, f, certified = discriminators.maximise(forms - forms[index])  # Alg. 2, l. 5
        gaps.append(gap)
        if gap <= ell:  # Alg. 2, l. 6
            break
        found.append(f)
        score = sum(np.einsum("s,mst,t->m", f, forms, f) for f in found)
        index = int(np.argmax(score))  # Alg. 2, l. 7
    return RepLearnResult(index, len(gaps), gaps, certified, found)


def random_class(rng: np.random.Generator, mdp: BlockMDP, size: int) -> np.ndarray:
    """Phi [H + 1, M, S]: `size` - 1 random decoders per level and psi*, which comes last."""
    H, S = mdp.horizon, mdp.truth.shape[1]
    wrong = rng.integers(mdp.num_latents, size=(H + 1, size - 1, S))
    return np.concatenate([wrong, mdp.truth[:, None]], axis=1)


def deterministic(action: np.ndarray, num_actions: int) -> np.ndarray:
    """pi [H, S, A] that takes action[h, s]."""
    return np.eye(num_actions)[action]


def occupancy(initial: np.ndarray, transition: np.ndarray, policy: np.ndarray) -> np.ndarray:
    """d_h(s, a) [H, S, A] of a policy [H, S, A]; P may be unnormalised."""
    state, result = initial, []
    for step, choice in zip(transition, policy, strict=True):
        result.append(state[:, None] * choice)
        state = np.einsum("sa,sat->t", result[-1], step)
    return np.stack(result)


def mixture(mdp: BlockMDP, policy: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """rho, beta and gamma [H, S, A] of Appendix A for data that a single policy collects; beta[0] is zero."""
    gamma = occupancy(mdp.initial, mdp.transition, policy)
    uniform = np.full(mdp.num_actions, 1.0 / mdp.num_actions)
    rho = gamma.sum(axis=2)[..., None] * uniform
    beta = np.zeros_like(rho)
    for h in range(1, mdp.horizon):
        beta[h] = np.einsum("sa,sat->t", rho[h - 1], mdp.transition[h - 1])[:, None] * uniform
    return rho, beta, gamma


def values(transition: np.ndarray, reward: np.ndarray, policy: np.ndarray) -> np.ndarray:
    """V_h(s) [H + 1, S] of a policy; P may be unnormalised."""
    V = np.zeros((len(reward) + 1, reward.shape[1]))
    for h in reversed(range(len(reward))):
        V[h] = np.sum(policy[h] * (reward[h] + transition[h] @ V[h + 1]), axis=1)
    return V


def value_iteration(transition: np.ndarray, reward: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Q [H, S, A] and V [H + 1, S] of the best policy; P may be unnormalised."""
    V, Q = np.zeros((len(reward) + 1, reward.shape[1])), np.zeros_like(reward)
    for h in reversed(range(len(reward))):
        Q[h] = reward[h] + transition[h] @ V[h + 1]
        V[h] = Q[h].max(axis=1)
    return Q, V
