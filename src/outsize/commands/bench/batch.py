"""`outsize bench batch JOB`: batches up to out of memory, with time per sample, GPU use and memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outsize.commands.bench.setting import Bench, benching, given_step, whole_numbers, without_limit
from outsize.measurement import Measurement
from outsize.progress import Reporter
from outsize.report.tables import batch_table, text_table

if TYPE_CHECKING:
    from outsize.bench.batches import BatchEntry
    from outsize.planning.jobs import Planned

_MOST_DOUBLINGS = 12


def batch(
    job_path: Path,
    *,
    overrides: Sequence[str],
    device_name: str,
    out: Path | None,
    batches: str | None,
    rounds: int,
    minutes: float,
    reporter: Reporter,
) -> Measurement:
    """Measure batches side by side, the smallest first, until one is out of memory."""
    how: dict[str, Any] = {"overrides": overrides, "device_name": device_name, "out": out}
    with benching("batch", job_path, reporter=reporter, **how) as bench:
        given = whole_numbers("--batches", batches, "1,2,4,8")
        from outsize.measure.shared import crowding
        from outsize.planning.jobs import lay, plan_job
        from outsize.planning.situation import situation_here

        ground = lay(bench.job, reporter)
        where = situation_here(bench.device, bench.job.train.precision, bench.job.limits.gpu_memory)
        planned = plan_job(without_limit(bench.job, where), where, reporter, ground)
        before = crowding()
        found = _measure(bench, planned, given, rounds, 60 * minutes)
        about = {"rounds": rounds, "crowding": max(before, crowding())}
        measured = bench.measurement(planned, [each.as_row() for each in found], about=about)
        bench.leave(measured)
    table = text_table(*batch_table(measured), title=f"{measured.job.text}, on {measured.machine.name}")
    reporter.say("bench", f"{table}\nwritten: {bench.target}", **measured.as_dict(), path=str(bench.target))
    return measured


def _measure(
    bench: Bench, planned: Planned, given: Sequence[int] | None, rounds: int, max_s: float
) -> list[BatchEntry]:
    from outsize.bench.batches import Expected, measure_batches, rounds_apart
    from outsize.plan.limits import limit_of
    from outsize.plan.ways import plain
    from outsize.planning.jobs import train_task

    job, where = bench.job, planned.where
    step = given_step(bench, planned)
    request = train_task(job, planned.model, step.num_bands, planned.facts.halo, where)
    limit_bytes = limit_of(where.machine, job.limits)

    def expect(size: int) -> Expected:
        way = plain(replace(request, batch=size))
        return Expected(way.peak_bytes, way.step_s)

    return measure_batches(
        given or [2**power for power in range(_MOST_DOUBLINGS)],
        lambda size: step.with_batch(size).make(),
        expect,
        rounds_apart(step, limit_bytes),
        limit_bytes=limit_bytes,
        rounds=rounds,
        max_s=max_s,
        reporter=bench.reporter,
    )
