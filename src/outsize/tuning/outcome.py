"""What a tuning has found so far: a row for each trial, what mattered, and the job of the best one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from outsize.job import Job, dump_job
from outsize.report.tuned import Tuned
from outsize.runs import write_json, write_text
from outsize.tasks import info_of
from outsize.tuning.space import Space, Values, job_with, values_of

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

    from outsize.tuning.study import Study

_SCHEMA = 1
_STATES = {
    "COMPLETE": "done",
    "PRUNED": "pruned",
    "FAIL": "failed",
    "RUNNING": "running",
    "WAITING": "waiting",
}


def tuned_so_far(study: Study, job: Job, space: Space) -> Tuned:
    """Return all trials as they are now."""
    score = info_of(job.task)
    rows = tuple(_row(study, each, space) for each in study.trials())
    ranges = {key: None if isinstance(each, tuple) else each.log for key, each in space.items()}
    return Tuned(score.score, score.score_name, ranges, rows, study.importance())


def write_outcome(study: Study, job: Job, space: Space) -> Tuned:
    """Leave trials.json and best.toml; whoever calls holds the study."""
    tuned = tuned_so_far(study, job, space)
    write_json(study.folder / "trials.json", {"schema": _SCHEMA, **tuned.as_dict()})
    best = tuned.best
    if best is not None:
        number, score = best["number"], best["score"]
        head = f"# The best of {len(tuned.rows)} trials: number {number}, {tuned.score_name} {score:.4f}.\n"
        head += f"# Its weights: {study.run_of(number).best}\n"
        best_job = job_of(job, best["values"], f"{job.run}-best")
        write_text(study.folder / "best.toml", head + dump_job(best_job))
    return tuned


def job_of(job: Job, values: Values, run: str) -> Job:
    """Return the job of a trial, with a run of its own."""
    return job_with(job, values, run).model_copy(update={"run": run})


def _row(study: Study, trial: FrozenTrial, space: Space) -> dict[str, Any]:
    """Return what there is to tell of a trial; of a failed one the score that it had reached."""
    run = study.run_of(trial.number)
    whole = trial.params.keys() == space.keys()
    reached = max(trial.intermediate_values.values(), default=None)
    took = trial.duration
    return {
        "number": trial.number,
        "state": _STATES[trial.state.name],
        "score": trial.value if trial.state.name == "COMPLETE" else reached,
        "values": values_of(trial.params, space) if whole else {},
        "epochs": len(trial.intermediate_values),
        "seconds": None if took is None else round(took.total_seconds(), 1),
        "why": trial.user_attrs.get("why", ""),
        "run": str(run.path),
    }
