"""`outsize plan JOB`: what fits, how, how long it takes, and why; on this machine or on one that is not here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outsize.accounts import accounted
from outsize.errors import InUseError, JobError, explain
from outsize.job import load_job
from outsize.job.naming import naming
from outsize.packing.differing import say_differences
from outsize.progress import Reporter
from outsize.runs import RunFolder, refuse_foreign, working_in

if TYPE_CHECKING:
    from outsize.planning.jobs import Planned

_FOR_MACHINE = "a plan for another machine is none for this one"
_FOR_RANKS = "a plan for several ranks is made again when they train"


def plan(
    job_path: Path,
    *,
    overrides: Sequence[str],
    device_name: str,
    reporter: Reporter,
    gpu: str | None = None,
    num_gpus: int = 1,
    link: str | None = None,
    **options: Any,
) -> None:
    """Plan a job, say what was decided and rejected, and leave facts.json and plan.json in its run folder.

    Options are `request`, `local_norm`, `spread`, `stages` and `shard`.
    """
    from outsize.measure.machine import pick_device
    from outsize.plan.machines import find_machine
    from outsize.planning.advice import course_for
    from outsize.planning.jobs import lay, plan_job
    from outsize.planning.situation import SPREADS, Ranks, Sharing, situation_here, situation_named
    from outsize.planning.telling import say_cuts, say_plan, say_request, say_shares, say_spread, say_where

    local_norm, spread = options.get("local_norm", False), options.get("spread", SPREADS[0])
    sharing = Sharing(local_norm, spread, options.get("stages"), options.get("shard", False))
    num_stages = sharing.stages or 1
    job = load_job(job_path, overrides)
    run = RunFolder(Path(job.run))
    refuse_foreign(run)
    _refuse_two_machines(gpu, link, device_name)
    if link is not None and gpu is not None:
        with naming(job_path):
            say_spread(job, gpu, num_gpus, link, reporter)
        return
    beyond = None if gpu is None else find_machine(gpu).beyond_host(num_gpus)
    device = None if gpu is not None else pick_device(device_name)
    with accounted(run, "plan", reporter), reporter.doing("plan"):
        with naming(job_path):
            ground = lay(job, reporter)
            if gpu is not None:
                where = replace(situation_named(gpu, num_gpus, job.train.precision), sharing=sharing)
            else:
                assert device is not None
                ranks = Ranks(num_gpus, num_gpus, sharing=sharing)
                job = ranks.share_of(job)
                where = situation_here(device, job.train.precision, job.limits.gpu_memory).among(ranks)
            say_where(job, where, reporter)
            if num_gpus > 1:
                say_shares(job, num_gpus, beyond, reporter, num_stages)
            planned = plan_job(job, where, reporter, ground)
        say_plan(planned.train_plan, reporter, course_for(job, planned))
        say_plan(planned.predict_plan, reporter)
        say_cuts(job, planned, reporter)
        if options.get("request"):
            say_request(job, planned, beyond, reporter)
        if gpu is not None or num_gpus > 1:
            reporter.say("kept", f"not written: {_FOR_MACHINE if gpu is not None else _FOR_RANKS}")
        else:
            say_differences(job_path, planned.where, planned.train_plan, reporter)
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
