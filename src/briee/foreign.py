"""Environments of other projects by name, as a learner is to see them. Imports no JAX.

A name is a Gymnasium id, `module:id` as Gymnasium understands it, or `FILE.py:Class`. Ids of MiniGrid and
bsuite are registered when they are asked for, and what these environments draw for themselves when they are
made, a layout or what the actions mean, becomes an argument: all copies of an environment must be the same.
"""

import functools
import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import gymnasium as gym
import numpy as np

from briee.gym_ids import IDS
from briee.suggest import suggestion

PROJECTS = {"MiniGrid-": "minigrid", "BabyAI-": "minigrid", "bsuite/": "shimmy"}
"""How an id begins, and the module whose import registers it."""
EXTRA = "pip install 'briee[envs]'"


def make_one(name: str, arguments: Mapping[str, Any]) -> gym.Env:
    """One environment by name; whatever prevents it is a `ValueError` of one sentence."""
    _import_project(name)
    if _in_working_folder(name) and os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    instance = instance_argument(name)
    given: dict[str, Any] = ({instance: 0} if instance else {}) | dict(arguments)
    layout = given.pop("layout_seed", 0) if is_minigrid(name) else None
    try:
        # Observations are checked here at every step; Gymnasium's checker would warn once for each copy.
        given |= {} if _is_file(name) else {"disable_env_checker": True}
        env = (_class_in_file(name) if _is_file(name) else functools.partial(gym.make, name))(**given)
    except (gym.error.UnregisteredEnv, ModuleNotFoundError) as error:
        hint = "" if _is_file(name) else suggestion(name, [*IDS, *IDS.values(), *gym.registry])
        raise ValueError(f"unknown environment {name!r}{hint or f': {_line(error)}'}") from error
    except Exception as error:
        known = isinstance(error, gym.error.Error | TypeError | ValueError)
        kind = "" if known else f"{type(error).__name__}: "
        raise ValueError(f"cannot make {name!r}: {kind}{_line(error)}") from error
    if not isinstance(env, gym.Env):
        raise ValueError(f"{name!r} is not a Gymnasium environment but a {type(env).__name__}")
    return fully_observed(env, layout) if layout is not None else env


def is_minigrid(name: str) -> bool:
    """Whether the id is one of MiniGrid's, BabyAI included."""
    return any(name.startswith(start) for start, project in PROJECTS.items() if project == "minigrid")


def instance_argument(name: str) -> str | None:
    """The argument whose value draws the environment itself, apart from its episodes, if there is one."""
    if is_minigrid(name):
        return "layout_seed"
    if name.startswith("bsuite/"):
        _import_project(name)
        from bsuite.bsuite import EXPERIMENT_NAME_TO_ENVIRONMENT as constructors

        constructor = constructors.get(name.removeprefix("bsuite/").rpartition("-v")[0])
        if constructor is not None and "mapping_seed" in inspect.signature(constructor).parameters:
            return "mapping_seed"
    return None


def fully_observed(env: gym.Env, layout_seed: int) -> gym.Env:
    """A MiniGrid as a block MDP: the whole grid as a picture, always the same layout.

    It has one channel for each kind of object, colour and state of a cell, the agent's direction among them.
    """
    from minigrid.wrappers import FullyObsWrapper  # pyright: ignore[reportMissingImports]

    return _GridPicture(FullyObsWrapper(cast(Any, env)), layout_seed)


class _GridPicture(gym.ObservationWrapper):
    """Object, colour and state of a cell are names, not quantities: each is one-hot."""

    def __init__(self, env: gym.Env, layout_seed: int):
        from minigrid.core import constants  # pyright: ignore[reportMissingImports]

        super().__init__(env)
        self.layout_seed = layout_seed
        directions = len(constants.DIR_TO_VEC)  # of the agent; doors have fewer states
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
    """The registered id, or the name of the class; for copies made by hand, those of the first."""
    if env.spec is None and isinstance(env.unwrapped, gym.vector.SyncVectorEnv):
        return environment_name(env.unwrapped.envs[0])
    return env.spec.id if env.spec is not None else type(env.unwrapped).__name__


def own_horizon(env: gym.Env | gym.vector.VectorEnv) -> int | None:
    """After how many steps the environment ends at the latest, as far as it tells."""
    single = env.unwrapped.envs[0] if isinstance(env.unwrapped, gym.vector.SyncVectorEnv) else env
    base = cast(Any, single.unwrapped)
    found = (
        getattr(getattr(base, "pure", base), "horizon", None),
        getattr(single.spec, "max_episode_steps", None),
        getattr(env.spec, "max_episode_steps", None),
        getattr(base, "max_steps", None),
        _deep_sea(base, "_size"),
    )
    return next((int(h) for h in found if isinstance(h, int | np.integer)), None)


def own_optimum(env: gym.Env | gym.vector.VectorEnv, horizon: int) -> float | None:
    """The best return in H steps, where the environment tells it or shows its table `P`."""
    base = _base(env)
    if getattr(base, "optimal_return", None) is not None:
        own = getattr(getattr(base, "pure", None), "horizon", horizon)
        return float(base.optimal_return) if own == horizon else None
    if (size := _deep_sea(base, "_size")) is not None:
        return float(_deep_sea(base, "_optimal_return")) if horizon >= size else 0.0
    return _table_return(base, horizon, sure=False)


def sure_return(env: gym.Env | gym.vector.VectorEnv, horizon: int) -> float | None:
    """What the best policy reaches in every episode of H steps, where the environment shows its table `P`."""
    return _table_return(_base(env), horizon, sure=True)


def _table_return(base: Any, horizon: int, sure: bool) -> float | None:
    """The best return in H steps, on average over what may follow, or `sure`: whatever follows."""
    table, start = getattr(base, "P", None), getattr(base, "initial_state_distrib", None)
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


def _base(env: gym.Env | gym.vector.VectorEnv) -> Any:
    """The environment inside all wrappers; the first of several copies."""
    base = env.unwrapped
    return base.envs[0].unwrapped if isinstance(base, gym.vector.SyncVectorEnv) else base


def _deep_sea(base: Any, attribute: str) -> Any:
    """An attribute of bsuite's deep sea, None for everything else."""
    inner = getattr(base, "_env", None)
    return getattr(inner, attribute, None) if type(inner).__name__ == "DeepSea" else None


def _import_project(name: str) -> None:
    """Register the ids of the project that the name belongs to."""
    for start, module in PROJECTS.items():
        if name.startswith(start):
            os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
            try:
                importlib.import_module(module)
                if module == "shimmy":
                    importlib.import_module("bsuite")
            except ImportError:
                raise ValueError(f"{name} belongs to a project that is not installed: {EXTRA}") from None


def _in_working_folder(name: str) -> bool:
    """Whether the name starts with a module, which may lie where the user stands."""
    return ":" in name and not _is_file(name)


def _is_file(name: str) -> bool:
    return name.partition(":")[0].endswith(".py")


def _class_in_file(name: str) -> Any:
    """The class of FILE.py:Class."""
    file, _, attribute = name.partition(":")
    module = _load_file(file)
    if attribute not in vars(module):
        classes = [key for key, value in vars(module).items() if inspect.isclass(value)]
        raise ValueError(f"{file} has no {attribute!r}{suggestion(attribute, classes)}")
    return getattr(module, attribute)


@functools.cache
def _load_file(file: str) -> Any:
    if not Path(file).is_file():
        raise ValueError(f"there is no file {file}")
    spec = importlib.util.spec_from_file_location(f"briee_user_{Path(file).stem}", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())
