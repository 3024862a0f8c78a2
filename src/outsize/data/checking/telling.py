"""Says what a check found: a table, notes, what is set aside; and refuses data with which training cannot begin."""

from __future__ import annotations

from collections.abc import Sequence

from outsize.data.catalogue import Survey
from outsize.data.checking.checked import Checked
from outsize.data.checking.problems import Problem, merged
from outsize.errors import DataError, OutsizeError
from outsize.job import DataSection
from outsize.progress import Reporter
from outsize.units import format_count

_MAX_NAMED = 20  # images that are named; split.json has all of them
_MAX_SHOWN = 20  # problems of one kind in the table; data.json has all of them


def say_set_aside(checked: Checked, reporter: Reporter) -> None:
    """Name the corrupt images that are left out; split.json has all of them."""
    bad = checked.splits.set_aside
    for each in bad[:_MAX_NAMED]:
        reporter.say("set aside", f"set aside: {each.reason}", file=str(each.path))
    if len(bad) > _MAX_NAMED:
        reporter.say("set aside", f"set aside: {len(bad) - _MAX_NAMED} more")


def refuse_faults(survey: Survey, reporter: Reporter) -> None:
    """Refuse data of which images cannot be used, and name all of them."""
    if survey.faults:
        texts = (*map(str, survey.faults), *(bad.reason for bad in survey.corrupt))
        _refuse([Problem("fault", "", text) for text in texts], reporter, type(survey.faults[0]))


def _refuse(problems: Sequence[Problem], reporter: Reporter, error: type[OutsizeError] = DataError) -> None:
    """Fail with the first problem that stands in the way; the others are listed before: each is said once."""
    fatal = merged([problem for problem in problems if problem.fatal])
    if not fatal:
        return
    first, *others = fatal
    for each in others[:_MAX_SHOWN]:
        reporter.say("problem", f"wrong: {each.text}")
    where = "shown without --quiet" if reporter.style == "quiet" else "listed above"
    more = f" ({format_count(len(others), 'more problem')}, {where})" if others else ""
    raise error(first.text + more)


def say_or_refuse(data: DataSection, checked: Checked, reporter: Reporter) -> None:
    """Say what is there and what is wrong with it; fail with the first problem that stands in the way."""
    facts = {
        "images": {split: len(scenes) for split, scenes in checked.splits.items()},
        "class_px": {split: counts.tolist() for split, counts in checked.class_px.items()},
        "problems": [vars(problem) for problem in checked.problems],
        "set_aside": [str(bad.path) for bad in checked.splits.set_aside],
        **({} if checked.objects is None else {"objects": checked.objects.as_dict()}),
    }
    reporter.say("check", _table(data, checked) if reporter.style == "bar" else _summary(checked), **facts)
    is_refused = any(problem.kind == "corrupt" for problem in checked.problems)
    if not is_refused:
        say_set_aside(checked, reporter)
    elif len(checked.splits.set_aside) > 1:  # what is wrong with a single one is what the check ends with
        for bad in checked.splits.set_aside[:_MAX_SHOWN]:
            reporter.say("corrupt", f"cannot be read: {bad.reason}", file=str(bad.path))
    for problem in merged([each for each in checked.problems if not each.fatal])[:_MAX_SHOWN]:
        reporter.say("problem", f"note: {problem.text}")
    _refuse(checked.problems, reporter)


def _summary(checked: Checked) -> str:
    num = len({scene.image.path for _, scenes in checked.splits.items() for scene in scenes})
    num_fatal = sum(problem.fatal for problem in checked.problems)
    objects = "" if checked.objects is None else f"\n{checked.objects.text}"
    images, problems = format_count(num, "image"), format_count(num_fatal, "problem")
    return f"{images}, {len(checked.splits.set_aside):,} set aside, {problems}{objects}"


def _table(data: DataSection, checked: Checked) -> str:
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
    for index, each in enumerate(data.classes):
        classes.add_row(escape(each.name), *_cells(index, checked))
    bands = Table(box=box.SIMPLE_HEAD)
    for title in ("band", "mean", "std"):
        bands.add_column(title, justify="left" if title == "band" else "right")
    if checked.statistics is not None and checked.splits.train:
        names = data.bands or checked.splits.train[0].image.band_names
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
