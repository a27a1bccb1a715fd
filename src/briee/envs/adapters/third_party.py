"""Environments of other projects, by name. Imports no JAX.

A name is a Gymnasium id, Gymnasium's `module:id`, or `FILE.py:Class`. Ids of MiniGrid, bsuite, MiniHack and
MDP Playground are registered on demand. Their environments draw a layout, or the meaning of the actions, when
they are made or reset; here an argument seeds that draw, so that all copies of an environment are equal.
"""

import contextlib
import functools
import importlib
import importlib.util
import inspect
import io
import logging
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, cast

import gymnasium as gym
import numpy as np

from briee.envs.adapters.encoding import Downsampled
from briee.envs.registry import SHORT_NAMES
from briee.errors import suggestion

PROJECTS = {
    "MiniGrid-": "minigrid",
    "BabyAI-": "minigrid",
    "bsuite/": "shimmy",
    "MiniHack-": "minihack",
    "RLToy-": "mdp_playground",
    "grids/": "briee.envs.grids",
}
"""The module whose import registers the ids with this prefix."""
PACKAGES = {"minihack": "minihack", "mdp_playground": "mdp-playground"}
"""Projects that are not in the extra `envs`, with the name of their package."""


def make_one(name: str, arguments: Mapping[str, Any]) -> gym.Env:
    """One environment by name; any failure becomes a `ValueError` of one sentence."""
    _import_project(name)
    is_file = name.partition(":")[0].endswith(".py")
    if ":" in name and not is_file and os.getcwd() not in sys.path:  # the module may be in this folder
        sys.path.append(os.getcwd())
    instance = instance_argument(name)
    given: dict[str, Any] = ({instance: 0} if instance else {}) | dict(arguments)
    layout = given.pop("layout_seed", 0) if instance == "layout_seed" else None
    side = given.pop("downsample", None)
    if project_of(name) == "minihack":  # it ignores the seed of reset; other parts hold a clock and messages
        given = {"seeds": [layout], "observation_keys": ("glyphs", "inv_glyphs")} | given
    if project_of(name) == "mdp_playground":
        given.setdefault("log_level", logging.ERROR)
    try:
        # Every observation is checked by the encoder; Gymnasium's checker would warn once for each copy.
        make = functools.partial(gym.make, name, disable_env_checker=True)
        with contextlib.redirect_stdout(
            io.StringIO() if project_of(name) == "mdp_playground" else sys.stdout
        ):
            env = (load_from_file(name, "class") if is_file else make)(**given)
    except (gym.error.UnregisteredEnv, ModuleNotFoundError) as error:
        hint = "" if is_file else suggestion(name, [*SHORT_NAMES, *gym.registry])
        raise ValueError(f"unknown environment {name!r}{hint or f': {_line(error)}'}") from error
    except Exception as error:
        known = isinstance(error, gym.error.Error | TypeError | ValueError)
        kind = "" if known else f"{type(error).__name__}: "
        raise ValueError(f"cannot make {name!r}: {kind}{_line(error)}") from error
    if not isinstance(env, gym.Env):
        raise ValueError(f"{name!r} is not a Gymnasium environment but a {type(env).__name__}")
    if layout is not None and is_minigrid(name):
        env = fully_observed(env, layout)
    if side is not None:
        return Downsampled(env, side)
    own = env.observation_space
    if isinstance(own, gym.spaces.Box) and type(own) is not gym.spaces.Box:  # may refuse to be compared
        plain = gym.spaces.Box(own.low, own.high, own.shape, cast(Any, own.dtype))
        return gym.wrappers.TransformObservation(env, np.asarray, plain)
    return env


def make_copy(name: str, arguments: Mapping[str, Any], rich: Mapping[str, Any] | None) -> gym.Env:
    """One environment by name; with `rich`, its observations go through `rich_observation`."""
    one = make_one(name, arguments)
    if not rich:
        return one
    from briee.envs.adapters.rich import rich_observation  # imports JAX, which a worker hardly ever needs

    return rich_observation(one, rich)


def project_of(name: str) -> str | None:
    """The module of the project that an id belongs to, if it is a known one."""
    own = name.rpartition(":")[2]
    return next((project for start, project in PROJECTS.items() if own.startswith(start)), None)


def is_minigrid(name: str) -> bool:
    """Whether the id belongs to MiniGrid or BabyAI."""
    return project_of(name) == "minigrid"


