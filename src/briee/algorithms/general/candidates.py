"""The states of a level: candidates propose them, the best predictor of contexts wins."""

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from briee.algorithms.general.clouds import find_clouds
from briee.algorithms.general.config import GeneralConfig
from briee.algorithms.general.contexts import Contexts
from briee.algorithms.general.decoders import CLOUDS, COORDINATES
from briee.algorithms.general.whitening import whiten


class Rows(NamedTuple):
    """Rows of a level, with what surrounds them."""

    observation: Float[np.ndarray, "n D"]
    label: Int[np.ndarray, " n"]
    previous: Int[np.ndarray, " n"] | None
    action: Int[np.ndarray, " n"]
    outcome: Int[np.ndarray, " n"]


class Found(NamedTuple):
    """A decoder, its score in nats, and the labels of the rows it was fitted to."""

    decoder: dict[str, Any]
    value: float
    label: Int[np.ndarray, " n"]


def fit_level(rows: Rows, num_actions: int, config: GeneralConfig) -> Found:
    """The best candidate."""
    x = rows.observation.astype(np.float64)
    white = whiten(x, rows.label, COORDINATES)
    clouds = find_clouds(x, white, config.num_latents)
    contexts = Contexts(rows.previous, rows.action, rows.outcome, num_actions)
    value = 0.0
    if contexts.informative:
        value = float(contexts.scores(clouds.left_out[:, None].astype(np.float32)).sum())
    decoder = {
        "kind": CLOUDS,
        "mean": white.mean,
        "transform": white.transform,
        "centre": clouds.centre,
        "weight": clouds.weight,
        "bias": clouds.bias,
        "group": np.arange(len(clouds.bias)),
        "radius": clouds.radius,
        "states": len(clouds.bias),
    }
    return Found(decoder, value, (clouds.part + 1).astype(np.int32))
