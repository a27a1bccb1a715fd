"""Figure of the decoders of a run (Appendix E)."""

import textwrap
from pathlib import Path

import numpy as np
from scipy.optimize import linear_sum_assignment

from briee.diagnose.decoder_table import DecoderTable


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

    horizon, num_latents, num_decoded = table.average.shape
    matched = np.stack([match_states(average) for average in table.average])
    figure = Figure(figsize=(min(4 + 0.3 * horizon, 16), 1.2 + 1.15 * num_latents), layout="constrained")
    axes = figure.subplots(num_latents, 1, sharex=True, squeeze=False)[:, 0]
    for z, axis in enumerate(axes):
        shares = np.where(table.reachable[:, z, None], table.average[:, z], np.nan).T
        axis.set_facecolor("0.85")
        axis.imshow(np.clip(shares, 1e-3, 1), norm=LogNorm(1e-3, 1), aspect="auto", interpolation="nearest")
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
