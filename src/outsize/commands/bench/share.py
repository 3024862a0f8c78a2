"""`outsize bench share JOB -n 2`: several processes on one device, each within its share, and one alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outsize.commands.bench.setting import Bench, benching, given_step
from outsize.errors import JobError, explain
from outsize.measurement import Measurement
from outsize.progress import Reporter
from outsize.report.tables import share_table, text_table

if TYPE_CHECKING:
    from outsize.bench.sharing import Portion, ToShare
    from outsize.planning.jobs import Planned


def share(
    job_path: Path,
    *,
    overrides: Sequence[str],
    device_name: str,
    out: Path | None,
    num: int,
    rounds: int,
    minutes: float,
    reporter: Reporter,
) -> Measurement:
    """Measure what a step takes with the whole device, within a share, and beside others like it."""
    how: dict[str, Any] = {"overrides": overrides, "device_name": device_name, "out": out}
    if num < 2:
        need, remedy = "2 or more processes", "take e.g. -n 2"
        raise JobError(explain("nothing to share", f"-n {num}", need, remedy))
    with benching("share", job_path, reporter=reporter, **how) as bench:
        from outsize.bench.sharing import as_rows, measure_sharing
        from outsize.measure.shared import crowding
        from outsize.planning.jobs import lay, plan_job
        from outsize.planning.situation import situation_here

        where = situation_here(bench.device, bench.job.train.precision, bench.job.limits.gpu_memory)
        planned = plan_job(bench.job, where, reporter, lay(bench.job, reporter))
        given, before = _to_share(bench, planned, num), crowding()
        found = measure_sharing(given, rounds=rounds, max_s=60 * minutes, reporter=reporter)
        about = {"num": num, "rounds": rounds, "crowding": max(before, crowding())}
        measured = bench.measurement(planned, as_rows(found, given), about=about)
        bench.leave(measured)
    table = text_table(*share_table(measured), title=f"{measured.job.text}, on {measured.machine.name}")
    reporter.say("bench", f"{table}\nwritten: {bench.target}", **measured.as_dict(), path=str(bench.target))
    return measured


def _to_share(bench: Bench, planned: Planned, num: int) -> ToShare:
    """Plan the step for all of the device's memory, and for a share of it."""
    from outsize.bench.sharing import Portion, ToShare, num_threads_of
    from outsize.plan.limits import limit_of
    from outsize.plan.ways import choose_train
    from outsize.planning.jobs import train_task

    job, where = bench.job, planned.where
    task = train_task(job, planned.model, len(planned.bands), planned.facts.halo, where)
    whole_bytes = limit_of(where.machine, job.limits)

    def room(share: int) -> Portion:
        limits = job.limits.model_copy(update={where.machine.limit_key: whole_bytes // share})
        plan = choose_train(
            planned.facts, limits, task, for_more="take fewer processes (-n), or a smaller train.batch"
        )
        return Portion(plan, whole_bytes // share, num_threads_of(share))

    return ToShare(given_step(bench, planned), num, room(1), room(num))
