"""`outsize evaluate RUN OTHER`: what two runs predicted against the same labels, and against each other."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from outsize.errors import RunError, explain
from outsize.job import Job, load_job
from outsize.progress import Reporter
from outsize.runs import RunFolder, open_run, write_json
from outsize.tasks import task_of
from outsize.tasks.subjects import open_split


def compare(
    paths: tuple[Path, Path], *, split: str, reporter: Reporter, aoi: Path | None = None
) -> dict[str, Any]:
    """Score two runs on the scenes of the first and count where they agree; leaves a file in it."""
    runs = (open_run(paths[0]), open_run(paths[1]))
    jobs = (load_job(runs[0].job), load_job(runs[1].job))
    _refuse_other_answers(runs, jobs)
    task = task_of(jobs[0].task)
    result = {
        "split": split,
        "runs": [str(run.path) for run in runs],
        "aoi": None if aoi is None else str(aoi),
        **task.compare(runs, jobs, open_split(runs[0], jobs[0], split, aoi, reporter), reporter),
    }
    target = runs[0].path / task.info.comparison
    write_json(target, result)
    reporter.say("compared", "\n".join(task.comparison_lines(result, target)), **result)
    return result


def _refuse_other_answers(runs: Sequence[RunFolder], jobs: Sequence[Job]) -> None:
    here, there = ({each.name for each in job.data.classes} for job in jobs)
    if here != there:
        need, remedy = f"the classes of {runs[0].path}, {', '.join(sorted(here))}", "compare runs of one task"
        found = ", ".join(sorted(there))
        raise RunError(explain(f"run {runs[1].path} has other classes", found, need, remedy))
    if jobs[0].task != jobs[1].task:
        need, remedy = f"that of {runs[0].path}, {jobs[0].task}", "compare the figures of `outsize evaluate`"
        raise RunError(explain(f"run {runs[1].path} is of another task", jobs[1].task, need, remedy))
