"""`outsize evaluate RUN`: a run's maps against the labels of its scenes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outsize.commands.scoring import Subject, files_of, open_split
from outsize.job import Job, load_job
from outsize.progress import Reporter
from outsize.runs import RunFolder, open_run, output_errors, read_json, write_json

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from outsize.infer.evaluate import Comparison, MapFiles


def evaluate(run_path: Path, *, split: str, reporter: Reporter, aoi: Path | None = None) -> dict[str, Any]:
    """Score the maps of one split and leave scores.json and pictures; returns the split's scores."""
    from outsize.data.scenes import label_table

    run = open_run(run_path)
    job = load_job(run.job)
    subjects = open_split(run, job, split, aoi, reporter)
    files = files_of(run, [each.scene for each in subjects])
    table = label_table([each.value for each in job.data.classes], job.data.ignore_value)
    compared = _compare(subjects, files, table, len(job.data.classes), reporter)
    result = _result(job, subjects, compared)
    result["aoi"] = None if aoi is None else str(aoi)
    result["places"] = _draw_places(run, job, split, subjects, files, compared, table)
    known = read_json(run.scores, "evaluate") if run.scores.exists() else {}
    write_json(run.scores, {**known, split: result})
    _draw_middle(run, job, subjects[0], files[0], table)
    _say(result, split, run, reporter)
    return result


def _compare(
    subjects: Sequence[Subject],
    files: Sequence[MapFiles],
    table: NDArray[np.uint8],
    num_classes: int,
    reporter: Reporter,
) -> list[Comparison]:
    from outsize.infer.evaluate import compare_map, num_windows

    num = sum(num_windows(each.scene.image.height, each.scene.image.width) for each in subjects)
    with reporter.bar("evaluate", num, "window") as bar:
        return [
            compare_map(
                maps, subject.scene, table, num_classes, number=number, inside=subject.inside, bar=bar
            )
            for number, (subject, maps) in enumerate(zip(subjects, files, strict=True))
        ]


def _result(job: Job, subjects: Sequence[Subject], compared: Sequence[Comparison]) -> dict[str, Any]:
    import numpy as np

    from outsize.metrics.calibration import no_pixels
    from outsize.metrics.confusion import Scores

    names = tuple(each.name for each in job.data.classes)
    scenes = []
    for subject, found in zip(subjects, compared, strict=True):
        scores = Scores(names, found.counts).as_dict()
        figures = {key: scores[key] for key in ("mean_iou", "pixel_accuracy", "num_px")}
        trust = found.reliability
        if trust is not None:
            figures["expected_calibration_error"] = trust.as_dict()["expected_calibration_error"]
        scenes.append({"name": subject.name, "scene": str(subject.scene.image.path), **figures})
    total = np.sum([found.counts for found in compared], axis=0)
    trusts = [found.reliability for found in compared if found.reliability is not None]
    reliability = sum(trusts, no_pixels()).as_dict() if trusts else None
    return {**Scores(names, total).as_dict(), "scenes": scenes, "reliability": reliability}


def _draw_places(
    run: RunFolder,
    job: Job,
    split: str,
    subjects: Sequence[Subject],
    files: Sequence[MapFiles],
    compared: Sequence[Comparison],
    table: NDArray[np.uint8],
) -> list[dict[str, Any]]:
    """Draw the best, the median and the worst places and return what scores.json says of them."""
    from outsize.infer.places import pick_places
    from outsize.infer.view import view_window
    from outsize.tasks.draw import draw_place

    for old in run.pictures.glob(f"{split}-*.png"):
        with output_errors(old):
            old.unlink(missing_ok=True)
    classes = [(each.name, each.colour) for each in job.data.classes]
    drawn: list[dict[str, Any]] = []
    for rank, place in pick_places([each for found in compared for each in found.places]):
        subject = subjects[place.scene]
        number = 1 + sum(each["rank"] == rank for each in drawn)
        path = run.pictures / f"{split}-{rank}-{number}.png"
        seen = view_window(
            subject.scene,
            files[place.scene].classes,
            place.window,
            table,
            bands=job.data.bands,
            inside=subject.inside,
        )
        draw_place(path, *seen, classes)
        picture = path.relative_to(run.path).as_posix()
        drawn.append({"rank": rank, "picture": picture, "scene": subject.name, **place.as_dict()})
    return drawn


def _draw_middle(
    run: RunFolder, job: Job, subject: Subject, files: MapFiles, table: NDArray[np.uint8]
) -> None:
    from outsize.infer.view import view_window
    from outsize.tasks.draw import draw_triptych
    from outsize.tiles.window import middle_window

    image = subject.scene.image
    window = middle_window(image.height, image.width, 1024)
    place = f"rows {window.row}-{window.row_end}, columns {window.col}-{window.col_end}"
    seen = view_window(subject.scene, files.classes, window, table, bands=job.data.bands)
    classes = [(each.name, each.colour) for each in job.data.classes]
    draw_triptych(run.picture, *seen, classes, title=f"{subject.name}, {place}")


def _say(result: dict[str, Any], split: str, run: RunFolder, reporter: Reporter) -> None:
    lines = [f"{'class':<16}{'IoU':>8}{'accuracy':>10}{'F1':>8}{'pixels':>14}"]
    for name, row in result["classes"].items():
        iou, accuracy, f1 = (_figure(row[key]) for key in ("iou", "accuracy", "f1"))
        lines.append(f"{name:<16}{iou:>8}{accuracy:>10}{f1:>8}{row['num_px']:>14,}")
    if len(result["scenes"]) > 1:
        width = max(16, *(len(each["name"]) for each in result["scenes"]))
        lines.append(f"{'scene':<{width}}{'mean IoU':>10}{'right':>8}{'pixels':>14}")
        for each in result["scenes"]:
            figures = f"{_figure(each['mean_iou']):>10}{_figure(each['pixel_accuracy']):>8}"
            lines.append(f"{each['name']:<{width}}{figures}{each['num_px']:>14,}")
    trust = result["reliability"]
    error = f", calibration error {_figure(trust['expected_calibration_error'])}" if trust else ""
    lines.append(
        f"{split}: mean IoU {_figure(result['mean_iou'])}, pixel accuracy {_figure(result['pixel_accuracy'])}"
        f"{error}: {run.scores}"
    )
    reporter.say("scores", "\n".join(lines), split=split, **result)


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"
