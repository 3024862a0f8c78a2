"""Scores the table of a prediction: accuracy, every class, which are taken for which, and the surest mistakes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outsize.data.pictures import Pictures, labelled_pictures
from outsize.data.sample import IGNORE
from outsize.data.scenes import label_table
from outsize.errors import RunError, explain
from outsize.job import Job
from outsize.metrics.confusion import Scores
from outsize.progress import Reporter
from outsize.runs import RunFolder
from outsize.tasks.classify.answers import scores_of
from outsize.tasks.classify.predict import TABLE
from outsize.tasks.classify.sheet import MOST_SHOWN, Shown, draw_confusion, draw_sheet
from outsize.tasks.classify.table import Row, read_table
from outsize.tasks.subjects import Subject
from outsize.units import format_score

_HEADS = {"precision": "precision", "recall": "recall", "f1": "F1"}


def evaluate(
    run: RunFolder, job: Job, split: str, subjects: Sequence[Subject], reporter: Reporter
) -> dict[str, Any]:
    """Score what was found of the pictures of a split, draw what was mistaken, and return the scores."""
    names = tuple(each.name for each in job.data.classes)
    pictures = pictures_of(subjects, job)
    with reporter.bar("evaluate", len(pictures), "picture") as bar:
        rows = rows_of(run, pictures, names)
        bar.advance(len(pictures))
    scores = scores_of(names, pictures.class_ids, found_in(rows, names))
    result = as_dict(scores)
    draw_confusion(run.picture, names, scores.counts, f"{split}: accuracy {result['accuracy']:.4f}")
    result["wrong"] = _draw_wrong(run, job, split, pictures, rows)
    return {"task": job.task, **result}


def pictures_of(subjects: Sequence[Subject], job: Job) -> Pictures:
    """Open the pictures of scenes with their classes."""
    table = label_table([each.value for each in job.data.classes], job.data.ignore_value)
    return labelled_pictures([each.scene for each in subjects], table, job.train.tile_px)


def rows_of(run: RunFolder, pictures: Pictures, names: Sequence[str]) -> list[Row]:
    """Return what was found of each picture; refuse to score some of them only."""
    table = read_table(run.predictions / TABLE, names)
    wanted = [pictures.name(index) for index in range(len(pictures))]
    missing = [name for name in wanted if name not in table]
    if missing:
        need = f"all {len(wanted):,} pictures of the split"
        remedy = f"run `outsize predict {run.path}` first, with the same --split"
        found = f"{len(missing):,} are not there: {Path(missing[0]).name}"
        raise RunError(explain(f"{run.predictions / TABLE} lacks pictures", found, need, remedy))
    return [table[name] for name in wanted]


def found_in(rows: Sequence[Row], names: Sequence[str]) -> NDArray[np.uint8]:
    """Number the classes that were found."""
    numbers = {name: number for number, name in enumerate(names)} | {"": IGNORE}
    return np.array([numbers[row.found] for row in rows], np.uint8)


def as_dict(scores: Scores) -> dict[str, Any]:
    """Return what scores.json holds; NaN becomes null."""
    true = scores.counts.sum(axis=1) + scores.unanswered
    table = zip(scores.class_names, scores.precision, scores.accuracy, scores.f1, true, strict=True)
    return {
        "accuracy": _rounded(scores.share_right),
        "mean_f1": _rounded(scores.mean_f1),
        "num_pictures": int(true.sum()),
        "unanswered": int(np.sum(scores.unanswered)),
        "classes": {
            name: {
                "precision": _rounded(precision),
                "recall": _rounded(recall),
                "f1": _rounded(f1),
                "num_pictures": int(num),
            }
            for name, precision, recall, f1, num in table
        },
        "confusion": scores.counts.tolist(),
    }


def score_lines(split: str, result: Mapping[str, Any], run: RunFolder) -> list[str]:
    """Return all that is said of a split's scores."""
    width = max(len("class"), *(len(name) for name in result["classes"])) + 1
    lines = [f"{'class':<{width}}" + "".join(f"{head:>11}" for head in _HEADS.values()) + f"{'pictures':>11}"]
    for name, row in result["classes"].items():
        figures = "".join(f"{format_score(row[key]):>11}" for key in _HEADS)
        lines.append(f"{name:<{width}}{figures}{row['num_pictures']:>11,}")
    cited = result["published"]
    if cited:
        figures = ", ".join(f"{name} {value}" for name, value in cited["scores"].items())
        lines.append(f"published{': ' if cited['source'] else ''}{cited['source']}: {figures}")
    num_right = sum(row[number] for number, row in enumerate(result["confusion"]))
    lines.append(
        f"{split}: accuracy {format_score(result['accuracy'])} ({num_right:,} of {result['num_pictures']:,} pictures), "
        f"mean F1 {format_score(result['mean_f1'])}: {run.scores}"
    )
    return lines


def _draw_wrong(
    run: RunFolder, job: Job, split: str, pictures: Pictures, rows: Sequence[Row]
) -> dict[str, Any] | None:
    """Draw the mistakes, first those that the model was surest of; None where there are none."""
    names = [each.name for each in job.data.classes]
    truth = [names[each] if each < len(names) else "" for each in pictures.class_ids.tolist()]
    wrong = [
        index for index, row in enumerate(rows) if row.found and truth[index] and row.found != truth[index]
    ]
    path = run.pictures / f"{split}-wrong.png"
    path.unlink(missing_ok=True)
    if not wrong:
        return None
    surest = sorted(wrong, key=lambda index: -rows[index].share)[:MOST_SHOWN]
    shown = [
        Shown(each, f"{truth[each]} > {rows[each].found}: {rows[each].share:.0%}", True) for each in surest
    ]
    title = f"{len(shown)} of {len(wrong)} mistakes: true class > what it was taken for"
    draw_sheet(path, pictures, shown, job.data.bands, title)
    return {"num": len(wrong), "picture": path.relative_to(run.path).as_posix()}


def _rounded(value: float) -> float | None:
    return None if np.isnan(value) else round(float(value), 6)
