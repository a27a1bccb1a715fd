"""A trained agent, from its file or from a run directory."""

from pathlib import Path
from typing import Any

from briee.agent.agent import BRIEE, Agent
from briee.agent.arguments import check_path
from briee.envs.registry import registered
from briee.rollout.samplers import adapt
from briee.training.checkpoint import CheckpointError, Folder, read_extra
from briee.training.directory import read_metrics
from briee.training.session import load_moment
from briee.training.spec import RunSpec, load_spec


def load(path: str | Path, env: Any = None, decoder: Any = None) -> Agent:
    """A saved agent. Reading the file runs no code; a damaged file is a `CheckpointError`.

    This package's own environments are made anew; for any other, give the environment again, and likewise an
    Equinox module that was given as `decoder`. `path` may also be the directory of a run.
    """
    path = check_path(path)
    if path.is_dir():
        return load_run(path)
    about = read_extra(path).get("agent")
    try:
        if not isinstance(about, dict):
            raise ValueError("it is a checkpoint, but not a saved agent")
        if not 0 < 4 * about["spec"]["horizon"] ** 2 <= path.stat().st_size:  # every state has more numbers
            raise ValueError("it is too small for its horizon")
        agent = _rebuild(about, env, decoder)
    except Exception as error:  # a hostile file may upset anything; the caller gets one kind of error
        reason = " ".join(str(error).split()) or type(error).__name__
        raise CheckpointError(f"cannot load {path}: {reason}") from error
    return agent.restore(path)


def stored_horizon(path: Path) -> int:
    """The horizon of a saved agent."""
    about = read_extra(path).get("agent")
    if not isinstance(about, dict):
        raise CheckpointError(f"cannot load {path}: it is a checkpoint, but not a saved agent")
    return int(about["spec"]["horizon"])


def load_run(run_dir: Path) -> Agent:
    """The agent of a run, as its newest checkpoint has it."""
    spec, folder = load_spec(run_dir), Folder(run_dir / "checkpoint")
    if not folder.numbers():
        raise CheckpointError(f"{run_dir} has no checkpoint yet")
    adapted = adapt(spec.env, spec.horizon, spec.env_arguments, spec.rich)
    agent = Agent(adapted, spec.preset, algo=spec.algorithm, config=spec.config, seed=spec.seed)
    moment = load_moment(agent.algorithm, spec, folder)
    agent.take(moment, read_metrics(run_dir / "metrics.csv")[: int(moment.state.iteration)])
    return agent


def _rebuild(about: dict[str, Any], env: Any, decoder: Any) -> Agent:
    """An agent with the stored settings that has learned nothing yet."""
    spec, arguments = RunSpec.from_json(about["spec"]), None
    if env is None:
        if about["rebuild"] is not True or not registered(spec.env):
            again = "load(path, env=...), or --env FILE.py:Class on the command line"
            raise ValueError(f"the agent learned on {spec.env}: give it again, {again}")
        env, arguments = spec.env, spec.env_arguments
    adapted = adapt(env, spec.horizon, arguments)
    sampler = adapted.sampler
    found = (sampler.horizon, sampler.num_actions, tuple(sampler.observation_shape))
    wanted = (spec.horizon, about["num_actions"], tuple(about["observation_shape"]))
    if found != wanted:
        sizes = "(horizon, actions, observation shape)"
        raise ValueError(f"the environment has {sizes} {found}, the agent learned with {wanted}")
    kind = BRIEE if spec.algorithm in ("briee", "efficient") else Agent
    settings = {"algo": spec.algorithm, "config": spec.config, "seed": spec.seed, "decoder": decoder}
    return kind(adapted, spec.preset, **settings)
