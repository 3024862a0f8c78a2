"""What `plan` and `train` do first: open the data, build the model, gather facts, plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from outsize.commands.check import say_set_aside
from outsize.commands.origin import origin
from outsize.job import Job
from outsize.plan.facts import Facts
from outsize.plan.plan import Plan
from outsize.progress import Reporter
from outsize.runs import RunFolder, open_run, write_json

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray
    from torch import nn

    from outsize.data.check import Checked
    from outsize.data.split import Splits
    from outsize.train.checkpoint import Card
    from outsize.train.init import Init


@dataclass(frozen=True)
class Prepared:
    """All that training needs to know before its first step."""

    device: torch.device
    bf16: bool
    splits: Splits
    table: NDArray[np.uint8]
    card: Card
    model: nn.Module
    train_plan: Plan
    predict_plan: Plan
    facts: Facts
    init: Init | None = None

    def record(self, run: RunFolder) -> None:
        """Leave split.json, facts.json and plan.json in a run, and init.json where it starts from another's weights."""
        from outsize.data.split import write_split

        write_split(run.split, self.splits)
        statistics = {"mean": self.card.statistics.mean, "std": self.card.statistics.std}
        known = {**self.facts.as_dict(), "bands": self.card.bands, "statistics": statistics}
        write_json(run.facts, {**known, **origin()})
        write_json(run.plan, {plan.purpose: plan.as_dict() for plan in (self.train_plan, self.predict_plan)})
        if self.init is not None:
            write_json(run.init, self.init.as_dict())


def prepare(job: Job, device_name: str, reporter: Reporter, *, starting: bool = True) -> Prepared:
    """Open the data, build the model, gather facts and plan; only labels made from polygons and data.json are written.

    Weights to start from are looked for only where a training is `starting`: a plan and a resumed training need none.
    """
    from outsize.data.bands import band_order
    from outsize.data.catalogue import find_data, make_splits
    from outsize.data.check import load_or_check
    from outsize.data.scenes import label_table
    from outsize.infer.ready import wants_bf16
    from outsize.measure.facts import gather_facts
    from outsize.measure.machine import pick_device
    from outsize.plan.choose import choose_predict, choose_train
    from outsize.train.phases import check_trainable

    device = pick_device(device_name)
    bf16 = wants_bf16(job.train.precision, device)
    data, run = job.data, RunFolder(Path(job.run))
    # from what is quickly refused to what takes a pass over all pixels
    survey = find_data(data, seed=job.seed, cache=run.labels)
    images = [scene.image for scene in survey.scenes.values()]
    bands = survey.bands
    model, init = _build(job, bands, starting, reporter)
    for phase in job.train.all_phases():
        check_trainable(model, phase.trainable)
    facts = gather_facts(model, len(bands), device=device, bf16=bf16, optimizer=job.train.optimizer)
    splits = make_splits(survey, data, seed=job.seed, halo_px=facts.halo.largest_px)
    for scene in (*splits.train, *splits.val):
        band_order(bands, scene.image)  # refuses other bands
    largest_px = max(image.height for image in images), max(image.width for image in images)
    plans = (
        choose_train(facts, job.limits, tile_px=job.train.tile_px, batch=job.train.batch),
        choose_predict(facts, job.limits, largest_px),
    )
    checked = load_or_check(run.data, data, splits, num_threads=job.train.workers, reporter=reporter)
    say_set_aside(checked, reporter)
    card = _make_card(job, bands, checked)
    table = label_table([each.value for each in data.classes], data.ignore_value)
    return Prepared(device, bf16, checked.splits, table, card, model, *plans, facts, init)


def _build(
    job: Job, bands: Sequence[str], starting: bool, reporter: Reporter
) -> tuple[nn.Module, Init | None]:
    """Build the model and give it the weights it starts from."""
    import torch

    from outsize.models import build_with_notes
    from outsize.train.init import start_from

    torch.manual_seed(job.seed)
    name, classes = job.model.name, job.data.classes
    options = {key: value for key, value in job.model.options.items() if starting or key != "weights"}
    model, notes = build_with_notes(
        name, num_classes=len(classes), in_channels=len(bands), bands=bands, **options
    )
    for note in notes:
        reporter.say("weights", note)
    if job.train.init is None or not starting:
        return model, None
    source = open_run(Path(job.train.init)).best
    init = start_from(source, model, name=name, options=options, bands=bands, classes=classes)
    for line in init.lines:
        reporter.say("init", line)
    return model, init


def _make_card(job: Job, bands: Sequence[str], checked: Checked) -> Card:
    from outsize.raster.area import pixel_sides_m
    from outsize.train.checkpoint import Card

    assert checked.statistics is not None  # no valid training pixel is a problem that was refused
    first = checked.splits.train[0].image
    return Card(
        task=job.task,
        model=job.model.name,
        options=job.model.options,
        classes=job.data.classes,
        bands=tuple(bands),
        dtype=first.dtype,
        statistics=checked.statistics,
        resolution=pixel_sides_m(first.georef, first.height, first.width),
    )
