"""Decoders at H = 25 (Appendix E): do learned latent states match the true ones?

The accuracy knows that where both good states share the right action, merging them is correct. Each run
directory also has the heat-map of the paper's figure, decoder.png.
"""

from pathlib import Path

from briee.experiments.plots import plot_curves
from briee.experiments.setting import SEEDS, Figure, Table, for_seeds, small


def plot(runs: Table, curves: Table, path: Path, caption: str) -> None:
    """Accuracy of the decoders against episodes."""
    plot_curves(curves, path, caption, column="decoder_accuracy", optimum=(1.0, 1.0), log=True)


SETTINGS = (
    *for_seeds(SEEDS, "briee", "efficient", "lock", 25, 100_000),
    *for_seeds(SEEDS, "briee", "paper", "lock", 25, 200_000),
)
FIGURE = Figure(
    claim="The decoders of a solved lock are nearly one-hot and name the latent states up to a permutation.",
    settings=SETTINGS,
    smoke=small(SETTINGS),
    plot=plot,
)
