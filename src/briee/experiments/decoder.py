"""Decoders at H = 25 (Appendix E): do learned latent states match the true ones?

If both good states share the right action, merging them is correct, and the accuracy counts it so. Each run
directory also has the heat map of the paper's figure, decoder.png.
"""

from functools import partial

from briee.experiments.plots import plot_curves
from briee.experiments.setting import SEEDS, Experiment, for_seeds

FIGURE = Experiment(
    claim="The decoders of a solved lock are nearly one-hot and name the latent states up to a permutation.",
    settings=(
        *for_seeds(SEEDS, "efficient", "default", "lock", 25, 100_000),
        *for_seeds(SEEDS, "briee", "practical", "lock", 25, 8_000),
        *for_seeds(SEEDS, "briee", "paper", "lock", 25, 200_000),
    ),
    plot=partial(plot_curves, column="decoder_accuracy", log=True),
)
