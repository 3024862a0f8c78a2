"""`outsize evaluate RUN OTHER`: the maps of two runs against the same labels, and against each other."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outsize.commands.scoring import Subject, files_of, open_split
from outsize.errors import RunError, explain
from outsize.job import Job, load_job
from outsize.progress import Reporter
from outsize.runs import RunFolder, open_run, write_json

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from outsize.infer.evaluate import MapFiles
    from outsize.metrics.confusion import Counts

    Tables = tuple[NDArray[np.uint8], NDArray[np.uint8]]


def compare(
    paths: tuple[Path, Path], *, split: str, reporter: Reporter, aoi: Path | None = None
) -> dict[str, Any]:
    """Score two runs on the scenes of the first and count where their maps agree; leaves compare.json in it."""
    from outsize.commands.compare_objects import compare_objects
    from outsize.data.scenes import label_table
    from outsize.tasks import TASKS

    runs = (open_run(paths[0]), open_run(paths[1]))
    jobs = (load_job(runs[0].job), load_job(runs[1].job))
    _refuse_other_classes(runs, jobs)
    if all(TASKS[job.task].decode is None for job in jobs):
        return compare_objects(runs, jobs, split, aoi, reporter)
    names = tuple(each.name for each in jobs[0].data.classes)
    # the second run may give its classes other values, and in another order
    values = [{each.name: each.value for each in job.data.classes} for job in jobs]
    first, second = (
        label_table([of_name[name] for name in names], job.data.ignore_value)
        for of_name, job in zip(values, jobs, strict=True)
    )
    subjects = open_split(runs[0], jobs[0], split, aoi, reporter)
    here, there = (files_of(run, [each.scene for each in subjects]) for run in runs)
    pairs = list(zip(here, there, strict=True))
    counts = _count(subjects, pairs, (first, second), len(names), reporter)
    result = {
        "split": split,
        "runs": [str(run.path) for run in runs],
        "aoi": None if aoi is None else str(aoi),
        **_differences(names, counts),
        "scenes": [
            {"name": subject.name, **_differences(names, [each])}
            for subject, each in zip(subjects, counts, strict=True)
        ],
    }
    write_json(runs[0].comparison, result)
    _say(result, runs, reporter)
    return result


def _refuse_other_classes(runs: Sequence[RunFolder], jobs: Sequence[Job]) -> None:
    here, there = ({each.name for each in job.data.classes} for job in jobs)
    if here != there:
        need, remedy = f"the classes of {runs[0].path}, {', '.join(sorted(here))}", "compare runs of one task"
        found = ", ".join(sorted(there))
        raise RunError(explain(f"run {runs[1].path} has other classes", found, need, remedy))


def _count(
    subjects: Sequence[Subject],
    files: Sequence[tuple[MapFiles, MapFiles]],
    tables: Tables,
    num_classes: int,
    reporter: Reporter,
) -> list[tuple[Counts, Counts, Counts]]:
    """Return for each scene: truth against the first map, truth against the second, first against second."""
    from outsize.infer.evaluate import compare_map, compare_maps, num_windows

    num = 3 * sum(num_windows(each.scene.image.height, each.scene.image.width) for each in subjects)
    counts = []
    with reporter.bar("compare", num, "window") as bar:
        for subject, (here, there) in zip(subjects, files, strict=True):
            inside = subject.inside
            first, second = (
                compare_map(
                    maps, subject.scene, tables[0], num_classes, map_table=table, inside=inside, bar=bar
                ).counts
                for maps, table in zip((here, there), tables, strict=True)
            )
            paths = (here.classes, there.classes)
            both = compare_maps(paths, tables, subject.scene, num_classes, inside=inside, bar=bar)
            counts.append((first, second, both))
    return counts


def _differences(names: tuple[str, ...], counts: Sequence[tuple[Counts, Counts, Counts]]) -> dict[str, Any]:
    """Return the scores of both runs, what the second has more, and the share of pixels on which they agree."""
    import numpy as np

    from outsize.metrics.confusion import Scores

    first, second, both = (np.sum(each, axis=0) for each in zip(*counts, strict=True))
    scores = [Scores(names, each).as_dict() for each in (first, second)]
    overall = {
        key: [each[key] for each in scores]
        for key in ("mean_iou", "pixel_accuracy", "mean_f1", "weighted_iou")
    }
    classes = {}
    for name in names:
        ious = [each["classes"][name]["iou"] for each in scores]
        classes[name] = {"iou": ious, "difference": _difference(*ious)}
    num_px = int(both.sum())
    return {
        **overall,
        "difference": _difference(*overall["mean_iou"]),
        "classes": classes,
        "agreement": round(float(np.trace(both)) / num_px, 6) if num_px else None,
        "num_px": num_px,
    }


def _difference(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None else round(after - before, 6)


def _say(result: dict[str, Any], runs: Sequence[RunFolder], reporter: Reporter) -> None:
    lines = [f"A = {runs[0].path}", f"B = {runs[1].path}"]
    lines.append(f"{'IoU':<16}{'A':>9}{'B':>9}{'B - A':>10}")
    for name, row in result["classes"].items():
        lines.append(_line(name, row["iou"], row["difference"]))
    lines.append(_line("mean", result["mean_iou"], result["difference"]))
    share = "-" if result["agreement"] is None else f"{100 * result['agreement']:.2f} %"
    text = (
        f"{result['split']}: the maps agree on {share} of {result['num_px']:,} pixels: {runs[0].comparison}"
    )
    reporter.say("compared", "\n".join([*lines, text]), **result)


def _line(name: str, ious: Sequence[float | None], difference: float | None) -> str:
    here, there = ("-" if each is None else f"{each:.4f}" for each in ious)
    change = "-" if difference is None else f"{difference:+.4f}"
    return f"{name:<16}{here:>9}{there:>9}{change:>10}"
