"""Jobs through SLURM: one job array, submitted and left alone. Needs the extra `slurm` (submitit)."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from briee.errors import RunError
from briee.lazy import import_extra
from briee.training.directory import write_json
from briee.training.launchers import Job, carry_out
from briee.training.sweep import log_file


class ArrayElement:
    """One element of the job array. After a time-out it is queued again, and its run continues."""

    def __call__(self, job: dict[str, Any]) -> tuple[str, ...]:
        return tuple(carry_out(Job(**job)) or ("elsewhere", "another process has it"))

    def checkpoint(self, job: dict[str, Any]) -> Any:
        """submitit calls this when the time is nearly over."""
        return import_extra("submitit.helpers", "slurm").DelayedSubmission(self, job)


def submit(
    jobs: Sequence[Job], workers: int, *, cluster: str, minutes: int, parameters: Mapping[str, Any]
) -> list[str]:
    """Queue all jobs, at most `workers` of them at a time; returns their ids at once.

    `cluster` is "slurm", or "local" for submitit's executor on this machine; `parameters` are SLURM's.
    """
    submitit = import_extra("submitit", "slurm")
    folder = Path(jobs[0].folder)
    try:
        logs = folder / "logs" / "slurm"
        executor = submitit.AutoExecutor(logs, cluster=cluster, slurm_max_num_timeout=100)
        extra = {f"slurm_{name}": value for name, value in parameters.items()}
        executor.update_parameters(timeout_min=minutes, slurm_array_parallelism=workers, **extra)
        submitted = executor.map_array(ArrayElement(), [job._asdict() for job in jobs])
    except (RuntimeError, ValueError, NameError) as error:
        raise RunError(f"cannot submit to {cluster}: {error}") from None
    for job, queued in zip(jobs, submitted, strict=True):
        write_json(log_file(folder, job.name, "queued"), {"job": queued.job_id})
    return [queued.job_id for queued in submitted]
