"""Experiments as data: each has its settings, its claim and its plot.

`runner` carries them out for `briee reproduce`. This room may import `training` and everything to its left,
but neither `agent` nor `report`.
"""

FIGURES = {
    "fig1b": "paper_figures:FIG1B",
    "fig2b": "paper_figures:FIG2B",
    "fig2c": "paper_figures:FIG2C",
    "decoder": "paper_figures:DECODER",
    "ablation": "ablations:ABLATION",
    "ablation-efficient": "ablations:EFFICIENT",
    "ablation-general": "ablations:GENERAL",
    "ablation-protocol": "ablations:PROTOCOL",
    "rivals": "rivals:RIVALS",
    "worlds": "worlds:WORLDS_FIGURE",
}
"""Where the experiment of a name is: module and variable."""
