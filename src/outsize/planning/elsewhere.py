"""The training step of a job on every machine of the catalogue: what fits there, by what, and how long it takes."""

from __future__ import annotations

from typing import Any

from outsize.bench.fits import predicted
from outsize.errors import OutsizeError, PlanError, found_in
from outsize.job import Job
from outsize.plan.facts import Facts, WindowFacts
from outsize.plan.machines import CATALOGUE
from outsize.plan.plan import Plan
from outsize.plan.ways import choose_train, plain
from outsize.planning.jobs import lay, train_task
from outsize.planning.situation import situation_named
from outsize.progress import Reporter

# How far predictions by data sheets were from 144 steps that were measured on one H200: benchmarks/results,
# 2026-11-16-h200-plan-error.md. Of other cards nothing was measured.
TIME_ERROR, PEAK_ERROR = 0.30, 0.028


def predict_elsewhere(job: Job, reporter: Reporter) -> list[dict[str, Any]]:
    """Return a row for each card of the catalogue, within its own memory; the data must be there, for its bands."""
    ground = lay(job, reporter)
    limits = job.limits.model_copy(update={"gpu_memory": None, "host_memory": None})
    weights_bytes = sum(each.numel() * each.element_size() for each in ground.model.parameters())
    window = WindowFacts(0, weights_bytes, 0, 0.0, 0.0, None, None)  # nothing is predicted of a prediction
    rows = []
    for spec in CATALOGUE:
        where = situation_named(spec.name, 1, job.train.precision)
        known = Facts(where.machine, window, ground.halo, where.rates)
        row: dict[str, Any] = {"machine": spec.name, "title": spec.title, "time_error": TIME_ERROR}
        try:
            task = train_task(job, ground.model, len(ground.bands), ground.halo, where)
            first = plain(task)
            plan: Plan | None = None
            why = ""
            try:
                plan = choose_train(known, limits, task)
            except PlanError as error:
                why = found_in(str(error))
            row |= predicted(plan, first, why)
        except OutsizeError as error:
            row |= {"outcome": "does not run", "why": str(error)}
        step_s = row.get("predicted_step_s")
        row["samples_per_s"] = None if not step_s else job.train.batch / step_s
        rows.append(row)
    return rows
