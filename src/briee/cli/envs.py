"""`briee envs`: list the environments and their arguments."""

import dataclasses
import inspect
from collections.abc import Sequence

from briee.cli.main import parse
from briee.compute import prepare_process


@dataclasses.dataclass(frozen=True)
class EnvsArgs:
    """List the environments and their arguments."""


def run(argv: Sequence[str]) -> int:
    """Run the command; returns the exit code."""
    parse(EnvsArgs, argv, "briee envs")
    prepare_process()
    from briee.envs.registry import ENVIRONMENTS, describe_all

    for about in describe_all():
        entry = ENVIRONMENTS[about.name]
        print(f"{about.name}  ({about.id})\n    {about.summary}")
        sizes = f"horizon {about.horizon}, {about.num_actions} actions, {about.num_latents} latent states"
        print(
            f"    {sizes}, observation {about.observation_shape}, optimal return {about.optimal_return:.4g}"
        )
        parameters = inspect.signature(entry.constructor).parameters
        defaults = {key: entry.defaults.get(key, parameter.default) for key, parameter in parameters.items()}
        shown = {key: "by horizon" if callable(value) else repr(value) for key, value in defaults.items()}
        print("    --env. " + ", ".join(f"{key}={value}" for key, value in shown.items() if key != "horizon"))
    print("Any other environment with discrete actions: its Gymnasium id, module:id, or FILE.py:Class;")
    print("--rich shows Discrete observations as noisy vectors or images (docs/environments.md).")
    return 0
