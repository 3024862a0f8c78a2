"""`outsize evaluate RUN [OTHER]`: what a run predicted against the labels of its scenes, or against another run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from outsize.accounts import accounted
from outsize.errors import RunError, explain
from outsize.job import Job, load_job
from outsize.progress import Reporter
from outsize.runs import RunFolder, open_run, read_json, write_json
from outsize.tasks import task_of
from outsize.tasks.subjects import open_split


def evaluate(run_path: Path, *, split: str, reporter: Reporter, aoi: Path | None = None) -> dict[str, Any]:
    """Score what was predicted of one split and leave scores.json and pictures; returns the split's scores."""
    run = open_run(run_path)
    job = load_job(run.job)
    task = task_of(job.task)
    with accounted(run, "evaluate", reporter):
        result = task.evaluate(run, job, split, open_split(run, job, split, aoi, reporter), reporter)
        cited = job.published
        result["published"] = cited.model_dump() if cited.scores or cited.classes else None
        result["aoi"] = None if aoi is None else str(aoi)
        known = read_json(run.scores, "evaluate") if run.scores.exists() else {}
        write_json(run.scores, {**known, split: result})
        reporter.say("scores", "\n".join(task.score_lines(split, result, run)), split=split, **result)
    return result


def evaluate_two(
    paths: tuple[Path, Path], *, split: str, reporter: Reporter, aoi: Path | None = None
) -> dict[str, Any]:
    """Score two runs on the scenes of the first and count where they agree; leaves a file in it."""
    runs = (open_run(paths[0]), open_run(paths[1]))
    jobs = (load_job(runs[0].job), load_job(runs[1].job))
    _refuse_other_answers(runs, jobs)
    task = task_of(jobs[0].task)
    with accounted(runs[0], "evaluate", reporter):
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
