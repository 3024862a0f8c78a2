"""What `plan` and `train` do on the ground that was laid: gather facts, plan, read the data once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outsize.errors import PlanError
from outsize.job import Job
from outsize.measure.origin import origin
from outsize.plan.effort import PATIENCE_S, Budget, Effort
from outsize.plan.facts import Facts
from outsize.plan.plan import Plan, Rejected
from outsize.planning.jobs.groundwork import Groundwork, count_steps, lay
from outsize.planning.jobs.planning import facts_on, make_plans, taught
from outsize.planning.jobs.recalling import KeptPlans, keep, recall
from outsize.planning.situation import ONE_RANK, Ranks, Situation, situation_here
from outsize.planning.trying import paged_as_tried, recorded_where_faster
from outsize.progress import Reporter
from outsize.runs import RunFolder, write_json

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray
    from torch import nn

    from outsize.card import Card
    from outsize.data.checking import Checked
    from outsize.data.split import Splits
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

    def on(self, device: torch.device) -> Prepared:
        """Return the same on the device of another rank."""
        return replace(self, device=device, where=replace(self.where, device=device))

    def with_plan(self, plan: Plan) -> Prepared:
        """Return the same with another plan of its purpose."""
        if plan.purpose == "train":
            return replace(self, train_plan=plan)
        return replace(self, predict_plan=plan)


def plan_job(job: Job, where: Situation, reporter: Reporter, ground: Groundwork | None = None) -> Planned:
    """Gather facts and plan, on the ground that was laid for a job, or is laid now; no pixel of an image is read."""
    from outsize.plan.predict import refuse_limits
    from outsize.tasks import task_of

    ground = ground or lay(job, reporter)
    limits = task_of(job.task).cutting.limits(job.limits)
    refuse_limits(where.machine, limits, ground.halo, ground.largest_px)
    where = replace(where, most_objects=ground.most_objects)
    kept = recall(job, ground, where)
    if kept is None:
        kept = _plan_now(job, ground, where, reporter)
        keep(job, ground, kept)
    else:
        reporter.say("recalled", "planned before, by this code for this job and machine: taken up")
    return Planned(
        where=kept.where,
        splits=ground.splits,
        bands=ground.bands,
        model=ground.model,
        train_plan=kept.train,
        predict_plan=kept.predict,
        resident_bytes=kept.resident_bytes,
        facts=kept.facts,
        init=ground.init,
    )


def _plan_now(job: Job, ground: Groundwork, where: Situation, reporter: Reporter) -> KeptPlans:
    """Run what tells how long steps take, and decide."""
    model, num_bands, largest_px = ground.model, len(ground.bands), ground.largest_px
    effort = _effort(job, ground.splits)
    where = taught(job, model, num_bands, where, reporter, effort)
    facts = facts_on(model, num_bands, where, job.task, halo=ground.halo)
    plans = make_plans(job, model, num_bands, facts, largest_px, where)
    tried = paged_as_tried(job, model, num_bands, plans.train, where, reporter, effort)
    if isinstance(tried, Rejected):
        without, rejected = replace(where, pages=False), tried
        try:
            plans = make_plans(job, model, num_bands, facts, largest_px, without)
            where, tried = without, replace(plans.train, rejected=(*plans.train.rejected, rejected))
        except PlanError:
            # nothing else fits: it is tried for as long as that takes, where it was not
            patient = Effort(Budget(PATIENCE_S))
            tried = paged_as_tried(job, model, num_bands, plans.train, where, reporter, patient)
            if isinstance(tried, Rejected):
                raise
    train_plan = recorded_where_faster(job, model, num_bands, tried, plans.predict, where, reporter, effort)
    return KeptPlans(where, plans.facts, train_plan, plans.predict, plans.resident_bytes)


def _effort(job: Job, splits: Splits) -> Effort:
    """Return how long may be tried for a training: the clock begins now."""
    minutes = job.train.max_minutes
    num_steps = count_steps(job, splits)[-1]
    return Effort(num_steps=num_steps, max_s=math.inf if minutes is None else 60 * minutes)


def prepare(
    job: Job, device_name: str, reporter: Reporter, *, starting: bool = True, ranks: Ranks = ONE_RANK
) -> Prepared:
    """Plan a job for the machine at hand, then read all its data once or recall what was read before."""
    from outsize.data.checking import load_or_check
    from outsize.data.scenes import label_table
    from outsize.losses.weights import class_weights
    from outsize.measure.machine import pick_device

    device = pick_device(device_name)
    ground = lay(job, reporter, starting=starting, counting=True)
    here = situation_here(device, job.train.precision, job.limits.gpu_memory)
    planned = plan_job(job, here.among(ranks), reporter, ground)
    path, num_threads = RunFolder(Path(job.run)).data, job.train.workers
    checked = load_or_check(path, job.data, planned.splits, num_threads=num_threads, reporter=reporter)
    names = [each.name for each in job.data.classes]
    class_weights(job.train.class_weights, checked.class_px["train"][None], names)  # refuses an empty class
    known = {each.name: getattr(planned, each.name) for each in fields(planned)}
    table = label_table([each.value for each in job.data.classes], job.data.ignore_value)
    card = _make_card(job, planned.bands, checked)
    return Prepared(**{**known, "splits": checked.splits}, device=device, table=table, card=card)


def _make_card(job: Job, bands: Sequence[str], checked: Checked) -> Card:
    from outsize.card import Card
    from outsize.raster.pixel_area import pixel_sides_m

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
