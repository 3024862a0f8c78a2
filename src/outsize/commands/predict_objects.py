"""`outsize predict` for the task instances: the objects of scenes into layers, COCO files, ids and pictures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outsize.job import ObjectsSection
from outsize.progress import Reporter
from outsize.units import format_pixels, format_seconds

if TYPE_CHECKING:
    from outsize.infer.object_scene import ObjectProducts
    from outsize.infer.ready import Ready
    from outsize.raster.reading import SceneInfo


def predict_objects(
    run_path: Path,
    ready: Ready,
    scenes: Sequence[tuple[SceneInfo, ObjectProducts]],
    section: ObjectsSection,
    reporter: Reporter,
) -> list[dict[str, Any]]:
    """Predict scenes one after the other, each with files of its own; returns what predict.json lists."""
    from outsize.infer.ledger import add_to_ledger
    from outsize.infer.object_scene import finder_of, predict_objects
    from outsize.measure.usage import watching, write_usage

    finder, results = finder_of(ready, section.min_score), []
    with watching(ready.settings.device) as usage:
        for info, products in scenes:
            warn_no_place(info, reporter)
            result = predict_objects(finder, ready.card, info, products, reporter)
            results.append(result)
            _say(result, info, reporter)
            folder = products.vectors.parent
            add_to_ledger(folder, result, {"run": str(run_path), "plan": ready.plan.as_dict()})
        summary = usage.summary(len(scenes), images_at_once=ready.settings.batch)
    write_usage(run_path, "predict", summary)
    text = f"{summary['s_per_image']:.3g} s per image, CPU load {summary['cpu_load']:.2f}"
    if summary["gpu_use"] is not None:
        text += f", GPU use {summary['gpu_use']:.0%}"
    reporter.say("usage", text, **summary)
    return results


def warn_no_place(info: SceneInfo, reporter: Reporter) -> None:
    """Warn that the objects of a picture without a coordinate system have no place on Earth."""
    from outsize.raster.georef import NO_PLACE

    if info.georef.crs_wkt is not None:
        return
    where = (
        "coordinates are pixels, columns to the right and rows downward"
        if info.georef.transform == NO_PLACE.transform
        else "coordinates are those of its world file, in an unknown system"
    )
    text = f"warning: {info.path.name} has no coordinate system: {where}, and areas are in pixels"
    reporter.say("warning", text, scene=str(info.path))


def _say(result: dict[str, Any], info: SceneInfo, reporter: Reporter) -> None:
    found = ", ".join(f"{num:,} {name}" for name, num in result["classes"].items() if num) or "no objects"
    text = (
        f"{info.path.name}: {format_pixels(info.height, info.width)} in {format_seconds(result['tiles_s'])} "
        f"({result['tiles_mpx_per_s']} Mpx/s), redundancy {result['redundancy']:.2f}, {found}: {result['map']}"
    )
    reporter.say("predicted", text, **result)
