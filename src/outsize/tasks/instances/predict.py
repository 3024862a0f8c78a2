"""Predicts the objects of the scenes of a run, or of one by itself, into layers, COCO files, ids and pictures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from outsize.files.ownership import NONE_GIVEN, Consent
from outsize.infer.ledger import add_to_ledger
from outsize.infer.ready import Ready, warn_resolution
from outsize.job import PredictSection
from outsize.measure.usage import watching, write_usage
from outsize.progress import Reporter
from outsize.raster.georef import NO_PLACE
from outsize.raster.polygons import AreaOfInterest
from outsize.raster.reading import SceneInfo
from outsize.raster.vectors import choose_driver
from outsize.tasks.instances.scene import ObjectProducts, finder_of, predict_objects
from outsize.units import format_pixels, format_seconds


def products_for(
    path: Path,
    section: PredictSection,
    info: SceneInfo,  # noqa: ARG001 (as segment)
    *,
    inside: AreaOfInterest | None = None,
    consent: Consent = NONE_GIVEN,
) -> ObjectProducts:
    """Return what a prediction of a scene leaves; `path` is without ending."""
    return ObjectProducts(path, section.objects, inside, consent)


def predict_scenes(
    run_path: Path,
    ready: Ready,
    scenes: Sequence[tuple[SceneInfo, ObjectProducts]],
    section: PredictSection,
    reporter: Reporter,
) -> list[dict[str, Any]]:
    """Predict scenes one after the other, each with files of its own; returns what predict.json lists."""
    for info, _ in scenes:
        warn_resolution(ready, info, reporter)
    finder, results = finder_of(ready, section.objects.min_score), []
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


def predict_one(
    ready: Ready, info: SceneInfo, results: Sequence[Path], section: PredictSection, consent: Consent
) -> dict[str, Any]:
    """Predict the objects of a scene into one file of layers, a COCO file beside it, and return what was done."""
    target = results[0]
    choose_driver(target)  # refuses other kinds of files
    wishes = {"vectors": target.suffix.removeprefix("."), "picture": False}
    wanted = section.objects.model_copy(update=wishes)
    products = ObjectProducts(target.with_suffix(""), wanted, consent=consent)
    finder = finder_of(ready, section.objects.min_score)
    done = predict_objects(finder, ready.card, info, products, Reporter("quiet"))
    return {**done, "exact": ready.plan.exact}


def warn_no_place(info: SceneInfo, reporter: Reporter) -> None:
    """Warn that the objects of a picture without a coordinate system have no place on Earth."""
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
