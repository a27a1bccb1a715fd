"""Arguments of an agent: their checks, and what they are called in other libraries."""

import inspect
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from briee.algorithms.registry import ALGORITHMS, Choice, choose
from briee.algorithms.registry import preset as make_preset
from briee.configuration import AlgorithmConfig
from briee.protocols import Algorithm
from briee.training.loop import Callback, Row

_BUDGET = "a budget belongs to learn(episodes=...), learn(iterations=...) or learn(total_timesteps=...)"
_STATES = "the number of latent states is num_latents=..."
_STEPS = "the number of steps of an episode is horizon=..."
_SETTING = "such settings are fields of config=..., which briee.preset(algo, preset, horizon) makes"

AGENT_HABITS = {
    "verbose": "learn(progress=False) is silent",
    "policy": "there is no network to choose; algo=... names the algorithm",
    "policy_kwargs": _SETTING,
    "model": "algo=... names the algorithm",
    "device": "JAX chooses the device; the variable JAX_PLATFORMS changes it",
    "tensorboard_log": 'learn(callbacks=TensorBoard("logs")) logs, with TensorBoard from briee.tensorboard',
    "random_state": "it is called seed=...",
    "callback": "functions called after each update belong to learn(callbacks=...)",
    "callbacks": "functions called after each update belong to learn(callbacks=...)",
    **dict.fromkeys(("K", "n_latents", "n_states", "num_states", "latents"), _STATES),
    **dict.fromkeys(("H", "max_steps", "max_episode_steps", "time_limit"), _STEPS),
    **dict.fromkeys(("episodes", "iterations", "total_timesteps", "timesteps"), _BUDGET),
    **dict.fromkeys(("learning_rate", "gamma", "batch_size", "n_steps", "buffer_size", "ent_coef"), _SETTING),
}
"""Arguments that others have where `Agent` is made."""
_TIMESTEPS = "a budget in steps is total_timesteps=..."
_EPISODES = "a budget in episodes is episodes=..."
LEARN_HABITS = {
    "callback": "functions called after each update are callbacks=...",
    "verbose": "progress=False is silent",
    "log_interval": "progress=False is silent",
    "progress_bar": "it is called progress=...",
    "tb_log_name": 'callbacks=TensorBoard("logs") logs, with TensorBoard from briee.tensorboard',
    "reset_num_timesteps": "learn goes on where it stopped; a new agent starts anew",
    "seed": "the seed belongs to the agent, Agent(env, seed=...)",
    **dict.fromkeys(("timesteps", "steps", "n_steps", "num_steps", "env_steps"), _TIMESTEPS),
    **dict.fromkeys(("n_episodes", "num_episodes", "max_episodes"), _EPISODES),
    **dict.fromkeys(("epochs", "n_epochs", "updates", "n_iter"), "policy updates are iterations=..."),
}
"""Arguments that others have where an agent learns."""


def told(callbacks: Any, agent: Any) -> list[Callback]:
    """Functions of a row of metrics, from one callback or several; `ValueError` if they are no functions.

    A parameter named `agent` gets the agent, another one the metrics.
    """
    given = [callbacks] if callable(callbacks) else callbacks
    many = list(given) if isinstance(given, Iterable) and not isinstance(given, str) else None
    if many is None or not all(map(callable, many)):
        found = type(given if many is None else next(x for x in many if not callable(x))).__name__
        raise ValueError(f"callbacks must be a function of an update's metrics, or several, got {found}")
    return [_with_agent(callback, agent) for callback in many]


def _with_agent(callback: Callable[..., Any], agent: Any) -> Callback:
    try:
        names = list(inspect.signature(callback).parameters)
    except (TypeError, ValueError):  # some built-in functions have no signature
        return callback
    if "agent" not in names:
        return callback
    only = len(names) == 1

    def call(row: Row) -> Any:
        return callback(agent=agent) if only else callback(row, agent=agent)

    return call


def check_path(path: Any) -> Path:
    """The path; `ValueError` if it is none."""
    if not isinstance(path, str | Path) or not str(path):
        raise ValueError(f"path must be the name of a file, got {path!r}")
    return Path(path)


def check_kinds(algo: Any, preset: Any, decoder: Any, config: Any) -> None:
    """Raise `ValueError` if an argument is of a kind that has no meaning."""
    if not (preset is None or isinstance(preset, str)):
        raise ValueError(f"preset must be a name, got {type(preset).__name__}: the environment comes first")
    if not (algo is None or isinstance(algo, str | type)):
        raise ValueError(f"algo must be a name or a class, got {algo!r}")
    if not (decoder is None or isinstance(decoder, str) or callable(decoder)):
        raise ValueError(f"decoder must be linear, mlp, cnn or an Equinox module, got {decoder!r}")
    if not (config is None or isinstance(config, AlgorithmConfig)):
        made = "made by briee.preset(algo, preset, horizon)"
        raise ValueError(f"config must be a configuration, {made}, got {type(config).__name__}")


def chosen(
    algo: str | type[Algorithm[Any]] | None, preset: str | None, config: AlgorithmConfig | None
) -> Choice:
    """The names of algorithm and preset; a configuration alone means the first preset that makes such."""
    if isinstance(algo, type):
        if config is None:
            raise ValueError(f"an algorithm given as a class needs config=..., got {algo.__name__}")
        return Choice(algo.name, preset or "custom")
    choice = choose(algo, preset)
    if preset is None and config is not None:
        names = ALGORITHMS if algo is None else [algo]
        choices = (Choice(name, preset) for name in names for preset in ALGORITHMS[name].presets)
        return next((one for one in choices if type(make_preset(*one, 2)) is type(config)), choice)
    if preset not in (None, choice.preset):
        meaning = f"algo={choice.algorithm!r}"
        warnings.warn(f"preset={preset!r} now means {meaning}, an algorithm of its own", stacklevel=5)
    return choice
