"""`outsize bench fit JOB`: sizes x batches x budgets x machines: what fits, by what, and what that costs."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outsize.commands.bench.setting import Bench, benching, listed, whole_numbers, without_limit
from outsize.errors import OutsizeError, PlanError, found_in
from outsize.measurement import Measurement
from outsize.progress import Reporter
from outsize.report.tables import fit_table, text_table
from outsize.units import parse_bytes

if TYPE_CHECKING:
    from outsize.plan.plan import Plan
    from outsize.planning.jobs import Planned
    from outsize.planning.situation import Situation

_HERE = "here"


@dataclass(frozen=True)
class Grid:
    """What is looked at."""

    sizes_px: Sequence[int]
    batches: Sequence[int]
    budgets_bytes: Sequence[int | None]  # None: what the machine, or the job, has
    machines: Sequence[str]
    max_s: float  # for measuring


def fit(
    job_path: Path,
    *,
    overrides: Sequence[str],
    device_name: str,
    out: Path | None,
    asked: dict[str, str | None],
    minutes: float,
    reporter: Reporter,
) -> Measurement:
    """Predict every cell of the table, and measure those of the machine that is here."""
    how: dict[str, Any] = {"overrides": overrides, "device_name": device_name, "out": out}
    with benching("fit", job_path, reporter=reporter, **how) as bench:
        grid = _grid(bench, asked, 60 * minutes)
        from outsize.planning.jobs import lay, plan_job
        from outsize.planning.situation import situation_here

        ground = lay(bench.job, reporter)
        where = situation_here(bench.device, bench.job.train.precision, bench.job.limits.gpu_memory)
        planned = plan_job(without_limit(bench.job, where), where, reporter, ground)
        rows = list(_rows(bench, planned, grid))
        measured = bench.measurement(planned, rows)
        bench.leave(measured)
    table = text_table(*fit_table(measured), title=f"{measured.job.model}, {measured.job.precision}")
    reporter.say("bench", f"{table}\nwritten: {bench.target}", **measured.as_dict(), path=str(bench.target))
    return measured


def _grid(bench: Bench, asked: dict[str, str | None], max_s: float) -> Grid:
    from outsize.plan.machines import find_machine

    section = bench.job.train
    side_px = max(section.window_px)
    machines = listed(asked["machines"] or _HERE)
    for name in machines:
        if name != _HERE:
            find_machine(name)  # refuses one that is not known, now
    budgets = asked["budgets"]
    return Grid(
        sizes_px=whole_numbers("--sizes", asked["sizes"], "512,800") or [side_px, 2 * side_px],
        batches=whole_numbers("--batches", asked["batches"], "8,16")
        or [section.batch, 2 * section.batch, 4 * section.batch],
        budgets_bytes=[None] if budgets is None else [parse_bytes(each) for each in listed(budgets)],
        machines=machines,
        max_s=max_s,
    )


def _rows(bench: Bench, planned: Planned, grid: Grid) -> Iterator[dict[str, Any]]:
    from outsize.planning.situation import situation_named

    end_s = time.perf_counter() + grid.max_s
    num = len(grid.machines) * len(grid.sizes_px) * len(grid.batches) * len(grid.budgets_bytes)
    with bench.reporter.bar("fit", num, "cells") as bar:
        for name in grid.machines:
            where = planned.where if name == _HERE else situation_named(name, 1, bench.job.train.precision)
            for cell in (
                (side_px, batch, budget)
                for side_px in grid.sizes_px
                for batch in grid.batches
                for budget in grid.budgets_bytes
            ):
                row = {"machine": name, **_row(bench, planned, where, cell, end_s)}
                bar.advance(1, cell=f"{cell[0]} px x {cell[1]}", outcome=row["outcome"])
                yield row


def _row(
    bench: Bench,
    planned: Planned,
    where: Situation,
    cell: tuple[int, int, int | None],
    end_s: float,
) -> dict[str, Any]:
    from outsize.bench.fits import may_measure, measured, predicted
    from outsize.plan.limits import limit_of
    from outsize.plan.ways import choose_train, plain
    from outsize.planning.jobs import count_steps, train_task
    from outsize.tasks import task_of

    side_px, batch, budget_bytes = cell
    section = bench.job.train.model_copy(update={"tile_px": side_px, "batch": batch})
    limits = bench.job.limits
    if budget_bytes is not None:
        limits = limits.model_copy(update={where.machine.limit_key: budget_bytes})
    elif where is not planned.where:
        limits = limits.model_copy(update={where.machine.limit_key: None})
    job = bench.job.model_copy(update={"train": section, "limits": limits})
    row: dict[str, Any] = {"side_px": side_px, "batch": batch, "budget_bytes": budget_bytes}
    num_samples, num_epochs, num_steps = count_steps(job, planned.splits)
    row |= {"samples_per_epoch": num_samples, "steps_per_epoch": max(1, num_steps // num_epochs)}
    facts = replace(planned.facts, machine=where.machine, rates=where.rates)
    plan: Plan | None = None
    why = ""
    try:
        row["budget_bytes"] = limit_of(where.machine, limits)
        task = train_task(job, planned.model, len(planned.bands), planned.facts.halo, where)
        first = plain(task)
        try:
            plan = choose_train(facts, limits, task)
        except PlanError as error:
            why = found_in(str(error))
        row |= predicted(plan, first, why)
    except OutsizeError as error:  # more than the machine has; a model that does not run on such windows
        return row | {"outcome": "does not run", "why": str(error)}
    if plan is not None and where.device is not None and may_measure(row, end_s):
        from outsize.bench.measured_step import make_measured_step

        made = make_measured_step(
            planned.model,
            task_of(job.task),
            section,
            len(planned.bands),
            len(job.data.classes),
            where.device,
            bf16=where.bf16,
        )
        row |= measured(made, plan, row["budget_bytes"])
    return row
