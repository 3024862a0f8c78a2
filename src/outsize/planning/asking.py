"""What to ask a cluster for, so that a job runs there: its plan for a machine that is named, or for the one at hand."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from outsize.job import Job
from outsize.plan.request import Request
from outsize.progress import Reporter

if TYPE_CHECKING:
    from outsize.planning.jobs import Planned


def ask_for(job: Job, num_gpus: int, gpu: str | None, reporter: Reporter) -> tuple[Request, Planned]:
    """Plan the job for so many GPUs by name, or of the kind that is here, and return what to ask for, and the plan."""
    from outsize.measure.machine import pick_device
    from outsize.planning.advice import request_for
    from outsize.planning.jobs import lay, plan_job
    from outsize.planning.situation import situation_here, situation_named

    if gpu is not None:
        where = situation_named(gpu, num_gpus, job.train.precision)
    else:
        where = situation_here(pick_device("auto"), job.train.precision, job.limits.gpu_memory)
        where = replace(where, num_gpus=num_gpus if where.kind == "cuda" else 1)
    planned = plan_job(job, where, reporter, lay(job, reporter))
    return request_for(job, planned), planned
