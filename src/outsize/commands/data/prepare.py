"""`outsize prepare JOB`: raw files become what training reads; repeated, what is missing or has changed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from outsize.accounts import accounted
from outsize.errors import JobError, explain
from outsize.job import load_job
from outsize.prepare.all import FolderFilled
from outsize.prepare.folder import prepare_folder
from outsize.progress import Reporter
from outsize.runs import RunFolder


def prepare(
    job_path: Path,
    *,
    overrides: Sequence[str],
    changes: dict[str, object],
    reporter: Reporter,
    take_over: bool = False,
) -> FolderFilled:
    """Prepare what a job's section [prepare] names; `changes` are keys of that section."""
    from outsize import __version__
    from outsize.data.raw import raw_pieces

    job = load_job(job_path, overrides)
    if job.prepare is None:
        need, remedy = "that section", "write it, with prepare.images"
        raise JobError(explain(f"{job_path} has no section [prepare]", "nothing to prepare", need, remedy))
    section = job.prepare.model_copy(update=changes)
    with accounted(RunFolder(Path(job.run)), "prepare", reporter, begins=True):
        pieces = raw_pieces(section, job.data, job_path.parent, __version__)
        return prepare_folder(
            pieces,
            job_path.parent / section.to,
            section,
            version=__version__,
            reporter=reporter,
            take_over=take_over,
        )
