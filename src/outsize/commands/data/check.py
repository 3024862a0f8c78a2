"""`outsize check JOB`: reads all data once and says what is wrong with it before an hour is lost."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from outsize.accounts import accounted
from outsize.errors import InUseError
from outsize.job import Job, load_job
from outsize.job.models import refuse_unknown_model, refuse_unknown_options
from outsize.job.naming import naming
from outsize.progress import Reporter
from outsize.runs import RunFolder, refuse_foreign, working_in


def check(job_path: Path, *, overrides: Sequence[str], reporter: Reporter) -> None:
    """Check a job's data: a table of what is there and what is wrong, split.json, data.json; fails where it must."""
    job = load_job(job_path, overrides)
    run = RunFolder(Path(job.run))
    refuse_foreign(run)
    with naming(job_path):  # before torch is loaded, which takes a while
        refuse_unknown_model(job.model.name)
        refuse_unknown_options(job.model.name, job.model.options)
    from outsize.data.catalogue import make_splits, refuse_too_many
    from outsize.data.checking import check_data, open_and_count, save, say_or_refuse
    from outsize.data.feeding import num_cores
    from outsize.data.split import write_split

    with accounted(run, "check", reporter):
        num_threads = max(job.train.workers, num_cores())
        with naming(job_path), reporter.doing("check", parallel=num_threads):
            survey, known = open_and_count(
                job.data, seed=job.seed, cache=run.labels, num_threads=num_threads, reporter=reporter
            )
            refuse_too_many(survey.corrupt, survey.num_images, job.data.max_bad_share)
            halo_px = blocks_halo_px(job, next(iter(survey.scenes.values())).image.num_bands)
            splits = make_splits(survey, job.data, seed=job.seed, halo_px=halo_px)
        with ExitStack() as stack:
            checked = check_data(
                job.data,
                splits,
                num_threads=num_threads,
                known=known,
                bar=lambda total: stack.enter_context(
                    reporter.bar("check", total, "part", parallel=num_threads)
                ),
            )
        written = f"written: {run.data}, {run.split}"
        try:
            with working_in(run, "check"):
                write_split(run.split, checked.splits)
                save(run.data, job.data, splits, checked)
        except InUseError as error:
            written = f"not written: {error}"
        say_or_refuse(job.data, checked, reporter)
        reporter.say("written", written)


def blocks_halo_px(job: Job, in_channels: int) -> int:
    """Return the distance that blocks of different splits need: the model's halo; 0 where nothing asks for it."""
    if not job.data.images or job.data.split.by != "blocks" or job.data.split.gap_px is not None:
        return 0
    from outsize.models import build_model
    from outsize.tasks import task_of

    cutting = task_of(job.task).cutting
    if not cutting.exactly:  # a gap must be given, which is said where the blocks are shared out
        return 0

    options = {key: value for key, value in job.model.options.items() if key != "weights"}
    model = build_model(job.model.name, num_classes=len(job.data.classes), in_channels=in_channels, **options)
    return cutting.halo(model, in_channels).largest_px
