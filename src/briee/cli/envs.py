"""`briee envs`: list the environments and their arguments."""

import dataclasses
import inspect
import shutil
import textwrap
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

    width = min(shutil.get_terminal_size().columns, 110)
    first: dict[object, tuple[str, dict[str, str]]] = {}
    for about in describe_all():
        entry = ENVIRONMENTS[about.name]
        sizes = f"horizon {about.horizon}, {about.num_actions} actions, {about.num_latents} latent states"
        numbers = f"observation {about.observation_shape}, optimal return {about.optimal_return:.4g}"
        parameters = inspect.signature(entry.constructor).parameters
        defaults = {key: entry.defaults.get(key, parameter.default) for key, parameter in parameters.items()}
        shown = {key: "by horizon" if callable(value) else repr(value) for key, value in defaults.items()}
        shown.pop("horizon")
        name, others = first.setdefault(entry.constructor, (about.name, shown))
        arguments = [
            f"{key}={value}" for key, value in shown.items() if name == about.name or others[key] != value
        ]
        like = "" if name == about.name else f"as {name}, but "
        print(f"{about.name}  ({about.id})")
        for line in (about.summary, f"{sizes}, {numbers}", f"--env. {like}{', '.join(arguments)}"):
            print(textwrap.fill(line, width, initial_indent="    ", subsequent_indent="    "))
    print("Any other environment with discrete actions: its Gymnasium id, module:id, or FILE.py:Class;")
    print("--rich shows Discrete observations as noisy vectors or images (docs/environments.md).")
    return 0
