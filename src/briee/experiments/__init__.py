"""Experiments, one module of data each; `runner` carries them out."""

FIGURES = ("fig1b", "fig2b", "fig2c", "decoder", "ablation", "ablation-efficient")
"""Experiments by name; each has a module with a `FIGURE`."""
