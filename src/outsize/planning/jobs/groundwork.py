"""What is known of a job before anything is computed: names, data and who gets which, classes, the model.

Every mistake that can be found without running a step or reading an image is reported here, cheapest first.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from outsize.errors import JobError, explain
from outsize.job import Job
from outsize.job.models import refuse_unknown_model, refuse_unknown_options
from outsize.planning.jobs.recalling import recall_halo
from outsize.progress import Reporter
from outsize.runs import RunFolder, open_run

if TYPE_CHECKING:
    from torch import nn

    from outsize.data.catalogue import Survey
    from outsize.data.scenes import LabelledScene
    from outsize.data.split import Splits
    from outsize.tiles.halo import Halo
    from outsize.train.init import Init


@dataclass(frozen=True)
class Groundwork:
    """A job whose data is found and shared out, with a model that fits it."""

    splits: Splits
    bands: tuple[str, ...]
    model: nn.Module
    init: Init | None
    halo: Halo
    largest_px: tuple[int, int]  # height and width that no scene passes
    most_objects: int  # in a training window, where labels are objects


def lay(job: Job, reporter: Reporter, *, starting: bool = False, counting: bool = False) -> Groundwork:
    """Find the data, look for classes that are nowhere, build the model; no pixel of an image is read.

    Weights to start from are looked for only where a training is `starting`: a plan and a resumed training need none.
    Labels are read only where `counting`, and as far as they must be; else what a check has left is looked at.
    """
    from outsize.data.catalogue import find_data

    refuse_unknown_model(job.model.name)
    refuse_unknown_options(job.model.name, job.model.options)
    source = None if job.train.init is None or not starting else open_run(Path(job.train.init)).best
    survey = find_data(job.data, seed=job.seed, cache=RunFolder(Path(job.run)).labels)
    splits = None if _wants_halo(job) else _shared_out(job, survey, 0, reporter, counting=counting)
    model, init = _build(job, survey.bands, source, reporter, starting=starting)
    _refuse_phases(job, model)
    halo = _halo_of(job, model, survey.bands)
    splits = splits or _shared_out(job, survey, halo.largest_px, reporter, counting=counting)
    sizes = [scene.whole_px for scene in survey.scenes.values()]
    return Groundwork(
        splits=splits,
        bands=tuple(survey.bands),
        model=model,
        init=init,
        halo=halo,
        largest_px=(max(height for height, _ in sizes), max(width for _, width in sizes)),
        most_objects=_most_objects(job, survey.scenes.values()),
    )


def count_steps(job: Job, splits: Splits) -> tuple[int, int, int]:
    """Return samples of an epoch, epochs and steps, as the training counts them: whole batches of windows."""
    from outsize.data.sampling import samples_per_cover

    section = job.train
    per_epoch = section.samples_per_epoch or samples_per_cover(splits.train, section.tile_px)
    num_epochs = sum(phase.epochs or section.epochs for phase in section.all_phases())
    return per_epoch, num_epochs, num_epochs * max(1, per_epoch // section.batch)


def _wants_halo(job: Job) -> bool:
    """Whether who gets which blocks depends on how far the model looks."""
    return bool(job.data.images) and job.data.split.by == "blocks" and job.data.split.gap_px is None


def _shared_out(job: Job, survey: Survey, halo_px: int, reporter: Reporter, *, counting: bool) -> Splits:
    """Share the scenes out, and refuse other bands and classes that are nowhere."""
    from outsize.data.bands import band_order
    from outsize.data.catalogue import make_splits
    from outsize.data.checking import refuse_early

    splits = make_splits(survey, job.data, seed=job.seed, halo_px=halo_px)
    for scene in (*splits.train, *splits.val):
        band_order(survey.bands, scene.image)  # refuses other bands
    num_threads = job.train.workers if counting else 0
    refuse_early(RunFolder(Path(job.run)).data, job.data, splits, reporter, num_threads)
    return splits


def _build(
    job: Job, bands: Sequence[str], source: Path | None, reporter: Reporter, *, starting: bool
) -> tuple[nn.Module, Init | None]:
    """Build the model and give it the weights it starts from; `source` are those of another run."""
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
    if source is None:
        if starting and options.get("norm") == "frozen" and options.get("weights", "none") == "none":
            text = (
                "warning: frozen norms of a model without weights to start from norm nothing: set model.norm"
            )
            reporter.say("warning", f"{text}, model.weights or train.init")
        return model, None
    init = start_from(source, model, name=name, options=options, bands=bands, classes=classes)
    for line in init.lines:
        reporter.say("init", line)
    return model, init


def _refuse_phases(job: Job, model: nn.Module) -> None:
    """Refuse phases that the model cannot have."""
    from outsize.train.phases import check_output, check_trainable, label_strides

    section = job.train
    for phase in section.all_phases():
        check_trainable(model, phase.trainable)
        check_output(model, phase.output)
    if section.class_weights != "log":
        return
    offsets: dict[int, float] = {}  # by the stride that an output reduces labels by
    for phase in section.all_phases():
        offset = phase.log_offset or section.log_offset
        [stride] = label_strides(model, [phase.output])
        if offsets.setdefault(stride, offset) != offset:
            need = "one constant for all phases of an output"
            remedy = "give them the same, or train in two runs by train.init"
            raise JobError(explain("train.phases.log_offset changes", f"{offset:g}", need, remedy))


def _halo_of(job: Job, model: nn.Module, bands: Sequence[str]) -> Halo:
    from outsize.tasks import task_of

    return recall_halo(job, bands, model, task_of(job.task).cutting.halo)


def _most_objects(job: Job, scenes: Iterable[LabelledScene]) -> int:
    """Return the most objects that a training window may show; 0 where labels are not objects with outlines."""
    from outsize.data.checking import most_in_window
    from outsize.data.pixels import most_zoom

    return most_in_window(scenes, math.ceil(max(job.train.window_px) * most_zoom(job.train.augment)))
