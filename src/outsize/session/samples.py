"""What a training learns from: windows of the data, what classes weigh, and who makes batches of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from outsize.job import Job
from outsize.progress import Reporter
from outsize.session.hosting import room_for_pictures
from outsize.tiles.window import Tile

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from outsize.data.sample import Samples
    from outsize.data.sampling import SampleCounts
    from outsize.losses import Weights, WeightsByStride
    from outsize.planning.jobs import Prepared
    from outsize.train.feed import BatchMaker, Feed
    from outsize.train.loop import TrainSettings


@dataclass(frozen=True)
class TrainingSamples:
    """What is learnt from."""

    windows: Samples
    weights: Weights | WeightsByStride
    classes: dict[str, Any]  # their shares and weights, where the labels were counted


def open_samples(job: Job, prepared: Prepared, reporter: Reporter) -> TrainingSamples:
    """Open what is drawn from, and say what the classes weigh; labels are read for it only where needed."""
    from outsize.tasks import task_of
    from outsize.tasks.task import ToLearn

    card, weights, classes = prepared.card, None, {}
    names = [each.name for each in card.classes]
    given = ToLearn(prepared.splits.train, prepared.table, len(names), card.statistics, job.train, job.seed)
    windows, counts = task_of(job.task).samples(given, reporter)
    if counts is not None:
        each_weights = _weights_of_phases(job, prepared, counts)
        last = list(each_weights.values())[-1]
        weights = last if len(set(each_weights.values())) == 1 else each_weights
        classes = _say_classes(names, counts.sum(0), last, reporter)
    return TrainingSamples(windows, weights, classes)


def batch_maker(
    job: Job,
    prepared: Prepared,
    samples: TrainingSamples,
    recipe: TrainSettings,
    mine: Sequence[int] | None = None,
    tile: Tile | None = None,
) -> BatchMaker:
    """Make samples with the maps that model and loss want, and the totals that the phases divide by.

    `mine` are the numbers of each batch that this rank makes, `tile` is its part of each picture.
    """
    from outsize.data.inputs import map_maker
    from outsize.tasks import task_of
    from outsize.train.feed import BatchMaker
    from outsize.train.phases import label_strides

    task, card = task_of(job.task), prepared.card
    strides = label_strides(prepared.model, [phase.output for phase in recipe.phases])
    maps = task.wanted_maps(prepared.model, job.train.loss)
    return BatchMaker(
        samples.windows,
        partial(task.count_terms, strides=strides),
        job.train.loss,
        samples.weights,
        num_classes=len(card.classes),
        batch=job.train.batch,
        make_maps=map_maker(maps, card.dtype, card.statistics),
        seed=job.seed,
        mine=mine,
        tile=tile,
    )


def open_feed(
    job: Job,
    prepared: Prepared,
    make: BatchMaker,
    seen: SampleCounts,
    recipe: TrainSettings,
    reporter: Reporter,
) -> Feed:
    """Have batches made by processes for a GPU, whose kernels are launched from Python, and by threads else."""
    from outsize.data.feeding import can_share
    from outsize.train.feed import Feed

    section, on_gpu = job.train, prepared.device.type == "cuda"
    batch_bytes = section.batch * make.windows.sample_bytes
    in_processes = on_gpu and can_share(batch_bytes, section.workers)
    if on_gpu and not in_processes:
        text = "warning: /dev/shm is too small for processes: threads prepare samples, and the GPU may wait for them"
        reporter.say("warning", text)
    return Feed(
        make,
        seen,
        num_epochs=recipe.num_epochs,
        steps_per_epoch=recipe.steps_per_epoch,
        num_workers=section.workers,
        in_processes=in_processes,
        device=prepared.device,
        decoded_bytes=room_for_pictures(prepared.train_plan, job.limits, prepared.where.num_local),
    )


def _weights_of_phases(job: Job, prepared: Prepared, num_px: NDArray[np.int64]) -> dict[int, Weights]:
    """Return the class weights by the stride that phases reduce labels by, in the order of phases."""
    from outsize.losses.weights import class_weights
    from outsize.train.phases import label_strides

    names = [each.name for each in prepared.card.classes]
    found: dict[int, Weights] = {}
    for phase in job.train.all_phases():
        offset = phase.log_offset or job.train.log_offset
        weights = class_weights(job.train.class_weights, num_px, names, log_offset=offset)
        [stride] = label_strides(prepared.model, [phase.output])
        found[stride] = weights  # the same for all phases of an output
    return found


def _say_classes(
    names: Sequence[str], num_px: NDArray[np.int64], weights: Weights, reporter: Reporter
) -> dict[str, Any]:
    total = int(num_px.sum())
    shares = {name: int(num) / total for name, num in zip(names, num_px, strict=True)}
    each_weight = dict(zip(names, weights or (1.0,) * len(names), strict=True))
    text = ", ".join(f"{name} {shares[name]:.2%} (weight {each_weight[name]:.3g})" for name in names)
    classes = {"class_shares": shares, "class_weights": each_weight}
    reporter.say("classes", f"labelled to train on: {text}", **classes)
    return classes
