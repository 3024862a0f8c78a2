"""What `plan` and `train` do first: open the data, build the model, gather facts, plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from outsize.errors import DataError, JobError, explain
from outsize.job import Job
from outsize.plan.facts import Facts
from outsize.plan.plan import Plan
from outsize.progress import Reporter
from outsize.runs import RunFolder, write_json

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray
    from torch import nn

    from outsize.data.scenes import LabelledScene
    from outsize.train.checkpoint import Card


@dataclass(frozen=True)
class Prepared:
    """All that training needs to know before its first step."""

    device: torch.device
    bf16: bool
    scenes: tuple[LabelledScene, ...]
    val_scenes: tuple[LabelledScene, ...]
    table: NDArray[np.uint8]
    card: Card
    model: nn.Module
    train_plan: Plan
    predict_plan: Plan
    facts: Facts

    def record(self, run: RunFolder) -> None:
        """Leave facts.json and plan.json in a run."""
        statistics = {"mean": self.card.statistics.mean, "std": self.card.statistics.std}
        write_json(run.facts, {**self.facts.as_dict(), "bands": self.card.bands, "statistics": statistics})
        write_json(run.plan, {plan.purpose: plan.as_dict() for plan in (self.train_plan, self.predict_plan)})


def prepare(job: Job, device_name: str, reporter: Reporter) -> Prepared:
    """Open the data, build the model, gather facts and plan; nothing is written."""
    import torch

    from outsize.data.scenes import label_table, open_scenes
    from outsize.infer.ready import wants_bf16
    from outsize.measure.facts import gather_facts
    from outsize.measure.machine import pick_device
    from outsize.models import build_model
    from outsize.plan.choose import choose_predict, choose_train
    from outsize.train.phases import check_trainable

    device = pick_device(device_name)
    bf16 = wants_bf16(job.train.precision, device)
    data = job.data
    scenes, val_scenes = (
        open_scenes(part, data.labels, allow_references=data.allow_references)
        for part in (data.train, data.val)
    )
    if not scenes:
        raise JobError(
            explain("nothing to train on", "no data.train", "image files", "name some in data.train")
        )
    table = label_table([each.value for each in data.classes], data.ignore_value)
    # from what is quickly refused to what takes a pass over all pixels
    bands = data.bands or scenes[0].image.band_names
    _check_bands(bands, scenes, val_scenes)
    torch.manual_seed(job.seed)
    model = build_model(
        job.model.name, num_classes=len(data.classes), in_channels=len(bands), **job.model.options
    )
    for phase in job.train.all_phases():
        check_trainable(model, phase.trainable)
    facts = gather_facts(model, len(bands), device=device, bf16=bf16, optimizer=job.train.optimizer)
    largest = max((*scenes, *val_scenes), key=lambda scene: scene.image.num_px).image
    plans = (
        choose_train(facts, job.limits, tile_px=job.train.tile_px, batch=job.train.batch),
        choose_predict(facts, job.limits, (largest.height, largest.width)),
    )
    _check_pixels(scenes, val_scenes, table, num_threads=job.train.workers, reporter=reporter)
    card = _make_card(job, bands, scenes, reporter)
    return Prepared(device, bf16, scenes, val_scenes, table, card, model, *plans, facts)


def _check_bands(
    bands: Sequence[str], scenes: Sequence[LabelledScene], val_scenes: Sequence[LabelledScene]
) -> None:
    from outsize.infer.bands import band_order

    for scene in val_scenes:  # refused where bands are missing; another order is put right when they are read
        band_order(bands, scene.image)
    for scene in scenes:
        if band_order(bands, scene.image) is not None:
            need, remedy = f"{', '.join(bands)} in this order", "set data.bands to the order in the files"
            raise DataError(
                explain(
                    f"bands of {scene.image.path} are in another order", scene.image.band_names, need, remedy
                )
            )


def _check_pixels(
    scenes: Sequence[LabelledScene],
    val_scenes: Sequence[LabelledScene],
    table: NDArray[np.uint8],
    *,
    num_threads: int,
    reporter: Reporter,
) -> None:
    """Read what would else be read for the first time after hours: all labels, and the images for validation.

    The images to train on are read for their statistics anyway.
    """
    from outsize.data.check import check_images, check_labels
    from outsize.data.statistics import num_windows

    every = (*scenes, *val_scenes)
    images = [scene.image for scene in val_scenes]
    total = num_windows([scene.labels for scene in every]) + num_windows(images)
    with reporter.bar("check scenes", total, "window") as bar:
        check_labels(every, table, num_threads=num_threads, bar=bar)
        check_images(images, num_threads=num_threads, bar=bar)


def _make_card(job: Job, bands: Sequence[str], scenes: tuple[LabelledScene, ...], reporter: Reporter) -> Card:
    from outsize.data.statistics import measure_bands, num_windows
    from outsize.train.checkpoint import Card

    first = scenes[0].image
    images = [scene.image for scene in scenes]
    with reporter.bar("band statistics", num_windows(images), "window") as bar:
        statistics = measure_bands(images, num_threads=job.train.workers, bar=bar)
    resolution = first.georef.resolution if first.georef.crs_wkt else None
    return Card(
        task=job.task,
        model=job.model.name,
        options=job.model.options,
        classes=job.data.classes,
        bands=tuple(bands),
        dtype=first.dtype,
        statistics=statistics,
        resolution=resolution,
    )
