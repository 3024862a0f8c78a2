"""What else a plan can tell: how a huge image could be cut, and what to ask a cluster for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from outsize.job import Job
from outsize.plan.cost import StepCost
from outsize.plan.limits import usable_bytes, usable_share
from outsize.plan.plan import Tiling
from outsize.plan.predict import cores_to_show, seconds_of_windows
from outsize.plan.request import Course, Request, Workload, course_of, make_request
from outsize.plan.tilings import Cut, list_cuts, train_cores
from outsize.plan.times import host_calls, together
from outsize.planning.jobs import count_steps, train_task
from outsize.planning.situation import share_of
from outsize.units import num_px_of

if TYPE_CHECKING:
    from outsize.planning.jobs import Planned

Cuts = tuple[
    str, list[Cut], tuple[int, int], int
]  # of what, the ways, its height and width, the planned core


def cuts_of(job: Job, planned: Planned) -> Iterator[Cuts]:
    """Yield the ways to cut the largest scene for prediction, and a training window, where they are cut."""
    scene_px, tiles = _largest_px(planned), planned.predict_plan.tiles
    in_passes = planned.predict_plan.passes is not None  # one window after the other is not how it goes then
    if tiles is not None and not in_passes and max(scene_px) > tiles.core_px:
        yield "prediction", _predict_cuts(job, planned, scene_px, tiles), scene_px, tiles.core_px
    tiles = planned.train_plan.tiles
    if tiles is not None:
        window_px = job.train.window_px
        cuts = _train_cuts(job, planned, window_px, tiles.core_px)
        yield "a training step", cuts, window_px, tiles.core_px


def _predict_cuts(job: Job, planned: Planned, scene_px: tuple[int, int], tiles: Tiling) -> list[Cut]:
    facts = planned.facts
    budget_bytes = usable_bytes(facts.machine, job.limits)

    def peak_of(px: tuple[int, int] = (0, 0)) -> int:
        return planned.resident_bytes + facts.window.peak_bytes(px[0] * px[1])

    return list_cuts(
        scene_px,
        tiles.halo,  # that of the plan, which the job may have asked to be shorter than the model's
        cores_to_show(max(scene_px), tiles.core_px, tiles.stride_px),
        peak_of=peak_of,
        seconds_of=lambda px, num: seconds_of_windows(facts, num, px[0] * px[1], budget_bytes - peak_of()),
        budget_bytes=budget_bytes,
    )


def _train_cuts(job: Job, planned: Planned, window_px: tuple[int, int], core_px: int) -> list[Cut]:
    """Two steps tell what grows with the pixels; large ones, in which weights and optimizer are not the most."""
    facts = planned.facts
    task = train_task(job, planned.model, len(planned.bands), facts.halo, planned.where)
    sides_px = [facts.halo.stride_px * num for num in (64, 128)]
    peaks, times, num_calls = [], [], 0.0
    for side_px in sides_px:
        step = task.step_of(1, side_px)
        cost = StepCost(step, is_part=True)
        peaks.append(cost.peak_bytes())
        times.append(sum(map(task.op_s, step.ops)))
        num_calls = sum(map(host_calls, step.ops))  # the same for any size
    num_px = sides_px[1] ** 2 - sides_px[0] ** 2
    bytes_per_px, s_per_px = (peaks[1] - peaks[0]) / num_px, (times[1] - times[0]) / num_px

    def beyond_px(px: tuple[int, int]) -> int:
        return px[0] * px[1] - sides_px[1] ** 2

    def waiting_bytes(px: tuple[int, int]) -> float:
        """Return what the rest of the batch takes on the device while one tile of it runs."""
        all_px = task.batch * window_px[0] * window_px[1]
        return cost.batch_bytes * max(0, all_px - px[0] * px[1]) / sides_px[1] ** 2

    return list_cuts(
        window_px,
        facts.halo,
        train_cores(max(window_px), core_px, facts.halo.stride_px),
        peak_of=lambda px: int(peaks[1] + bytes_per_px * beyond_px(px) + waiting_bytes(px)),
        seconds_of=lambda px, num: (
            num
            * together(
                times[1] + s_per_px * beyond_px(px), num_calls * task.host_op_s, overlaps=task.overlaps
            )
        ),
        budget_bytes=usable_bytes(facts.machine, job.limits),
    )


def course_for(job: Job, planned: Planned) -> Course:
    """Say how many steps a training has, and how long it takes with its validations."""
    return course_of(planned.train_plan, planned.facts, _work(job, planned), job.train.max_minutes)


def request_for(job: Job, planned: Planned) -> Request:
    """Say what to ask for, so that the training of a job and the prediction of its test scenes run to their end."""
    return make_request(
        planned.train_plan,
        planned.predict_plan,
        planned.facts,
        _work(job, planned),
        num_gpus=0 if planned.where.kind == "cpu" else planned.where.num_gpus,
        usable=usable_share(planned.facts.machine),
    )


def _work(job: Job, planned: Planned) -> Workload:
    """Add up what there is to do."""
    section = job.train
    per_epoch, num_epochs, num_steps = count_steps(job, planned.splits)
    held = {split: sum(scene.image.num_px for scene in scenes) for split, scenes in planned.splits.items()}
    num_classes = len(job.data.classes) if job.predict.probabilities else 0
    return Workload(
        num_steps=num_steps,
        num_epochs=num_epochs,
        epoch_samples=per_epoch,
        batch=section.batch,
        validated_px=held["val"] or held["train"],
        predicted_px=held["test"],
        bytes_per_px=1 + job.predict.confidence + num_classes,
        num_workers=section.workers,
        batch_bytes=share_of(section.batch, planned.where.num_gpus)
        * num_px_of(section.tile_px)
        * (4 * len(planned.bands) + 2),
    )


def _largest_px(planned: Planned) -> tuple[int, int]:
    sizes = [scene.whole_px for _, held in planned.splits.items() for scene in held]
    return max(height for height, _ in sizes), max(width for _, width in sizes)
