"""Experiments as data: one module for each, with its settings, its claim and its plot.

`runner` carries them out for `briee reproduce`. This room may import `training` and everything to its left,
but neither `agent` nor `report`.
"""

FIGURES = (
    "fig1b",
    "fig2b",
    "fig2c",
    "decoder",
    "ablation",
    "ablation-efficient",
    "ablation-protocol",
    "rivals",
)
"""Experiments by name; each has a module with a `FIGURE`."""
