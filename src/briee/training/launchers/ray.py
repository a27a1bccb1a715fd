"""Jobs on a Ray cluster, one plain task each. Needs the extra `ray`.

All nodes must see the folder of the sweep under the same path: that is how a run continues on another node
when its own has died.
"""

import re
import secrets
import socket
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from briee.errors import RunError
from briee.lazy import import_extra
from briee.training.launchers import Board, Job, Outcome, carry_out
from briee.training.launchers.local import ELSEWHERE_SECONDS

MAX_RETRIES = 20
"""So often may the node of a task die. A run that fails is an outcome, not a reason to try again."""
CONNECT_SECONDS = 10.0


def launch(
    jobs: Sequence[Job], workers: int, board: Board, *, address: str | None, cores: int, memory: float | None
) -> None:
    """Carry out all jobs on the cluster at `address`, or on one that is started here with `workers` slots."""
    ray = import_extra("ray", "ray")
    own = {"num_cpus": workers * cores, "include_dashboard": False} if address is None else {}
    connect(ray, address, own)
    try:
        check_storage(ray, Path(jobs[0].folder))
        needs: dict[str, Any] = {"num_cpus": cores, "max_retries": MAX_RETRIES}
        needs |= {"memory": int(memory * 1e9)} if memory else {}
        task = ray.remote(**needs)(_carry_out)
        pending = {task.remote(job._asdict()): job for job in jobs}
        for job in jobs:
            board.started(job.name)
        while pending:
            ready, _ = ray.wait(list(pending), timeout=0.5)
            for reference in ready:
                board.ended(pending.pop(reference).name, _outcome(ray, reference))
            board.show()
    finally:
        ray.shutdown()  # ends the tasks, and so their children


def connect(ray: Any, address: str | None, own: Mapping[str, Any]) -> None:
    """Join the cluster at `address`, or start one here; `RunError` if there is none."""
    try:
        if place := re.fullmatch(r"([\w.-]+):(\d+)", address or ""):  # Ray itself would try for minutes
            socket.create_connection((place[1], int(place[2])), CONNECT_SECONDS).close()
        ray.init(address=address or "local", log_to_driver=False, logging_level="ERROR", **own)
    except (OSError, RuntimeError, ValueError) as error:
        where = f"reach the Ray cluster at {address}" if address else "start Ray here"
        raise RunError(f"cannot {where}: {str(error).strip().splitlines()[0]}") from None


def check_storage(ray: Any, folder: Path) -> None:
    """Every node finds a file written here, or `RunError` names one that does not."""
    at = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
    probe = folder / "logs" / f".storage-{secrets.token_hex(8)}"
    probe.touch()
    try:
        for node in (node for node in ray.nodes() if node["Alive"]):
            task = ray.remote(num_cpus=0, scheduling_strategy=at(node["NodeID"], soft=False))(_exists)
            if not ray.get(task.remote(str(probe))):
                name = node["NodeManagerHostname"]
                raise RunError(f"{name} does not see {folder}: --out must be on storage that all nodes share")
    finally:
        probe.unlink()


def _exists(path: str) -> bool:
    return Path(path).exists()


def _carry_out(job: dict[str, Any]) -> tuple[str, ...]:
    """The task: plain values in and out. It waits if a node that just died still seems to have the job."""
    while (outcome := carry_out(Job(**job))) is None:
        time.sleep(ELSEWHERE_SECONDS)
    return tuple(outcome)


def _outcome(ray: Any, reference: Any) -> Outcome:
    try:
        return Outcome(*ray.get(reference))
    except ray.exceptions.RayError as error:
        return Outcome("stopped", str(error).strip().splitlines()[-1])
