"""A saved agent, from its file."""

from pathlib import Path
from typing import Any

from briee import algorithms, checkpoint, rollout
from briee.adapt import Adapted, adapt
from briee.agent import BRIEE, Agent
from briee.envs import make
from briee.rundir import config_from_json


def load(path: str | Path, env: Any = None, decoder: Any = None) -> Agent:
    """A saved agent. Reading the file runs no code and refuses what is damaged, with a `CheckpointError`.

    This package's own environments are made anew; for any other, give the environment again, and likewise an
    Equinox module that was given as `decoder`.
    """
    path = Path(path)
    about = checkpoint.read_extra(path).get("agent")
    try:
        if not isinstance(about, dict):
            raise ValueError("it is a checkpoint, but not a saved agent")
        if not 0 < 4 * about["spec"]["horizon"] ** 2 <= path.stat().st_size:  # every state has more numbers
            raise ValueError("it is too small for its horizon")
        agent = _rebuild(about, env, decoder)
    except Exception as error:  # a hostile file may upset anything; the caller gets one kind of error
        reason = " ".join(str(error).split()) or type(error).__name__
        raise checkpoint.CheckpointError(f"cannot load {path}: {reason}") from error
    return agent.restore(path)


def _rebuild(about: dict[str, Any], env: Any, decoder: Any) -> Agent:
    """An agent with the stored settings that has learned nothing yet."""
    stored = about["spec"]
    if env is None:
        if about["rebuild"] is not True or stored["env"] not in algorithms.pure_environments():
            raise ValueError(f"the agent learned on {stored['env']}: give it again, load(path, env=...)")
        pure = make(stored["env"], **({"horizon": stored["horizon"]} | stored["env_arguments"]))
        adapted = Adapted(rollout.ScanSampler(pure), stored["env"], stored["env_arguments"], None)
    else:
        adapted = adapt(env, stored["horizon"])
    sampler = adapted.sampler
    found = (sampler.horizon, sampler.num_actions, tuple(sampler.observation_shape))
    wanted = (stored["horizon"], about["num_actions"], tuple(about["observation_shape"]))
    if found != wanted:
        sizes = "(horizon, actions, observation shape)"
        raise ValueError(f"the environment has {sizes} {found}, the agent learned with {wanted}")
    name, preset = stored["algorithm"], stored["preset"]
    default = algorithms.preset(name, preset, stored["horizon"], stored["env"], stored.get("env_arguments"))
    config = config_from_json(default, stored["config"])
    kind = BRIEE if name == algorithms.DEFAULT_ALGORITHM else Agent
    return kind(adapted, preset, algorithm=name, config=config, seed=stored["seed"], decoder=decoder)
