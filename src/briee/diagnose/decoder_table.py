"""Decoded states of observations drawn from each true latent state, as a table and as a figure (Appendix E).

Works only for environments that reveal their latent states; nothing here reaches a learner.
"""

import textwrap
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray
from scipy.optimize import linear_sum_assignment

from briee.compute import quick_jit
from briee.protocols import Algorithm, S, Sampler

SAMPLES = 50
"""Observations per latent state and level (Appendix E)."""
LEAST_SHARE = 1e-3  # of the colours of the figure


class DecoderTable(NamedTuple):
    """Decoded states by true latent state, for H levels, Z latent states and K decoded ones."""

    average: np.ndarray
    """f64[H, Z, K]: mean decoded state of the observations of a latent state."""
    frequency: np.ndarray
    """f64[H, Z, K]: share of these observations whose largest entry is k."""
    reachable: np.ndarray
    """bool[H, Z]: latent states that some policy reaches."""
    group: np.ndarray
    """int[H, Z]: latent states with equal transitions share a number; a decoder need not separate them."""

    @property
    def num_used(self) -> int:
        """Number of decoded states up to the last one that anything is decoded to: what figures show."""
        return int(np.flatnonzero((self.average > LEAST_SHARE).any((0, 1))).max(initial=0)) + 1


@quick_jit
def draw_observations(
    pure: Any, key: PRNGKeyArray, samples: int = SAMPLES
) -> Float[Array, "H Z samples ..."]:
    """`samples` observations of every latent state at every level; `pure` must have `emit`."""
    shape = (pure.horizon, pure.num_latents, samples)
    level, latent, _ = (index.reshape(-1) for index in jnp.indices(shape))
    # One flat map, because nested maps with keys folded inside take six times as long to compile.
    drawn = jax.vmap(pure.emit)(latent, level, jax.random.split(key, level.size))
    return drawn.reshape(*shape, *drawn.shape[1:])


def decoder_table(
    algorithm: Algorithm[S], state: S, observations: Float[Array, "H Z samples ..."]
) -> DecoderTable:
    """Decode `observations` made by `draw_observations`."""
    horizon, num_latents, samples = observations.shape[:3]
    flat = observations.reshape(horizon, num_latents * samples, *observations.shape[3:])
    decoded = np.asarray(algorithm.decode_levels(state, flat), float)
    decoded = decoded.reshape(horizon, num_latents, samples, -1)
    winner = np.eye(decoded.shape[-1])[decoded.argmax(-1)]
    return DecoderTable(decoded.mean(2), winner.mean(2), *_latent_facts(algorithm.sampler))


def decoder_accuracy(table: DecoderTable) -> float:
    """Mean share of correctly decoded observations, over levels and the reachable latent states of each.

    Each decoded state represents the group of latent states it occurs with most often, so neither the order
    of the decoded states nor surplus ones count as errors.
    """
    shares = []
    for frequency, reachable, group in zip(table.frequency, table.reachable, table.group, strict=True):
        groups = np.unique(group[reachable])
        by_group = np.stack([frequency[reachable & (group == g)].sum(0) for g in groups])
        shares.append(by_group.max(0).sum() / reachable.sum())
    return float(np.mean(shares))


@lru_cache(maxsize=1)
def _latent_facts(sampler: Sampler) -> tuple[np.ndarray, np.ndarray]:
    """Reachable latent states bool[H, Z], and groups int[H, Z] of latent states with equal transitions."""
    model = sampler.knowledge.latent_model
    assert model is not None
    group = np.zeros(model.reward.shape[:2], int)
    for h, transition in enumerate(model.transition):
        rows = transition.round(9).reshape(len(transition), -1)
        group[h] = np.unique(rows, axis=0, return_inverse=True)[1].ravel()  # of shape [Z, 1] in NumPy 2.0
    return model.reachable()[: model.horizon], group


def match_states(average: np.ndarray) -> np.ndarray:
    """Best one-to-one match at one level, f64[Z, K]: the decoded state int[Z] of each latent state, or -1."""
    rows, columns = linear_sum_assignment(average, maximize=True)
    matched = np.full(average.shape[0], -1)
    matched[rows] = columns
    return matched


def draw_decoder(table: DecoderTable, path: Path, title: str = "") -> None:
    """Save a heat map per latent state: levels along x, decoded states along y, logarithmic colours."""
    from matplotlib.colors import LogNorm
    from matplotlib.figure import Figure

    horizon, num_latents, _ = table.average.shape
    num_decoded = table.num_used
    matched = np.stack([match_states(average) for average in table.average])
    figure = Figure(figsize=(min(4 + 0.3 * horizon, 16), 1.2 + 1.15 * num_latents), layout="constrained")
    axes = figure.subplots(num_latents, 1, sharex=True, squeeze=False)[:, 0]
    for z, axis in enumerate(axes):
        shares = np.where(table.reachable[:, z, None], table.average[:, z, :num_decoded], np.nan).T
        axis.set_facecolor("0.85")
        scale = LogNorm(LEAST_SHARE, 1)
        axis.imshow(np.clip(shares, LEAST_SHARE, 1), norm=scale, aspect="auto", interpolation="nearest")
        seen = np.flatnonzero(table.reachable[:, z] & (matched[:, z] >= 0))
        axis.plot(seen, matched[seen, z], "o", color="white", markeredgecolor="black", markersize=3)
        axis.set_ylabel(f"latent {z}\ndecoded", fontsize=9)
        axis.set_yticks(range(num_decoded))
    axes[-1].set_xlabel("level")
    axes[-1].xaxis.get_major_locator().set_params(integer=True)
    figure.colorbar(axes[0].images[0], ax=list(axes), label="mean of decoded state (log scale)", shrink=0.9)
    note = "dots: the decoded state that stands for a latent state at a level; grey: never reached"
    axes[0].set_title(
        "\n".join(textwrap.wrap(f"{title} ({note})", int(15 * figure.get_figwidth()))), fontsize=8
    )
    figure.savefig(path, dpi=150)