def instance_argument(name: str) -> str | None:
    """The argument that seeds the environment itself, not its episodes, if there is one."""
    if project_of(name) in ("minigrid", "minihack"):
        return "layout_seed"
    if project_of(name) == "mdp_playground":
        return "seed"
    if name.startswith("bsuite/"):
        _import_project(name)
        from bsuite.bsuite import EXPERIMENT_NAME_TO_ENVIRONMENT as constructors

        constructor = constructors.get(name.removeprefix("bsuite/").rpartition("-v")[0])
        if constructor is not None and "mapping_seed" in inspect.signature(constructor).parameters:
            return "mapping_seed"
    return None


def fully_observed(env: gym.Env, layout_seed: int) -> gym.Env:
    """A MiniGrid as a block MDP: the whole grid as an image, always with the same layout.

    There is one channel per object, colour and state of a cell; the agent's direction is a state.
    """
    from minigrid.wrappers import FullyObsWrapper  # pyright: ignore[reportMissingImports]

    return _GridImage(FullyObsWrapper(cast(Any, env)), layout_seed)


class _GridImage(gym.ObservationWrapper):
    """One-hot object, colour and state of each cell, because they are categories and not quantities."""

    def __init__(self, env: gym.Env, layout_seed: int):
        from minigrid.core import constants  # pyright: ignore[reportMissingImports]

        super().__init__(env)
        self.layout_seed = layout_seed
        directions = len(constants.DIR_TO_VEC)  # the agent has the most states; doors have fewer
        self.codes = [
            np.eye(n, dtype=np.float32)
            for n in (len(constants.OBJECT_TO_IDX), len(constants.COLOR_TO_IDX), directions)
        ]
        width, height, _ = cast(Any, env.observation_space)["image"].shape
        self.observation_space = gym.spaces.Box(0, 1, (width, height, sum(map(len, self.codes))), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        observation, info = self.env.reset(seed=self.layout_seed, options=options)
        return self.observation(observation), info

    def observation(self, observation: Any) -> np.ndarray:
        image = observation["image"]
        return np.concatenate([code[image[..., i]] for i, code in enumerate(self.codes)], axis=-1)


def environment_name(env: gym.Env | gym.vector.VectorEnv) -> str:
    """The registered id, or else the class name; for a vector without an id, that of its first copy."""
    if env.spec is None and isinstance(env.unwrapped, gym.vector.SyncVectorEnv):
        return environment_name(env.unwrapped.envs[0])
    return env.spec.id if env.spec is not None else type(env.unwrapped).__name__


def own_horizon(env: gym.Env | gym.vector.VectorEnv) -> int | None:
    """The largest number of steps of an episode, if the environment declares one."""
    single = env.unwrapped.envs[0] if isinstance(env.unwrapped, gym.vector.SyncVectorEnv) else env
    base = cast(Any, single.unwrapped)
    found = (
        getattr(base, "horizon", None),
        getattr(single.spec, "max_episode_steps", None),
        getattr(env.spec, "max_episode_steps", None),
        _time_limit(single),
        getattr(base, "max_steps", None),
        _deep_sea(base, "_size"),
    )
    return next((int(h) for h in found if isinstance(h, int | np.integer)), None)


def _time_limit(env: Any) -> int | None:
    """The steps of a `TimeLimit` among the wrappers, as in `TimeLimit(MyEnv(), 20)`, which has no spec."""
    while isinstance(env, gym.Wrapper):
        if isinstance(env, gym.wrappers.TimeLimit):
            return env._max_episode_steps
        env = env.env
    return None


def own_optimum(env: gym.Env | gym.vector.VectorEnv, horizon: int) -> float | None:
    """The best expected return in H steps, if the environment declares it or has a table `P`."""
    base = _base(env)
    if getattr(base, "optimal_return", None) is not None:
        own = getattr(base, "horizon", None)
        return None if isinstance(own, int) and own > horizon else float(base.optimal_return)
    if (size := _deep_sea(base, "_size")) is not None:
        return float(_deep_sea(base, "_optimal_return")) if horizon >= size else 0.0
    return _table_return(base, horizon, sure=False)


def sure_return(env: gym.Env | gym.vector.VectorEnv, horizon: int) -> float | None:
    """The largest return that some policy reaches in every episode, if the environment has a table `P`."""
    return _table_return(_base(env), horizon, sure=True)


def _table_return(base: Any, horizon: int, sure: bool) -> float | None:
    """The best return in H steps: its expectation, or with `sure` the return that is guaranteed."""
    table, start = getattr(base, "P", None), getattr(base, "initial_state_distrib", None)
    table, start = _toy_table(base) or (table, start)
    if not isinstance(table, dict) or start is None:
        return None
    value = np.zeros(len(table))
    for _ in range(horizon):

        def action_value(rows, value=value) -> float:
            outcomes = [(p, r + (0.0 if over else value[s])) for p, s, r, over in rows]
            return min(v for p, v in outcomes if p > 0) if sure else sum(p * v for p, v in outcomes)

        value = np.array([max(map(action_value, table[state].values())) for state in sorted(table)])
    start = np.asarray(start)
    return float(value[start > 0].min() if sure else start @ value)


def _toy_table(base: Any) -> tuple[dict[int, Any], np.ndarray] | None:
    """Transitions and first states of a discrete MDP of MDP Playground whose reward is that of the next
    state; None for anything else."""
    config = getattr(base, "config", None)
    rewards = getattr(base, "rewardable_sequences", None)
    if not isinstance(config, dict) or not isinstance(rewards, dict) or config.get("irrelevant_features"):
        return None
    noise = config.get("transition_noise") or config.get("reward_noise") or config.get("reward_every_n_steps")
    if noise or base.delay or base.sequence_length != 1:
        return None
    states = range(len(base.transition_matrix))
    over = [bool(base.is_terminal_state(state)) for state in states]
    paid = [rewards.get((state,), 0.0) * base.reward_scale + base.reward_shift for state in states]
    paid = [r + end * base.term_state_reward * base.reward_scale for r, end in zip(paid, over, strict=True)]

    def row(state: int) -> dict[int, Any]:
        following = enumerate(base.transition_matrix[state])
        return {a: [(1.0, int(to), paid[to], over[to])] for a, to in following}

    return {state: row(state) for state in states}, np.asarray(config["relevant_init_state_dist"])


def _base(env: gym.Env | gym.vector.VectorEnv) -> Any:
    """The environment inside all wrappers; of a vector, the first copy."""
    base = env.unwrapped
    return base.envs[0].unwrapped if isinstance(base, gym.vector.SyncVectorEnv) else base


def _deep_sea(base: Any, attribute: str) -> Any:
    """An attribute of bsuite's deep sea; None for any other environment."""
    inner = getattr(base, "_env", None)
    return getattr(inner, attribute, None) if type(inner).__name__ == "DeepSea" else None


def _import_project(name: str) -> None:
    """Import the project that registers this id, if it is a known one."""
    module = project_of(name)
    if module is None:
        return
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    try:
        importlib.import_module(module)
        if module == "shimmy":
            importlib.import_module("bsuite")
    except ImportError:
        package = PACKAGES.get(module, "'briee[envs]'")
        raise ValueError(
            f"{name} belongs to a project that is not installed: pip install {package}"
        ) from None


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())


