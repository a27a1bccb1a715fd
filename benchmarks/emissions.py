"""Draw observations of the three latent states of a lock for each emission: docs/images/emissions.png.

python benchmarks/emissions.py [--file docs/images/emissions.png]
"""

import argparse
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

from briee import envs
from briee.envs.emission import IMAGES, KINDS

SAMPLES = 80
COLOURS = ("#3f7fd1", "#2f9e77", "#8a8a8a")
WORLDS: dict[str, dict[str, Any]] = {kind: {"emission": kind} for kind in KINDS} | {
    "exogenous": {"exogenous": 17},
    "heavy tails": {"degrees_of_freedom": 2.5, "noise": 0.08},
}


def observations(arguments: dict[str, Any]) -> np.ndarray:
    """f32[3, SAMPLES, ...]: observations of the latent states at level 2."""
    pure = envs.make("lock", horizon=8, num_actions=5, instance_seed=1, **arguments)
    keys = jax.random.split(jax.random.key(0), (3, SAMPLES))
    emit = jax.vmap(jax.vmap(pure.emit, (None, None, 0)), (0, None, 0))
    return np.asarray(jax.jit(emit)(jnp.arange(3), jnp.int32(2), keys))


def main() -> None:
    """Images as they are, vectors by their two first principal components."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--file", type=Path, default=Path("docs/images/emissions.png"))
    file = parser.parse_args().file
    figure = Figure(figsize=(10, 7.5), layout="constrained")
    panels = np.ravel(np.asarray(figure.subfigures(3, 3)))
    for panel, (name, arguments) in zip(panels, WORLDS.items(), strict=True):
        rows = observations(arguments)
        panel.suptitle(f"{name}: {' × '.join(map(str, [n for n in rows.shape[2:] if n > 1]))}", fontsize=10)
        if arguments.get("emission") in IMAGES:
            axes = panel.subplots(3, 5)
            for axis, image in zip(axes.ravel(), rows[:, :5].reshape(15, *rows.shape[2:]), strict=True):
                axis.imshow(image[..., 0], cmap="gray_r", vmin=0, vmax=1)
                axis.set_axis_off()
            continue
        axis, flat = panel.subplots(), rows.reshape(3 * SAMPLES, -1)
        centred = flat - np.median(flat, axis=0)
        plane = np.linalg.svd(centred, full_matrices=False)[2][:2]
        for latent, colour in enumerate(COLOURS):
            x, y = plane @ centred.reshape(3, SAMPLES, -1)[latent].T
            axis.plot(x, y, ".", color=colour, markersize=4, label=("good 0", "good 1", "bad")[latent])
        axis.set_xticks([])
        axis.set_yticks([])
    figure.axes[0].legend(fontsize=7, frameon=False)
    figure.savefig(file, dpi=90)


if __name__ == "__main__":
    main()
