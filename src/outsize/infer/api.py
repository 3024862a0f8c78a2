"""`outsize.predict`: a scene through a run's model, or through any module, in one call."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypedDict, Unpack

from torch import nn

from outsize.data.scenes import open_image
from outsize.errors import OutputError, explain
from outsize.files.ownership import Consent
from outsize.infer.foreign import called_so, card_of, look_at
from outsize.infer.object_scene import ObjectProducts, finder_of, predict_objects
from outsize.infer.outputs import refuse_to_take
from outsize.infer.ready import Ready, load_ready, make_ready
from outsize.infer.scene import Products, predict_scene
from outsize.infer.unanswered import unanswered_line
from outsize.job import LimitsSection, check_limits, load_job
from outsize.progress import Reporter
from outsize.raster.reading import SceneInfo, describe
from outsize.raster.vectors import choose_driver
from outsize.runs import leaving_no_empty_folder, open_run
from outsize.tasks.segment import threshold_for

Statistics = tuple[Sequence[float], Sequence[float]]


class How(TypedDict, total=False):
    """How to compute and decide, where it is not as usual."""

    device: str
    precision: str | None
    threshold: float | None
    overwrite: bool


def predict(
    model: nn.Module | str | Path,
    scene: str | Path,
    target: str | Path,
    *,
    statistics: Statistics | None = None,
    polygons: str | Path | None = None,
    limits: dict[str, Any] | None = None,
    **how: Unpack[How],
) -> dict[str, Any]:
    """Predict a scene into a Cloud-Optimized GeoTIFF and return what was done.

    A run of task instances leaves a GeoPackage or GeoJSON of objects instead, and a COCO file beside it. `model` is a
    run folder, or any module from (sample, band, row, column) to as many logits per pixel as there are
    classes, or to one, whose sigmoid is the probability of class 1. A module is fed (pixels - mean) / std with
    `statistics` = (mean, std) per band, or plain pixels, in the type of its weights. `limits` are the keys of a job's
    section of that name: gpu_memory, host_memory, tile_px, halo_px, allow_approximate. Besides, there are

        device      "auto", "cpu", "cuda"
        precision   "auto", "fp32", "bf16"; of a run what its job says, else "auto"
        threshold   the probability above which a pixel is of class 1, by one logit; of a run its job's, else 0.5
        overwrite   whether files in the way that outsize did not make are written over; else they are refused

    A module stays on the device it ran on, in the mode (training or evaluation) it was given in.
    """
    _refuse_unknown(how)
    consent = Consent(overwrite=how.get("overwrite", False))
    results = [Path(each) for each in (target, polygons) if each is not None]
    bounds = check_limits(limits or {}, "outsize.predict")
    if not isinstance(model, nn.Module):
        run = open_run(Path(model))
        job = load_job(run.job)
        bounds = bounds if limits else job.limits
        info = open_image(Path(scene), job.data)
        _refuse_overwriting(info, results, consent)
        precision = how.get("precision") or job.train.precision
        device = how.get("device", "auto")
        ready = load_ready(run.best, bounds, [info], device_name=device, precision=precision)
        if ready.card.task == "instances":
            return _predict_objects(
                ready, info, ObjectProducts(Path(target), job.predict.objects, consent=consent)
            )
        threshold = how.get("threshold")
        threshold = job.predict.threshold if threshold is None else threshold
        return _predict(ready, info, _products(results, consent), threshold)
    info = describe(scene)
    _refuse_overwriting(info, results, consent)
    with ready_module(model, info, statistics, bounds, how) as ready:
        return _predict(ready, info, _products(results, consent), how.get("threshold"))


@contextmanager
def ready_module(
    model: nn.Module,
    info: SceneInfo,
    statistics: Statistics | None,
    bounds: LimitsSection,
    how: How,
) -> Iterator[Ready]:
    """Make a module ready for a scene; after the block it is as it was, but where it is."""
    manner = look_at(model, info.num_bands)
    with called_so(model, manner):
        yield make_ready(
            model,
            card_of(model, manner, info, statistics),
            bounds,
            [info],
            device_name=how.get("device", "auto"),
            precision=how.get("precision") or "auto",
            weights_id="",  # whether they are the same next time, nobody knows
            manner=manner,
        )


def _refuse_unknown(how: How) -> None:
    for name in how:
        if name not in How.__annotations__:
            raise TypeError(f"unknown argument {name!r}: found none of {', '.join(How.__annotations__)}")


def _products(results: Sequence[Path], consent: Consent) -> Products:
    target, polygons = (*results, None)[:2]
    assert target is not None
    return Products(target, polygons=polygons, consent=consent)


def _predict(ready: Ready, info: SceneInfo, products: Products, threshold: float | None) -> dict[str, Any]:
    products = replace(products, threshold=threshold_for(ready.card.options, threshold))
    with leaving_no_empty_folder(products.map_path.parent):
        done = predict_scene(
            ready.model,
            ready.card,
            info,
            products,
            tiling=ready.tiling_of(info),
            settings=ready.settings,
            weights_id=ready.weights_id,
            reporter=Reporter("quiet"),
        )
    if "unanswered_px" in done:
        warnings.warn(unanswered_line(info.path.name, done["unanswered_px"]), stacklevel=3)
    return {**done, **ready.about(info)}


def _predict_objects(ready: Ready, info: SceneInfo, products: ObjectProducts) -> dict[str, Any]:
    target, section = products.stem, products.section
    choose_driver(target)  # refuses other kinds of files
    wishes = {"vectors": target.suffix.removeprefix("."), "picture": False}
    products = replace(products, stem=target.with_suffix(""), section=section.model_copy(update=wishes))
    finder = finder_of(ready, section.min_score)
    done = predict_objects(finder, ready.card, info, products, Reporter("quiet"))
    return {**done, "exact": ready.plan.exact}


def _refuse_overwriting(info: SceneInfo, results: Sequence[Path], consent: Consent) -> None:
    for path in results:
        if path.resolve() == info.path.resolve():
            need, remedy = "another file than the scene", "choose another name for the result"
            raise OutputError(explain(f"{path} would be replaced", "the scene itself", need, remedy))
    refuse_to_take(results, info.path, consent)
