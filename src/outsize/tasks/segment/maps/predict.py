"""Predicts the scenes of a run, or one by itself: which files they leave, and what is said of them."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from outsize.files.ownership import NONE_GIVEN, Consent
from outsize.infer.compare import measure_on_scene
from outsize.infer.ledger import add_to_ledger
from outsize.infer.ready import Ready, warn_resolution
from outsize.job import PredictSection
from outsize.progress import Reporter
from outsize.raster.georef import NO_PLACE
from outsize.raster.polygons import AreaOfInterest
from outsize.raster.reading import SceneInfo
from outsize.runs import leaving_no_empty_folder
from outsize.tasks.segment.maps.decoding import threshold_for
from outsize.tasks.segment.maps.scene import Products, predict_scene
from outsize.tasks.segment.maps.unanswered import unanswered_line
from outsize.units import format_pixels, format_seconds


def products_for(
    path: Path,
    section: PredictSection,
    info: SceneInfo,
    *,
    inside: AreaOfInterest | None = None,
    consent: Consent = NONE_GIVEN,
) -> Products:
    """Return what a prediction of a scene leaves; `path` is without ending."""
    vectors = section.polygons
    if vectors == "auto":
        vectors = "none" if info.georef == NO_PLACE else "gpkg"
    return Products(
        path.with_name(f"{path.name}.tif"),
        confidence=section.confidence,
        probabilities=section.probabilities,
        polygons=None if vectors == "none" else path.with_name(f"{path.name}.{vectors}"),
        min_area_m2=section.min_area_m2,
        simplify_m=section.simplify_m,
        overviews=section.overviews,
        inside=inside,
        consent=consent,
    )


def predict_scenes(
    run_path: Path,
    ready: Ready,
    scenes: Sequence[tuple[SceneInfo, Products]],
    section: PredictSection,
    reporter: Reporter,
) -> list[dict[str, Any]]:
    """Predict scenes one after the other, each into a map of its own; returns what predict.json lists.

    Where ranks share the tiles, it is the owner who writes, and what is returned is known to it alone.
    """
    threshold, results = threshold_for(ready.card.options, section.threshold), []
    owns = ready.settings.world.is_owner
    approximate = {} if ready.plan.exact or not owns else _approximation(ready, scenes[0][0], reporter)
    for info, products in scenes:
        warn_resolution(ready, info, reporter)
        result = _predict(ready, info, replace(products, threshold=threshold), reporter)
        if not owns:
            continue
        results.append({**result, **ready.about(info), **approximate})
        _say(result, info, reporter)
        folder = products.map_path.parent
        add_to_ledger(folder, results[-1], {"run": str(run_path), "plan": ready.plan.as_dict()})
    return results


def predict_one(
    ready: Ready, info: SceneInfo, results: Sequence[Path], section: PredictSection, consent: Consent
) -> dict[str, Any]:
    """Predict a scene into a map and perhaps polygons, and return what was done."""
    target, polygons = (*results, None)[:2]
    assert target is not None
    threshold = threshold_for(ready.card.options, section.threshold)
    products = Products(target, polygons=polygons, threshold=threshold, consent=consent)
    with leaving_no_empty_folder(target.parent):
        done = _predict(ready, info, products, Reporter("quiet"))
    if "unanswered_px" in done:
        warnings.warn(unanswered_line(info.path.name, done["unanswered_px"]), stacklevel=3)
    return {**done, **ready.about(info)}


def _predict(ready: Ready, info: SceneInfo, products: Products, reporter: Reporter) -> dict[str, Any]:
    return predict_scene(
        ready.model,
        ready.card,
        info,
        products,
        tiling=ready.settings.world.owners(lambda: ready.tiling_of(info)),
        settings=ready.settings,
        weights_id=ready.weights_id,
        reporter=reporter,
    )


def _approximation(ready: Ready, info: SceneInfo, reporter: Reporter) -> dict[str, Any]:
    """Measure on a part of the scene how far the approximate tiles are from the whole."""
    difference = measure_on_scene(ready, info, ready.tiling.halo)
    text = (
        f"approximate: {'; '.join(ready.plan.why)}; on a part of {info.path.name} the logits differ by up to "
        f"{difference.relative:.1e} of the largest"
    )
    reporter.say("approximate", text, relative_difference=difference.relative)
    return {"relative_difference": difference.relative}


def _say(result: dict[str, Any], info: SceneInfo, reporter: Reporter) -> None:
    polygons = ""
    if "num_polygons" in result:
        polygons = f", {result['num_polygons']:,} polygons in {format_seconds(result['polygons_s'])}"
    text = (
        f"{info.path.name}: {format_pixels(info.height, info.width)} in {format_seconds(result['tiles_s'])} "
        f"({result['tiles_mpx_per_s']} Mpx/s), redundancy {result['redundancy']:.2f}{polygons}: "
        f"{result['map']}"
    )
    reporter.say("predicted", text, **result)
