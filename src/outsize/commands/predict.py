"""`outsize predict RUN IMAGES...`: maps, confidence and polygons of whole scenes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outsize.commands.inputs import bands_of, open_inputs
from outsize.commands.naming import naming
from outsize.commands.predict_objects import predict_objects
from outsize.commands.scoring import refuse_missed
from outsize.errors import JobError, OutputError, explain
from outsize.files.ownership import NONE_GIVEN, Consent
from outsize.job import PredictSection, load_job
from outsize.progress import Reporter
from outsize.runs import leaving_no_empty_folder, open_run
from outsize.units import format_pixels, format_seconds

if TYPE_CHECKING:
    from outsize.infer.object_scene import ObjectProducts
    from outsize.infer.ready import Ready
    from outsize.infer.scene import Products
    from outsize.raster.polygons import AreaOfInterest
    from outsize.raster.reading import SceneInfo


def predict(  # noqa: PLR0913 (each is what a user may say)
    run_path: Path,
    images: Sequence[Path],
    *,
    out: Path | None,
    overrides: Sequence[str],
    device_name: str,
    reporter: Reporter,
    aoi: Path | None = None,
    stacks: Sequence[str] = (),
    consent: Consent = NONE_GIVEN,
) -> list[dict[str, Any]]:
    """Predict scenes (by default those held back) with the best weights of a run, inside `aoi` only.

    `stacks` are scenes of one file per band, as texts: red.tif,green.tif,nir.tif. Returns what predict.json lists.
    """
    from outsize.data.recall import recall_images
    from outsize.infer.ledger import choose_names
    from outsize.infer.prepare import make_prepare
    from outsize.infer.ready import load_ready
    from outsize.infer.scene import Products
    from outsize.measure.machine import pick_device
    from outsize.tasks import TASKS
    from outsize.tasks.segment import threshold_for

    run = open_run(run_path)
    job = load_job(run.job, overrides)
    given = list(images) if images or stacks else recall_images(run.split, "test")
    infos = open_inputs(given, stacks, job.data, bands_of(run) if stacks else ())
    areas = _lay_areas(aoi, infos, reporter)
    infos = [info for info in infos if info.path in areas]
    folder = out or run.predictions
    names = choose_names(folder, [info.path for info in infos])
    finds_objects = TASKS[job.task].decode is None
    make: Any = _object_products if finds_objects else _products
    products: list[Products | ObjectProducts] = [
        replace(make(folder / name, job.predict, info), inside=areas[info.path], consent=consent)
        for name, info in zip(names, infos, strict=True)
    ]
    _refuse_overwriting(products, infos)
    pick_device(device_name)
    with naming(run.job):
        ready = load_ready(
            run.best, job.limits, infos, device_name=device_name, precision=job.train.precision
        )
    for info in infos:  # refuse before the first scene is begun, not after hours
        make_prepare(ready.card.bands, info, ready.card.statistics)
    if not finds_objects:
        threshold = threshold_for(ready.card.options, job.predict.threshold)
        products = [replace(each, threshold=threshold) for each in products if isinstance(each, Products)]
    scenes: Any = list(zip(infos, products, strict=True))
    if finds_objects:
        for info in infos:
            _warn_resolution(ready, info, reporter)
        with leaving_no_empty_folder(folder):
            return predict_objects(run.path, ready, scenes, job.predict.objects, reporter)
    approximate = {} if ready.plan.exact else _approximation(ready, infos[0], reporter)
    with leaving_no_empty_folder(folder):
        return _predict(run.path, ready, scenes, approximate, reporter)


def images_of(run_path: Path, split: str, given: Sequence[str] = ()) -> list[Path]:
    """Return the images of one split of a run; refuse others that are `given` besides."""
    from outsize.data.recall import recall_images

    if given:
        need, remedy = "either images or a split", "leave one of them out"
        raise JobError(explain(f"images besides --split {split}", given[0], need, remedy))
    return recall_images(open_run(run_path).split, split)


def _predict(
    run_path: Path,
    ready: Ready,
    scenes: Sequence[tuple[SceneInfo, Products]],
    approximate: dict[str, Any],
    reporter: Reporter,
) -> list[dict[str, Any]]:
    from outsize.infer.ledger import add_to_ledger
    from outsize.infer.scene import predict_scene

    results = []
    for info, products in scenes:
        _warn_resolution(ready, info, reporter)
        result = predict_scene(
            ready.model,
            ready.card,
            info,
            products,
            tiling=ready.tiling_of(info),
            settings=ready.settings,
            weights_id=ready.weights_id,
            reporter=reporter,
        )
        results.append({**result, **ready.about(info), **approximate})
        _say(result, info, reporter)
        folder = products.map_path.parent
        add_to_ledger(folder, results[-1], {"run": str(run_path), "plan": ready.plan.as_dict()})
    return results


def _lay_areas(
    aoi: Path | None, infos: Sequence[SceneInfo], reporter: Reporter
) -> dict[Path, AreaOfInterest | None]:
    """Return the part to predict of each scene, None being all of it; scenes outside the area are left out."""
    from outsize.raster.polygons import open_aoi

    if aoi is None:
        return {info.path: None for info in infos}
    areas: dict[Path, AreaOfInterest | None] = {}
    for info in infos:
        inside = open_aoi(aoi, info)
        if inside is not None:
            areas[info.path] = inside
        else:
            reporter.say("skipped", f"{info.path.name} is outside {aoi}: left out", scene=str(info.path))
    refuse_missed(aoi, len(areas))
    return areas


def _products(path: Path, section: PredictSection, info: SceneInfo) -> Products:
    from outsize.infer.scene import Products
    from outsize.raster.georef import NO_PLACE

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
    )


def _object_products(path: Path, section: PredictSection, _: SceneInfo) -> ObjectProducts:
    from outsize.infer.object_scene import ObjectProducts

    return ObjectProducts(path, section.objects)


def _refuse_overwriting(products: Sequence[Products | ObjectProducts], infos: Sequence[SceneInfo]) -> None:
    """Refuse a map that would take the place of a scene, of another scene's map, or of what is not ours."""
    from outsize.infer.ledger import read_ledger
    from outsize.infer.outputs import refuse_to_take

    taken = {info.path.resolve(): info.path for info in infos}
    for info, each in zip(infos, products, strict=True):
        for path in each.paths:
            if path.resolve() in taken:
                need, remedy = "names of their own for all maps", "choose another --out, or rename the scene"
                raise OutputError(
                    explain(
                        f"{path}, a result of {info.path}, would replace another file",
                        f"the one of {taken[path.resolve()]}",
                        need,
                        remedy,
                    )
                )
        taken |= {path.resolve(): info.path for path in each.paths}
    known = read_ledger(products[0].paths[0].parent) if products else {}
    for info, each in zip(infos, products, strict=True):
        refuse_to_take(each.paths, info.path, each.consent, known)


