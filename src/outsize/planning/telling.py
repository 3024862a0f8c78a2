"""Says in lines what a plan is for, what it is, and what else follows from it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from outsize.job import Job
from outsize.plan.plan import Plan
from outsize.plan.predict import largest_core
from outsize.plan.request import Course
from outsize.plan.tilings import Cut, as_table, remarks, why_predicted_so, why_trained_so
from outsize.planning.advice import cuts_of, request_for
from outsize.planning.situation import Situation, share_of
from outsize.progress import Reporter
from outsize.units import format_bytes, format_count, format_seconds

if TYPE_CHECKING:
    from outsize.planning.jobs import Planned

_MAX_REJECTED = 6  # shown; plan.json has all of them


def say_where(job: Job, where: Situation, reporter: Reporter) -> None:
    """Say what the plan is for, and what of the job has no meaning there."""
    lines = [f"for {where.text}"]
    if where.kind == "cpu" and job.limits.gpu_memory is not None:
        lines.append(
            "  limits.gpu_memory counts for nothing on a CPU, whose limit is limits.host_memory; --gpu names a GPU"
        )
    if where.lacks_bf16:
        lines.append(
            "  warning: it has no units for bfloat16: steps take longer than predicted, and longer than float32's"
        )
    reporter.say(
        "machine", "\n".join(lines), machine=where.machine.name, num_gpus=where.num_gpus, bf16=where.bf16
    )


def say_shares(job: Job, num_gpus: int, beyond: str | None, reporter: Reporter, num_stages: int = 1) -> None:
    """Say how GPUs share a batch, and where they are more than one host has."""
    batch, num = job.train.batch, max(1, num_gpus // num_stages)
    share = share_of(batch, num)
    pipelines = f"{format_count(num, 'pipeline')} of {num_stages} stages"
    shared = f"{share} of {batch} samples on each of {f'{num_gpus} GPUs' if num_stages == 1 else pipelines}"
    lines = ["more GPUs than samples: several share each picture"] if num > batch else []
    lines += [shared if batch % num == 0 else f"at most {shared}: those with fewer wait for the others"]
    lines += [] if beyond is None else [f"  {beyond}"]
    reporter.say("shares", "\n".join(lines), num_gpus=num_gpus, batch=batch, most_samples=share)


def say_plan(plan: Plan, reporter: Reporter, course: Course | None = None) -> None:
    """Report one plan in a few lines; of a training also how long it takes, where that is given."""
    kind = "exact" if plan.exact else "approximate"
    peak = f"{format_bytes(plan.peak_bytes)} of {format_bytes(plan.limit_bytes)}"
    what = "a step" if plan.purpose == "train" else format_count(plan.batch, "tile")
    time = "" if plan.step_s is None else f", {format_seconds(plan.step_s)} for {what}"
    lines = [f"{plan.purpose}: {kind}, {peak}{time} predicted"]
    lines += [] if course is None else [f"  {course.text()}"]
    lines += [f"  because {reason}" for reason in plan.why]
    lines += [f"  rejected {each.what}: {each.why}" for each in plan.rejected[:_MAX_REJECTED]]
    if len(plan.rejected) > _MAX_REJECTED:
        lines.append(f"  and {format_count(len(plan.rejected) - _MAX_REJECTED, 'other way')}")
    reporter.say("plan", "\n".join(lines), **plan.as_dict(), **({} if course is None else course.as_dict()))


def say_cuts(job: Job, planned: Planned, reporter: Reporter) -> None:
    """Show how the largest scene could be cut, where it is."""
    for purpose, cuts, scene_px, core_px in cuts_of(job, planned):
        taken = next(cut for cut in cuts if cut.tiling.core_px == core_px)
        lines = [
            f"{purpose} of {scene_px[0]} x {scene_px[1]} px, cut into q x q tiles:",
            as_table(cuts, taken),
        ]
        reasons = remarks(taken, scene_px, planned.facts.halo)
        reasons += _why_core(taken, cuts, scene_px, job, planned, trains=purpose != "prediction")
        lines += [f"  because {text}" for text in reasons]
        reporter.say("cuts", "\n".join(lines), purpose=purpose, taken=taken.num_per_side)


def _why_core(
    taken: Cut, cuts: Sequence[Cut], scene_px: tuple[int, int], job: Job, planned: Planned, *, trains: bool
) -> list[str]:
    if trains:
        return why_trained_so(taken, cuts, planned.train_plan.peak_bytes)
    if job.limits.tile_px is not None:
        return ["limits.tile_px asks for this core"]
    return why_predicted_so(taken, cuts, largest_core(planned.where.kind, scene_px))


def say_request(job: Job, planned: Planned, beyond: str | None, reporter: Reporter) -> None:
    """Say what to ask a cluster or cloud for."""
    found = request_for(job, planned)
    lines = found.lines()
    if beyond is not None:
        lines.append("  these are for all hosts together, and most job scripts ask for one host: divide them")
    reporter.say("request", "\n".join(lines), **found.as_dict())


def say_spread(job: Job, gpu: str, num_gpus: int, link: str, reporter: Reporter) -> None:
    """Say how a job is spread over GPUs with a link between them: the fastest way, and the others beside it."""
    from outsize.planning.clusters import spread_over

    best, *others = spread_over(job, gpu, num_gpus, link, reporter)
    reporter.say("spread", "\n".join(best.lines()), **best.as_dict())
    for each in others:
        more = f"{format_seconds(each.found.epoch_s)} for an epoch, efficiency {each.efficiency:.0%}"
        reporter.say("slower", f"  slower: {each.lines()[0]}: {more}", **each.as_dict())
