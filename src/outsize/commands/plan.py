"""`outsize plan JOB`: what fits, how, how long it takes, and why; on this machine or on one that is not here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from outsize.errors import InUseError, JobError, explain
from outsize.job import Job, load_job
from outsize.job.naming import naming
from outsize.plan.plan import Plan
from outsize.progress import Reporter
from outsize.runs import RunFolder, refuse_foreign, working_in
from outsize.units import format_bytes, format_count, format_seconds

if TYPE_CHECKING:
    from outsize.plan.request import Course
    from outsize.plan.tilings import Cut
    from outsize.planning.jobs import Planned
    from outsize.planning.situation import Situation

_MAX_REJECTED = 6  # shown; plan.json has all of them


def plan(
    job_path: Path,
    *,
    overrides: Sequence[str],
    device_name: str,
    reporter: Reporter,
    gpu: str | None = None,
    num_gpus: int = 1,
    link: str | None = None,
    **options: bool,
) -> None:
    """Plan a job, say what was decided and rejected, and leave facts.json and plan.json in its run folder.

    Options are `request` and `local_norm`.
    """
    local_norm = options.get("local_norm", False)
    from outsize.measure.machine import pick_device
    from outsize.plan.machines import find_machine
    from outsize.planning.advice import course_for
    from outsize.planning.jobs import lay, plan_job
    from outsize.planning.situation import Ranks, share_of, situation_here, situation_named

    job = load_job(job_path, overrides)
    run = RunFolder(Path(job.run))
    refuse_foreign(run)
    _refuse_two_machines(gpu, link, device_name)
    if link is not None and gpu is not None:
        with naming(job_path):
            _say_spread(job, gpu, num_gpus, link, reporter)
        return
    beyond = None if gpu is None else find_machine(gpu).beyond_host(num_gpus)
    device = None if gpu is not None else pick_device(device_name)
    with naming(job_path):
        if num_gpus > 1:
            share_of(job.train.batch, num_gpus)  # refuses more GPUs than samples
        ground = lay(job, reporter)
        if gpu is not None:
            where = replace(situation_named(gpu, num_gpus, job.train.precision), local_norm=local_norm)
        else:
            assert device is not None
            ranks = Ranks(num_gpus, num_gpus, local_norm=local_norm)
            job = ranks.share_of(job)
            where = situation_here(device, job.train.precision, job.limits.gpu_memory).among(ranks)
        _say_where(job, where, reporter)
        if num_gpus > 1:
            _say_shares(job, num_gpus, beyond, reporter)
        planned = plan_job(job, where, reporter, ground)
    say_plan(planned.train_plan, reporter, course_for(job, planned))
    say_plan(planned.predict_plan, reporter)
    _say_cuts(job, planned, reporter)
    if options.get("request"):
        _say_request(job, planned, beyond, reporter)
    if gpu is not None:
        reporter.say("kept", "not written: a plan for another machine is none for this one")
    elif num_gpus > 1:
        reporter.say("kept", "not written: a plan for several ranks is made anew when they train")
    else:
        _record(planned, run, reporter)


def _refuse_two_machines(gpu: str | None, link: str | None, device_name: str) -> None:
    """Refuse a link of a machine that is not named, and a device besides one that is."""
    if gpu is None and link is not None:
        need = "--gpu with it: the name of a machine"
        raise JobError(explain("--link connects GPUs of a named machine", link, need, "add --gpu v100-16"))
    if gpu is not None and device_name != "auto":
        found = f"--gpu {gpu} --device {device_name}"
        need = "one machine: a named one, or a device that is here"
        raise JobError(explain("a plan is for one machine", found, need, "leave out one of them"))


def _say_spread(job: Job, gpu: str, num_gpus: int, link: str, reporter: Reporter) -> None:
    """Say how a job is spread over GPUs with a link between them: the fastest way, and the others beside it."""
    from outsize.planning.clusters import spread_over

    best, *others = spread_over(job, gpu, num_gpus, link, reporter)
    reporter.say("spread", "\n".join(best.lines()), **best.as_dict())
    for each in others:
        more = f"{format_seconds(each.found.epoch_s)} for an epoch, efficiency {each.efficiency:.0%}"
        reporter.say("slower", f"  slower: {each.lines()[0]}: {more}", **each.as_dict())


def _record(planned: Planned, run: RunFolder, reporter: Reporter) -> None:
    """Leave facts, plan and split in a run, but not over those that a training was made with, or goes on with."""
    if run.is_trained:
        reporter.say("kept", f"not written: {run.path} holds a training and its plan")
        return
    try:
        with working_in(run, "plan"):
            planned.record(run)
    except InUseError as error:
        reporter.say("kept", f"not written: {error}")
        return
    reporter.say("written", f"written: {run.facts}, {run.plan}")


def _say_where(job: Job, where: Situation, reporter: Reporter) -> None:
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


def _say_shares(job: Job, num_gpus: int, beyond: str | None, reporter: Reporter) -> None:
    """Say how GPUs share a batch, and where they are more than one host has; refuse more GPUs than samples."""
    from outsize.planning.situation import share_of

    batch = job.train.batch
    share = share_of(batch, num_gpus)
    shared = f"{share} of {batch} samples on each of {num_gpus} GPUs"
    lines = [shared if batch % num_gpus == 0 else f"at most {shared}: those with fewer wait for the others"]
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


def _say_cuts(job: Job, planned: Planned, reporter: Reporter) -> None:
    """Show how the largest scene could be cut, where it is."""
    from outsize.plan.tilings import as_table, remarks
    from outsize.planning.advice import cuts_of

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
    from outsize.plan.predict import largest_core
    from outsize.plan.tilings import why_predicted_so, why_trained_so

    if trains:
        return why_trained_so(taken, cuts, planned.train_plan.peak_bytes)
    if job.limits.tile_px is not None:
        return ["limits.tile_px asks for this core"]
    return why_predicted_so(taken, cuts, largest_core(planned.where.kind, scene_px))


def _say_request(job: Job, planned: Planned, beyond: str | None, reporter: Reporter) -> None:
    from outsize.planning.advice import request_for

    found = request_for(job, planned)
    lines = found.lines()
    if beyond is not None:
        lines.append("  these are for all hosts together, and most job scripts ask for one host: divide them")
    reporter.say("request", "\n".join(lines), **found.as_dict())
