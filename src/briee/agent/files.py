"""An agent and files: loaded from its own or a run directory; exported as figure, page, run directory."""

import dataclasses
import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from briee.agent.agent import BRIEE, Agent, NotLearnedError
from briee.agent.arguments import check_path
from briee.envs.registry import instance_argument, registered
from briee.errors import RunError, suggestion
from briee.rollout.samplers import adapt
from briee.training.checkpoint import CheckpointError, Folder, read_extra
from briee.training.directory import MetricsFile, make_manifest, os_errors, read_metrics, write_json
from briee.training.session import claimed, load_moment
from briee.training.spec import RunSpec, load_spec

if TYPE_CHECKING:
    from briee.report.contents import RunContents


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


def contents(agent: Agent) -> "RunContents":
    """The agent as the report knows a run."""
    from briee.report.contents import RunContents, examined

    if not agent.history:
        raise NotLearnedError("call learn(...) first: this agent has not learned anything yet")
    columns = {name: np.array([row[name] for row in agent.history], float) for name in agent.history[0]}
    config = agent.spec.to_json() | {"episodes": agent.episodes}
    run = RunContents(Path(), config, make_manifest("briee.Agent"), agent.summary(), columns)
    return examined(run, agent.algorithm, agent.state, agent.spec)


def plot(agent: Agent, what: str) -> Any:
    """A matplotlib figure; `ValueError` with the names of all figures if `what` is none of them."""
    from briee.report.figures import run_figures, shared_figures
    from briee.report.static import draw

    run = contents(agent)
    figures = {figure.key: figure for figure in (*shared_figures([run]), *run_figures(run))}
    if what not in figures:
        raise ValueError(f"there is no figure {what!r}{suggestion(str(what), figures)}")
    return draw(figures[what])


def report(agent: Agent, path: str | Path) -> Path:
    """Write the page of `briee report`."""
    from briee.report.contents import Found
    from briee.report.html import write_page

    if Path(path).is_dir():
        raise RunError(f"a report is a file, but {path} is a directory")
    return write_page(Found([contents(agent)], []), Path(path), None)


def write_run(agent: Agent, run_dir: Path, env: str, arguments: dict[str, Any], episodes: int) -> None:
    """Write the agent as a new run directory, of the environment `env` with `arguments` and this budget."""
    spec, entry = agent.spec, registered(env)
    if entry is not None and not arguments:
        if registered(spec.env) is not entry:
            raise RunError(f"the agent learned on {spec.env}, not on {env}")
        arguments = {name: value for name, value in spec.env_arguments.items() if name != "horizon"}
    name = instance_argument(env)
    if name and entry:
        own = inspect.signature(entry.constructor).parameters[name].default
        arguments = {name: entry.defaults.get(name, own), **arguments}
    spec = dataclasses.replace(spec, env=env, env_arguments=arguments, episodes=episodes)
    now = agent.now
    with claimed(run_dir, spec, resume=False, overwrite=False), os_errors(run_dir):
        metrics = MetricsFile(run_dir / "metrics.csv")
        for row in agent.history:
            metrics.append(row)
        checkpoints = Folder(run_dir / "checkpoint")
        checkpoints.save(agent.iterations, now.state, dataclasses.asdict(now.progress))
        write_json(run_dir / "summary.json", agent.summary())
        write_json(run_dir / "manifest.json", make_manifest("briee.Agent"))
