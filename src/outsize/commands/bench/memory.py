"""`outsize bench KIND JOB`: the same job run in several ways, measured side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outsize.commands.bench.setting import Bench, benching, listed, without_limit
from outsize.errors import JobError, explain
from outsize.job import Job
from outsize.measurement import Measurement
from outsize.progress import Reporter
from outsize.report.measured import memory_table, tree_of

if TYPE_CHECKING:
    from outsize.bench.cap import Cap
    from outsize.bench.memory import Planning
    from outsize.plan.plan import Plan
    from outsize.plan.way import StepRequest
    from outsize.planning.jobs import Planned


def memory(
    job_path: Path,
    *,
    overrides: Sequence[str],
    device_name: str,
    out: Path | None,
    budgets: str | None,
    ways: str | None,
    rounds: int,
    reporter: Reporter,
) -> Measurement:
    """Measure peak memory against step time of every way, and leave figures and a picture in the run's `bench`."""
    how: dict[str, Any] = {"overrides": overrides, "device_name": device_name, "out": out}
    with benching("memory", job_path, reporter=reporter, **how) as bench:
        from outsize.bench.memory import BUDGETS, check_budgets
        from outsize.bench.ways import choose_ways
        from outsize.planning.jobs import lay, plan_job
        from outsize.planning.situation import situation_here
        from outsize.report.tradeoff import draw_memory

        names = choose_ways(None if ways is None else listed(ways))
        limits = check_budgets(BUDGETS if budgets is None else _budgets(budgets))
        job, run = bench.job, bench.run
        ground = lay(job, reporter)
        where = situation_here(bench.device, job.train.precision, job.limits.gpu_memory)
        planned = plan_job(without_limit(job, where), where, reporter, ground)
        measured = _measure(bench, planned, names, limits, rounds)
        bench.leave(measured)
        picture = bench.target.with_suffix(".png")
        title = f"{measured.job.text}, on {measured.machine.name}"
        draw_memory(picture, tree_of(measured), title=title)
    rows = [{key: value for key, value in row.items() if key != "plan"} for row in measured.rows]
    text = f"{memory_table(measured)}\nwritten: {bench.target}, {picture}; `outsize report {run.path}` shows both"
    told = {**measured.as_dict(), "rows": rows}
    reporter.say("bench", text, **told, path=str(bench.target), picture=str(picture))
    return measured


def _measure(
    bench: Bench, planned: Planned, names: Sequence[str], budgets: Sequence[float | Cap], rounds: int
) -> Measurement:
    from outsize.bench.measured_step import make_measured_step
    from outsize.bench.memory import measure_memory
    from outsize.plan.ways import blocks_to_compile
    from outsize.planning.jobs import train_task
    from outsize.tasks import task_of

    job, where = bench.job, planned.where
    bench.measurement(
        planned, ()
    )  # now: an installation that lacks something shows it before minutes of measuring
    num_bands = len(planned.bands)
    task = train_task(job, planned.model, num_bands, planned.facts.halo, where)
    made_up = make_measured_step(
        planned.model,
        task_of(job.task),
        job.train,
        num_bands,
        len(job.data.classes),
        bench.device,
        bf16=where.bf16,
    )
    found = measure_memory(
        made_up,
        names,
        budgets,
        blocks_to_compile(task.step_of(task.batch, task.side_px)),
        _planning(job, planned, task),
        rounds=rounds,
        reporter=bench.reporter,
    )
    rows = found.pop("rows")
    return bench.measurement(planned, rows, about=found)


def _planning(job: Job, planned: Planned, task: StepRequest) -> Planning:
    """Return how ours is planned: as a training of the job would be, but for another limit."""
    from outsize.bench.memory import Planning
    from outsize.plan.ways import choose_train, plain
    from outsize.planning.situation import host_bytes

    key = planned.where.machine.limit_key
    # all ways train the same weights in turns, which must stay where they are
    task = replace(task, weights={})
    facts = planned.facts
    if planned.where.kind == "cpu":
        # nothing caps the process there, and tensors alone are counted: none of the budget is left for anything else
        facts = replace(facts, machine=replace(facts.machine, usable_share=1.0))

    def plan_for(limit_bytes: int) -> Plan:
        limits = job.limits.model_copy(update={key: limit_bytes})
        # now: other budgets may have taken of it what they move
        room_bytes = host_bytes(limits.host_memory, planned.where)
        there = replace(task, host_bytes=room_bytes)
        plan = choose_train(facts, limits, there, for_more="give ours more with --budgets")
        # without a trial: where it cannot be recorded it runs as it is, and that is noted
        return replace(plan, graph=task.records and plan.is_recordable)

    return Planning(plan_for, plain(task).peak_bytes)


def _budgets(text: str) -> list[float | Cap]:
    from outsize.bench.cap import parse_cap

    found: list[float | Cap] = []
    for part in listed(text):
        cap = parse_cap(part)
        try:
            found.append(float(part) if cap is None else cap)
        except ValueError:
            needed = "numbers above 0 and up to 1, or caps such as 16GiB or 70%"
            remedy = "write e.g. --budgets 0.5,0.33,0.25"
            raise JobError(explain("--budgets not understood", repr(part), needed, remedy)) from None
    if not found:
        needed, remedy = "shares or caps with commas between them", "write e.g. --budgets 0.5,0.33,0.25"
        raise JobError(explain("--budgets is empty", repr(text), needed, remedy))
    return found
