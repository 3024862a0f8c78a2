"""`outsize.predict`: a scene through a run's model, or through any module, in one call."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypedDict, Unpack

from torch import nn

from outsize.data.scenes import open_image
from outsize.errors import OutputError, explain
from outsize.files.ownership import Consent
from outsize.infer.foreign import called_so, card_of, look_at
from outsize.infer.outputs import refuse_to_take
from outsize.infer.ready import Ready, load_ready, make_ready
from outsize.job import LimitsSection, PredictSection, check_limits, load_job
from outsize.measure.state import reach_as_it_was
from outsize.raster.reading import SceneInfo, describe
from outsize.runs import open_run
from outsize.tasks import FIRST, task_of

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

    A module runs in evaluation mode. It stays on the device it ran on, in the mode it was given in.
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
        task = task_of(job.task)
        ready = load_ready(run.best, bounds, [info], task.cutting, device_name=device, precision=precision)
        section = job.predict if how.get("threshold") is None else _deciding_at(job.predict, how)
        return task.predict_one(ready, info, results, section, consent)
    info = describe(scene)
    _refuse_overwriting(info, results, consent)
    with ready_module(model, info, statistics, bounds, how) as ready:
        section = _deciding_at(PredictSection(), how)
        return task_of(FIRST).predict_one(ready, info, results, section, consent)


def _deciding_at(section: PredictSection, how: How) -> PredictSection:
    return section.model_copy(update={"threshold": how.get("threshold")})


@contextmanager
def ready_module(
    model: nn.Module,
    info: SceneInfo,
    statistics: Statistics | None,
    bounds: LimitsSection,
    how: How,
) -> Iterator[Ready]:
    """Make a module ready for a scene; after the block it is as it was, but where it is.

    What it remembered meanwhile was made where no gradients are wanted, and would be of no use to a training.
    """
    manner = look_at(model, info.num_bands)
    with reach_as_it_was(model, warns=False), called_so(model, manner):
        yield make_ready(
            model,
            card_of(model, manner, info, statistics, FIRST),
            bounds,
            [info],
            device_name=how.get("device", "auto"),
            precision=how.get("precision") or "auto",
            manner=manner,
        )


def _refuse_unknown(how: How) -> None:
    for name in how:
        if name not in How.__annotations__:
            raise TypeError(f"unknown argument {name!r}: found none of {', '.join(How.__annotations__)}")


def _refuse_overwriting(info: SceneInfo, results: Sequence[Path], consent: Consent) -> None:
    for path in results:
        if path.resolve() == info.path.resolve():
            need, remedy = "another file than the scene", "choose another name for the result"
            raise OutputError(explain(f"{path} would be replaced", "the scene itself", need, remedy))
    refuse_to_take(results, info.path, consent)
