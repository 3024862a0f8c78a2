"""`outsize plan JOB`: what fits, how, and why."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from outsize.commands.naming import naming
from outsize.job import load_job
from outsize.plan.plan import Plan
from outsize.progress import Reporter
from outsize.runs import RunFolder
from outsize.units import format_bytes


def plan(job_path: Path, *, overrides: Sequence[str], device_name: str, reporter: Reporter) -> None:
    """Plan a job, say what was decided and rejected, and leave facts.json and plan.json in its run folder."""
    from outsize.commands.preparing import prepare
    from outsize.measure.machine import pick_device

    job = load_job(job_path, overrides)
    run = RunFolder(Path(job.run))
    pick_device(device_name)
    with naming(job_path):
        prepared = prepare(job, device_name, reporter, starting=False)
    prepared.record(run)
    for each in (prepared.train_plan, prepared.predict_plan):
        say_plan(each, reporter)
    reporter.say("written", f"written: {run.facts}, {run.plan}")


def say_plan(plan: Plan, reporter: Reporter) -> None:
    """Report one plan in a few lines."""
    kind = "exact" if plan.exact else "approximate"
    peak = f"{format_bytes(plan.peak_bytes)} of {format_bytes(plan.limit_bytes)}"
    lines = [f"{plan.purpose}: {kind}, {peak} predicted"]
    lines += [f"  because {reason}" for reason in plan.why]
    lines += [f"  rejected {each.what}: {each.why}" for each in plan.rejected]
    reporter.say("plan", "\n".join(lines), **plan.as_dict())
