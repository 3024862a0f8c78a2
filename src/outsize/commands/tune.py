"""`outsize tune JOB`: trials of what the job says may vary, one after the other or several at once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from outsize.accounts import accounted
from outsize.files.ownership import mark
from outsize.job import dump_job, load_job
from outsize.progress import Reporter
from outsize.report.tables import text_table
from outsize.report.tuned import Tuned, trials_table
from outsize.runs import RunFolder, leaving_no_empty_folder, output_errors, refuse_foreign, write_text
from outsize.stopping import Stopped


def tune(
    job_path: Path,
    *,
    overrides: Sequence[str],
    num_trials: int,
    num_workers: int,
    storage: str | None,
    device_name: str,
    reporter: Reporter,
) -> Tuned:
    """Train trials until the study of the job has so many, and leave their table and the best job."""
    from outsize.tuning.outcome import write_outcome
    from outsize.tuning.space import space_of
    from outsize.tuning.study import open_study
    from outsize.tuning.work import devices_for, work_through

    job = load_job(job_path, overrides)
    space = space_of(job, str(job_path))
    run = RunFolder(Path(job.run))
    refuse_foreign(run)
    devices = devices_for(device_name, num_workers)
    with leaving_no_empty_folder(run.path), accounted(run, "tune", reporter):
        with output_errors(run.path):
            run.path.mkdir(parents=True, exist_ok=True)
            mark(run.path)
        study = open_study(job, space, run, storage)
        if not run.job.exists():  # a report begins with it
            write_text(run.job, dump_job(job))
        try:
            work_through(study, job, space, num_trials, devices, reporter)
        except Stopped as stopped:
            stopped.kept = f"the trials of {study.folder} are kept"
            raise
        with study.lock():
            tuned = write_outcome(study, job, space)
    best = study.folder / "best.toml" if tuned.best else None
    where = (
        f"the best job: {best}; `outsize report {run.path}` shows what mattered"
        if best
        else "no trial has a score"
    )
    table = text_table(*trials_table(tuned), title=f"{len(tuned.rows)} trials of {job_path.name}")
    reporter.say("tuned", f"{table}\n{where}", **tuned.as_dict(), run=str(run.path))
    return tuned
