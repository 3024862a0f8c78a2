"""`outsize evaluate RUN`: what a run predicted against the labels of its scenes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from outsize.job import load_job
from outsize.progress import Reporter
from outsize.runs import open_run, read_json, write_json
from outsize.tasks import task_of
from outsize.tasks.subjects import open_split


def evaluate(run_path: Path, *, split: str, reporter: Reporter, aoi: Path | None = None) -> dict[str, Any]:
    """Score what was predicted of one split and leave scores.json and pictures; returns the split's scores."""
    run = open_run(run_path)
    job = load_job(run.job)
    task = task_of(job.task)
    result = task.evaluate(run, job, split, open_split(run, job, split, aoi, reporter), reporter)
    cited = job.published
    result["published"] = cited.model_dump() if cited.scores or cited.classes else None
    result["aoi"] = None if aoi is None else str(aoi)
    known = read_json(run.scores, "evaluate") if run.scores.exists() else {}
    write_json(run.scores, {**known, split: result})
    reporter.say("scores", "\n".join(task.score_lines(split, result, run)), split=split, **result)
    return result