def _approximation(ready: Ready, info: SceneInfo, reporter: Reporter) -> dict[str, Any]:
    """Measure on a part of the scene how far the approximate tiles are from the whole."""
    from outsize.infer.compare import measure_on_scene

    difference = measure_on_scene(ready, info, ready.tiling.halo)
    text = (
        f"approximate: {'; '.join(ready.plan.why)}; on a part of {info.path.name} the logits differ by up to "
        f"{difference.relative:.1e} of the largest"
    )
    reporter.say("approximate", text, relative_difference=difference.relative)
    return {"relative_difference": difference.relative}


def _warn_resolution(ready: Ready, info: SceneInfo, reporter: Reporter) -> None:
    from outsize.raster.pixel_area import pixel_sides_m

    trained, given = ready.card.resolution, pixel_sides_m(info.georef, info.height, info.width)
    if trained is None or given is None:
        return
    if max(abs(a / b - 1) for a, b in zip(given, trained, strict=True)) > 0.1:
        text = (
            f"warning: {info.path.name} has pixels of {given[0]:.3g} x {given[1]:.3g} m, the model was trained on "
            f"{trained[0]:.3g} x {trained[1]:.3g} m: expect worse results, or resample the scene"
        )
        reporter.say("warning", text, scene=str(info.path))


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
