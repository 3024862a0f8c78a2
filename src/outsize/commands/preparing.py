"""What `plan` and `train` do first: open the data, build the model, gather facts, plan."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outsize.commands.check import say_set_aside
from outsize.commands.origin import origin
from outsize.commands.planning import Situation, facts_on, make_plans, situation_here, taught
from outsize.commands.recording import paged_as_tried, recorded_where_faster
from outsize.job import Job
from outsize.plan.facts import Facts
from outsize.plan.plan import Plan, Rejected
from outsize.progress import Reporter
from outsize.runs import RunFolder, open_run, write_json

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray
    from torch import nn

    from outsize.data.check import Checked
    from outsize.data.scenes import LabelledScene
    from outsize.data.split import Splits
    from outsize.train.checkpoint import Card
    from outsize.train.init import Init


@dataclass(frozen=True)
class Planned:
    """A job whose data is found and shared out, with a model and plans for it."""

    where: Situation
    splits: Splits
    bands: tuple[str, ...]
    model: nn.Module
    train_plan: Plan
    predict_plan: Plan
    resident_bytes: int  # besides the weights, where it predicts between epochs
    facts: Facts
    init: Init | None

    def known(self) -> dict[str, Any]:
        """Return what facts.json tells."""
        return {**self.facts.as_dict(), "bands": self.bands}

    def record(self, run: RunFolder) -> None:
        """Leave split.json, facts.json and plan.json in a run, and init.json where it starts from another's weights."""
        from outsize.data.split import write_split

        write_split(run.split, self.splits)
        write_json(run.facts, {**self.known(), **origin()})
        write_json(run.plan, {plan.purpose: plan.as_dict() for plan in (self.train_plan, self.predict_plan)})
        if self.init is not None:
            write_json(run.init, self.init.as_dict())


@dataclass(frozen=True)
class Prepared(Planned):
    """All that training needs to know before its first step."""

    device: torch.device
    table: NDArray[np.uint8]
    card: Card

    def known(self) -> dict[str, Any]:
        """Return what facts.json tells: statistics of the bands, too."""
        statistics = self.card.statistics
        return {**super().known(), "statistics": {"mean": statistics.mean, "std": statistics.std}}

    def with_plan(self, plan: Plan) -> Prepared:
        """Return the same with another plan of its purpose."""
        if plan.purpose == "train":
            return replace(self, train_plan=plan)
        return replace(self, predict_plan=plan)


def plan_job(job: Job, where: Situation, reporter: Reporter, *, starting: bool = False) -> Planned:
    """Find the data, build the model, gather facts and plan; no pixel is read, but for labels made from polygons.

    Weights to start from are looked for only where a training is `starting`: a plan and a resumed training need none.
    """
    from outsize.data.bands import band_order
    from outsize.data.catalogue import find_data, make_splits
    from outsize.train.phases import check_output, check_trainable

    survey = find_data(job.data, seed=job.seed, cache=RunFolder(Path(job.run)).labels)
    images = [scene.image for scene in survey.scenes.values()]
    bands = survey.bands
    model, init = _build(job, bands, starting, reporter)
    for phase in job.train.all_phases():
        check_trainable(model, phase.trainable)
        check_output(model, phase.output)
    where = replace(where, most_objects=_most_objects(job, survey.scenes.values()))
    where = taught(job, model, len(bands), where, reporter)
    facts = facts_on(model, len(bands), where, job.task)
    splits = make_splits(survey, job.data, seed=job.seed, halo_px=facts.halo.largest_px)
    for scene in (*splits.train, *splits.val):
        band_order(bands, scene.image)  # refuses other bands
    largest_px = max(image.height for image in images), max(image.width for image in images)
    plans = make_plans(job, model, len(bands), facts, largest_px, where)
    tried = paged_as_tried(job, model, len(bands), plans.train, where, reporter)
    if isinstance(tried, Rejected):
        where = replace(where, pages=False)
        plans = make_plans(job, model, len(bands), facts, largest_px, where)
        tried = replace(plans.train, rejected=(*plans.train.rejected, tried))
    train_plan = recorded_where_faster(job, model, len(bands), tried, plans.predict, where, reporter)
    return Planned(
        where=where,
        splits=splits,
        bands=tuple(bands),
        model=model,
        train_plan=train_plan,
        predict_plan=plans.predict,
        resident_bytes=plans.resident_bytes,
        facts=plans.facts,
        init=init,
    )


def prepare(job: Job, device_name: str, reporter: Reporter, *, starting: bool = True) -> Prepared:
    """Plan a job for the machine at hand, then read all its data once or recall what was read before."""
    from outsize.data.check import load_or_check
    from outsize.data.scenes import label_table
    from outsize.measure.machine import pick_device

    device = pick_device(device_name)
    planned = plan_job(job, situation_here(device, job.train.precision), reporter, starting=starting)
    path, num_threads = RunFolder(Path(job.run)).data, job.train.workers
    checked = load_or_check(path, job.data, planned.splits, num_threads=num_threads, reporter=reporter)
    say_set_aside(checked, reporter)
    known = {each.name: getattr(planned, each.name) for each in fields(planned)}
    table = label_table([each.value for each in job.data.classes], job.data.ignore_value)
    card = _make_card(job, planned.bands, checked)
    return Prepared(**{**known, "splits": checked.splits}, device=device, table=table, card=card)


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
        if starting and options.get("norm") == "frozen" and options.get("weights", "none") == "none":
            text = (
                "warning: frozen norms of a model without weights to start from norm nothing: set model.norm"
            )
            reporter.say("warning", f"{text}, model.weights or train.init")
        return model, None
    source = open_run(Path(job.train.init)).best
    init = start_from(source, model, name=name, options=options, bands=bands, classes=classes)
    for line in init.lines:
        reporter.say("init", line)
    return model, init


def _most_objects(job: Job, scenes: Iterable[LabelledScene]) -> int:
    """Return the most objects that a training window may show; 0 where labels are classes of pixels."""
    from outsize.data.augment import MAX_SCALE
    from outsize.data.instances_count import most_in_window

    if not job.data.objects:
        return 0
    largest = MAX_SCALE if "scale" in job.train.augment else 1
    return most_in_window(scenes, int(max(job.train.window_px) * largest))


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
