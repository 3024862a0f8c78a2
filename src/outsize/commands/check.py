"""`outsize check JOB`: reads all data once and says what is wrong with it before an hour is lost."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from outsize.errors import DataError, InUseError, OutsizeError
from outsize.job import Job, load_job
from outsize.job.models import refuse_unknown_model, refuse_unknown_options
from outsize.job.naming import naming
from outsize.progress import Reporter
from outsize.runs import RunFolder, refuse_foreign, working_in
from outsize.units import format_count

if TYPE_CHECKING:
    from outsize.data.catalogue import Survey
    from outsize.data.checking.check import Checked
    from outsize.data.checking.problems import Problem

_MAX_SHOWN = 20  # problems of one kind in the table; data.json has all of them


def check(job_path: Path, *, overrides: Sequence[str], reporter: Reporter) -> None:
    """Check a job's data: a table of what is there and what is wrong, split.json, data.json; fails where it must."""
    job = load_job(job_path, overrides)
    run = RunFolder(Path(job.run))
    refuse_foreign(run)
    with naming(job_path):  # before torch is loaded, which takes a while
        refuse_unknown_model(job.model.name)
        refuse_unknown_options(job.model.name, job.model.options)
    from outsize.data.catalogue import make_splits, refuse_too_many
    from outsize.data.checking.check import check_data, open_and_count, save
    from outsize.data.feeding import num_cores
    from outsize.data.split import write_split

    num_threads = max(job.train.workers, num_cores())
    with naming(job_path):
        survey, known = open_and_count(job.data, seed=job.seed, cache=run.labels, num_threads=num_threads)
        _refuse_faults(survey, reporter)
        refuse_too_many(survey.corrupt, survey.num_images, job.data.max_bad_share)
        halo_px = blocks_halo_px(job, next(iter(survey.scenes.values())).image.num_bands)
        splits = make_splits(survey, job.data, seed=job.seed, halo_px=halo_px)
    with ExitStack() as stack:
        checked = check_data(
            job.data,
            splits,
            num_threads=num_threads,
            known=known,
            bar=lambda total: stack.enter_context(reporter.bar("check", total, "part")),
        )
    written = f"written: {run.data}, {run.split}"
    try:
        with working_in(run, "check"):
            write_split(run.split, checked.splits)
            save(run.data, job.data, splits, checked)
    except InUseError as error:
        written = f"not written: {error}"
    _say(job, checked, reporter)
    _refuse(checked.problems, reporter)
    reporter.say("written", written)


def blocks_halo_px(job: Job, in_channels: int) -> int:
    """Return the distance that blocks of different splits need: the model's halo; 0 where nothing asks for it."""
    if not job.data.images or job.data.split.by != "blocks" or job.data.split.gap_px is not None:
        return 0
    if job.data.objects:  # a gap must be given, which is said where the blocks are shared out
        return 0
    from outsize.measure.facts import halo_of
    from outsize.models import build_model

    options = {key: value for key, value in job.model.options.items() if key != "weights"}
    model = build_model(job.model.name, num_classes=len(job.data.classes), in_channels=in_channels, **options)
    return halo_of(model, in_channels).largest_px


def _refuse_faults(survey: Survey, reporter: Reporter) -> None:
    """Refuse data of which images cannot be used, and name all of them."""
    from outsize.data.checking.problems import Problem

    if survey.faults:
        texts = (*map(str, survey.faults), *(bad.reason for bad in survey.corrupt))
        _refuse([Problem("fault", "", text) for text in texts], reporter, type(survey.faults[0]))


def _refuse(problems: Sequence[Problem], reporter: Reporter, error: type[OutsizeError] = DataError) -> None:
    """Fail with the first problem that stands in the way; the others are listed before: each is said once."""
    from outsize.data.checking.problems import merged

    fatal = merged([problem for problem in problems if problem.fatal])
    if not fatal:
        return
    first, *others = fatal
    for each in others[:_MAX_SHOWN]:
        reporter.say("problem", f"wrong: {each.text}")
    where = "shown without --quiet" if reporter.style == "quiet" else "listed above"
    more = f" ({format_count(len(others), 'more problem')}, {where})" if others else ""
    raise error(first.text + more)


def _say(job: Job, checked: Checked, reporter: Reporter) -> None:
    from outsize.data.checking.check import say_set_aside
    from outsize.data.checking.problems import merged

    facts = {
        "images": {split: len(scenes) for split, scenes in checked.splits.items()},
        "class_px": {split: counts.tolist() for split, counts in checked.class_px.items()},
        "problems": [vars(problem) for problem in checked.problems],
        "set_aside": [str(bad.path) for bad in checked.splits.set_aside],
        **({} if checked.objects is None else {"objects": checked.objects.as_dict()}),
    }
    reporter.say("check", _table(job, checked) if reporter.style == "bar" else _summary(checked), **facts)
    is_refused = any(problem.kind == "corrupt" for problem in checked.problems)
    if not is_refused:
        say_set_aside(checked, reporter)
    elif len(checked.splits.set_aside) > 1:  # what is wrong with a single one is what the check ends with
        for bad in checked.splits.set_aside[:_MAX_SHOWN]:
            reporter.say("corrupt", f"cannot be read: {bad.reason}", file=str(bad.path))
    for problem in merged([each for each in checked.problems if not each.fatal])[:_MAX_SHOWN]:
        reporter.say("problem", f"note: {problem.text}")


def _summary(checked: Checked) -> str:
    num = len({scene.image.path for _, scenes in checked.splits.items() for scene in scenes})
    num_fatal = sum(problem.fatal for problem in checked.problems)
    objects = "" if checked.objects is None else f"\n{checked.objects.text}"
    images, problems = format_count(num, "image"), format_count(num_fatal, "problem")
    return f"{images}, {len(checked.splits.set_aside):,} set aside, {problems}{objects}"


def _table(job: Job, checked: Checked) -> str:
    """Draw classes by split, and bands, for a person."""
    from rich import box
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console(width=100, no_color=True)
    classes = Table(box=box.SIMPLE_HEAD)
    classes.add_column("class")
    for split, scenes in checked.splits.items():
        classes.add_column(f"{split} ({format_count(len(scenes), 'image')})", justify="right")
    for index, each in enumerate(job.data.classes):
        classes.add_row(escape(each.name), *_cells(index, checked))
    bands = Table(box=box.SIMPLE_HEAD)
    for title in ("band", "mean", "std"):
        bands.add_column(title, justify="left" if title == "band" else "right")
    if checked.statistics is not None and checked.splits.train:
        names = job.data.bands or checked.splits.train[0].image.band_names
        for number, (mean, std) in enumerate(
            zip(checked.statistics.mean, checked.statistics.std, strict=True), start=1
        ):
            name = names[number - 1] if number <= len(names) and names[number - 1] else str(number)
            bands.add_row(escape(name), f"{mean:.4g}", f"{std:.4g}")
    with console.capture() as captured:
        console.print(classes, bands)
    return f"{_summary(checked)}\n{captured.get().rstrip()}"


def _cells(index: int, checked: Checked) -> list[str]:
    """Return what each split has of a class: its share of labelled pixels, or its objects."""
    if checked.objects is not None:
        return [f"{counts[index]:,}" for counts in checked.objects.of_class.values()]
    totals = [(counts, int(counts.sum())) for counts in checked.class_px.values()]
    return [f"{counts[index] / total:.2%}" if total else "" for counts, total in totals]
