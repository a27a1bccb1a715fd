"""Exports of a trained agent: a figure, an HTML page, a run directory that the command line continues."""

import dataclasses
import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from briee.agent.agent import NotLearnedError
from briee.envs.registry import instance_argument, registered
from briee.errors import RunError, suggestion
from briee.training.checkpoint import Folder
from briee.training.directory import MetricsFile, make_manifest, os_errors, write_json
from briee.training.session import claimed

if TYPE_CHECKING:
    from briee.agent.agent import Agent
    from briee.report.contents import RunContents


def contents(agent: "Agent") -> "RunContents":
    """The agent as the report knows a run."""
    from briee.report.contents import RunContents, examined

    if not agent.history:
        raise NotLearnedError("call learn(...) first: this agent has not learned anything yet")
    columns = {name: np.array([row[name] for row in agent.history], float) for name in agent.history[0]}
    config = agent.spec.to_json() | {"episodes": agent.episodes}
    run = RunContents(Path(), config, make_manifest("briee.Agent"), agent.summary(), columns)
    return examined(run, agent.algorithm, agent.state, agent.spec)


def plot(agent: "Agent", what: str) -> Any:
    """A matplotlib figure; `ValueError` with the names of all figures if `what` is none of them."""
    from briee.report.figures import run_figures, shared_figures
    from briee.report.static import draw

    run = contents(agent)
    figures = {figure.key: figure for figure in (*shared_figures([run]), *run_figures(run))}
    if what not in figures:
        raise ValueError(f"there is no figure {what!r}{suggestion(str(what), figures)}")
    return draw(figures[what])


def report(agent: "Agent", path: str | Path) -> Path:
    """Write the page of `briee report`."""
    from briee.report.contents import Found
    from briee.report.html import write_page

    if Path(path).is_dir():
        raise RunError(f"a report is a file, but {path} is a directory")
    return write_page(Found([contents(agent)], []), Path(path), None)


def write_run(agent: "Agent", run_dir: Path, env: str, arguments: dict[str, Any], episodes: int) -> None:
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
