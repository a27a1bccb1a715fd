"""RepLearn, Algorithm 2, with exact oracles: argmax and argmin over a finite class by enumeration.

The data is counts [S, A, S], which suffice for finitely many observations, so 10^12 samples cost as much as
ten. With one-hot features the loss of line 3 is a quadratic form:
k min_w L(phi, w, f) = sum_i f(s'_i)^2 - f' G_phi f, where G_phi = sum over (z, a) of u u' / (N(z, a) + lam)
and u counts the next observations. So line 5 maximises f' (G_other - G_current) f.
"""

from dataclasses import dataclass

import numpy as np

from briee.algorithms.theory.discriminators import Discriminators


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
