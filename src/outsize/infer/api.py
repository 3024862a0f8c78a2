"""`outsize.predict`: a scene through a run's model, or through any module, in one call."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import nn

from outsize.data.scenes import open_image
from outsize.data.statistics import BandStatistics
from outsize.errors import ModelError, OutputError, explain
from outsize.infer.object_scene import ObjectProducts, finder_of, predict_objects
from outsize.infer.ready import Ready, load_ready, make_ready
from outsize.infer.scene import Products, predict_scene
from outsize.job import ClassSpec, LimitsSection, ObjectsSection, check_limits, load_job, parse_colour
from outsize.models import input_maps, num_inputs
from outsize.progress import Reporter
from outsize.raster.features import choose_driver
from outsize.raster.read import SceneInfo, describe
from outsize.runs import open_run
from outsize.train.checkpoint import Card

_COLOURS = (
    "#8dd3c7",
    "#33691e",
    "#1f78b4",
    "#fdbf6f",
    "#e31a1c",
    "#a6761d",
    "#6a3d9a",
    "#ffff99",
    "#fb9a99",
    "#666666",
)


def predict(
    model: nn.Module | str | Path,
    scene: str | Path,
    target: str | Path,
    *,
    statistics: tuple[Sequence[float], Sequence[float]] | None = None,
    polygons: str | Path | None = None,
    limits: dict[str, Any] | None = None,
    device: str = "auto",
    precision: str = "auto",
) -> dict[str, Any]:
    """Predict a scene into a Cloud-Optimized GeoTIFF and return what was done.

    A run of task instances leaves a GeoPackage or GeoJSON of objects instead, and a COCO file beside it. `model` is a
    run folder, or any module from (sample, band, row, column) to as many logits per pixel as there are
    classes; a module is fed (pixels - mean) / std with `statistics` = (mean, std) per band, or plain pixels. `limits`
    are the keys of a job's section of that name: gpu_memory, host_memory, tile_px, halo_px, allow_approximate. A module
    stays on the device it ran on, in the mode (training or evaluation) it was given in.
    """
    results = [Path(each) for each in (target, polygons) if each is not None]
    bounds = check_limits(limits or {}, "outsize.predict")
    if not isinstance(model, nn.Module):
        run = open_run(Path(model))
        job = load_job(run.job)
        bounds = bounds if limits else job.limits
        info = open_image(Path(scene), job.data)
        _refuse_overwriting(info, results)
        ready = load_ready(run.best, bounds, [info], device_name=device, precision=precision)
        if ready.card.task == "instances":
            return _predict_objects(ready, info, Path(target), job.predict.objects)
        return _predict(ready, info, *results)
    info = describe(scene)
    _refuse_overwriting(info, results)
    modes = [(module, module.training) for module in model.modules()]
    try:
        ready = _ready_module(model, info, statistics, bounds, device, precision)
        return _predict(ready, info, *results)
    finally:
        for module, mode in modes:
            module.training = mode


def _ready_module(
    model: nn.Module,
    info: SceneInfo,
    statistics: tuple[Sequence[float], Sequence[float]] | None,
    bounds: LimitsSection,
    device: str,
    precision: str,
) -> Ready:
    card = _card_of(model, info, statistics)
    return make_ready(
        model,
        card,
        bounds,
        [info],
        device_name=device,
        precision=precision,
        weights_id=uuid.uuid4().hex,
        is_foreign=True,
    )


def _predict(ready: Ready, info: SceneInfo, target: Path, polygons: Path | None = None) -> dict[str, Any]:
    done = predict_scene(
        ready.model,
        ready.card,
        info,
        Products(target, polygons=polygons),
        tiling=ready.tiling,
        settings=ready.settings,
        weights_id=ready.weights_id,
        reporter=Reporter("quiet"),
    )
    return {**done, "exact": ready.plan.exact}


def _predict_objects(ready: Ready, info: SceneInfo, target: Path, section: ObjectsSection) -> dict[str, Any]:
    choose_driver(target)  # refuses other kinds of files
    wishes = {"vectors": target.suffix.removeprefix("."), "picture": False}
    products = ObjectProducts(target.with_suffix(""), section.model_copy(update=wishes))
    finder = finder_of(ready, section.min_score)
    done = predict_objects(finder, ready.card, info, products, Reporter("quiet"))
    return {**done, "exact": ready.plan.exact}


def _refuse_overwriting(info: SceneInfo, results: Sequence[Path]) -> None:
    for path in results:
        if path.resolve() == info.path.resolve():
            need, remedy = "another file than the scene", "choose another name for the result"
            raise OutputError(explain(f"{path} would be replaced", "the scene itself", need, remedy))


def _card_of(
    model: nn.Module, info: SceneInfo, statistics: tuple[Sequence[float], Sequence[float]] | None
) -> Card:
    """Describe a module that brings no card: as many classes as it has logits, named by number."""
    from outsize.measure.trace import example_shape, trace

    mean, std = statistics or ([0.0] * info.num_bands, [1.0] * info.num_bands)
    if len(mean) != info.num_bands or len(std) != info.num_bands:
        found, need = f"{len(mean)} means and {len(std)} deviations", f"{info.num_bands} of each"
        raise ModelError(
            explain(f"statistics do not fit {info.path}", found, need, "give one of each for every band")
        )
    graph = trace(model, example_shape(num_inputs(model, info.num_bands)))
    shape = graph.ops[graph.outputs[0]].shape
    if len(shape) != 4:
        need, remedy = "sample, class, row, column", "wrap the model so that it returns its logits alone"
        raise ModelError(explain("model's output is no map of logits", f"shape {shape}", need, remedy))
    num_classes = shape[1]
    if num_classes > 254:
        need, remedy = "at most 254 classes", "give a model with one logit per class"
        raise ModelError(explain("model has too many outputs", num_classes, need, remedy))
    return Card(
        task="segment",
        model=type(model).__name__,
        options={},
        classes=tuple(
            ClassSpec(
                name=f"class {number}", value=number, colour=parse_colour(_COLOURS[number % len(_COLOURS)])
            )
            for number in range(num_classes)
        ),
        bands=info.band_names,
        dtype=info.dtype,
        statistics=BandStatistics(tuple(mean), tuple(std)),
        maps=input_maps(model),
    )