def load_from_file(place: str, kind: Literal["class", "function"]) -> Any:
    """The object at `FILE.py:name`; raises `ValueError` if there is none. This executes the file.

    The file's own exceptions become a `ValueError` for a function. For a class they are passed on, because
    the caller reports them together with the environment's name.
    """
    match, of_class = re.fullmatch(r"(.*\.py)(?::(.*))?", place), kind == "class"
    file, name = (match[1], match[2] or "") if match else (place, "")
    path = Path(file)
    if not path.is_file() or not (name or of_class):
        wanted = f"a reward is FILE.py:function with a file that exists, got {place!r}"
        raise ValueError(f"there is no file {file}" if of_class else wanted)
    try:
        names = vars(_module(path.resolve(), path.stat().st_mtime_ns))
    except Exception as error:  # the user's code may raise anything
        if of_class:
            raise
        first = (str(error).strip().splitlines() or [""])[0]
        raise ValueError(f"cannot run {path}: {type(error).__name__}: {first}".rstrip(": ")) from error
    if name in names and (of_class or callable(names[name])):
        return names[name]
    is_kind = inspect.isclass if of_class else inspect.isfunction
    known = [key for key, value in names.items() if is_kind(value)]
    if of_class:
        raise ValueError(f"{file} has no {name!r}{suggestion(name, known)}")
    raise ValueError(f"{path} has no function {name!r}" + (f": it has {', '.join(known)}" if known else ""))


@functools.cache
def _module(path: Path, modified: int) -> Any:
    """The executed file; executed again only if it was modified."""
    spec = importlib.util.spec_from_file_location(f"briee_user_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
