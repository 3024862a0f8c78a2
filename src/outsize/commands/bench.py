"""`outsize bench KIND JOB`: the same job run in several ways, measured side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outsize.errors import JobError, explain
from outsize.job import Job, dump_job, load_job
from outsize.job.naming import naming
from outsize.progress import Reporter
from outsize.runs import (
    RunFolder,
    leaving_no_empty_folder,
    output_errors,
    refuse_foreign,
    working_in,
    write_json,
    write_text,
)

if TYPE_CHECKING:
    from outsize.bench.cap import Cap
    from outsize.bench.memory import Planning
    from outsize.plan.plan import Plan
    from outsize.plan.way import StepRequest
    from outsize.planning.jobs import Planned
    from outsize.planning.situation import Situation

_WIDTH = 120  # of the table


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
) -> dict[str, Any]:
    """Measure peak memory against step time of every way, and leave figures and a picture in the run's `bench`."""
    job = load_job(job_path, overrides)
    _refuse_without_train(job, job_path)
    from outsize.bench.memory import BUDGETS, check_budgets
    from outsize.bench.ways import choose_ways
    from outsize.measure.machine import pick_device
    from outsize.planning.jobs import lay, plan_job
    from outsize.planning.situation import situation_here
    from outsize.report.tradeoff import draw_memory

    names = choose_ways(None if ways is None else _listed(ways))
    limits = check_budgets(BUDGETS if budgets is None else _budgets(budgets))
    run = RunFolder(Path(job.run) if out is None else out)
    target = run.bench / "memory.json"
    device = pick_device(device_name)
    refuse_foreign(run)
    with working_in(run, "bench memory", tell=lambda text: reporter.say("lock", text)):
        with naming(job_path), leaving_no_empty_folder(run.bench):
            with output_errors(target):
                run.bench.mkdir(exist_ok=True)  # now: it would be late after minutes of measuring
            ground = lay(job, reporter)
            where = situation_here(device, job.train.precision, job.limits.gpu_memory)
            planned = plan_job(_without_limit(job, where), where, reporter, ground)
            measured = _measure(job, planned, names, limits, rounds, reporter)
        if not run.job.exists():  # a report begins with the job
            write_text(run.job, dump_job(job))
        write_json(target, measured)
        picture = target.with_suffix(".png")
        draw_memory(picture, measured, title=_title(measured))
    rows = [{key: value for key, value in row.items() if key != "plan"} for row in measured["rows"]]
    text = f"{_table(measured)}\nwritten: {target}, {picture}; `outsize report {run.path}` shows both"
    reporter.say("bench", text, **{**measured, "rows": rows}, path=str(target), picture=str(picture))
    return measured


def _measure(
    job: Job,
    planned: Planned,
    names: Sequence[str],
    budgets: Sequence[float | Cap],
    rounds: int,
    reporter: Reporter,
) -> dict[str, Any]:
    from outsize.bench.measured_step import make_measured_step
    from outsize.bench.memory import measure_memory
    from outsize.measure.origin import origin
    from outsize.plan.ways import blocks_to_compile
    from outsize.planning.jobs import train_task
    from outsize.tasks import task_of

    where, section = planned.where, job.train
    assert where.device is not None
    came_from = origin()  # now: an installation that lacks something shows it before minutes of measuring
    num_bands = len(planned.bands)
    task = train_task(job, planned.model, num_bands, planned.facts.halo, where)
    blocks = blocks_to_compile(task.step_of(task.batch, task.side_px))
    made_up = make_measured_step(
        planned.model,
        task_of(job.task),
        section,
        num_bands,
        len(job.data.classes),
        where.device,
        bf16=where.bf16,
    )
    found = measure_memory(
        made_up,
        names,
        budgets,
        blocks,
        _planning(job, planned, task),
        rounds=rounds,
        reporter=reporter,
    )
    setting = {
        "model": job.model.name,
        "options": job.model.options,
        "num_parameters": sum(each.numel() for each in made_up.model.parameters()),
        "batch": section.batch,
        "side_px": section.tile_px,
        "num_bands": num_bands,
        "precision": "bf16" if where.bf16 else "tf32" if where.tf32 else "fp32",
        "optimizer": section.optimizer,
        "loss": section.loss,
        "compile": section.compile,
    }
    known = {"kind": "memory", "setting": setting, "machine": planned.facts.as_dict()["machine"]}
    return {**known, **came_from, **found}


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


def _without_limit(job: Job, where: Situation) -> Job:
    """Return the job without its limit for the device, in whose place are budgets, and without a trial of a graph."""
    limits = job.limits.model_copy(update={where.machine.limit_key: None})
    return job.model_copy(update={"limits": limits, "train": job.train.model_copy(update={"graph": False})})


def _refuse_without_train(job: Job, job_path: Path) -> None:
    if "train" not in job.model_fields_set:
        needed = "the batch, window and optimizer of the step to measure"
        remedy = "add a section [train], or give e.g. --set train.batch=4"
        raise JobError(
            explain(f"job {job_path} does not say what is trained", "no section [train]", needed, remedy)
        )


def _listed(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _budgets(text: str) -> list[float | Cap]:
    from outsize.bench.cap import parse_cap

    found: list[float | Cap] = []
    for part in _listed(text):
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


def _title(measured: dict[str, Any]) -> str:
    what = measured["setting"]
    step = f"{what['model']}, {what['batch']} x {what['side_px']} px, {what['precision']}"
    return f"{step}, on {measured['machine']['name'] or measured['machine']['device']}"


def _table(measured: dict[str, Any]) -> str:
    """Draw the ways and what was seen of them, for a person."""
    from rich import box
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from outsize.report.measured import HEADS, basis, cells, remarks_of, scatter_of

    console = Console(width=_WIDTH, force_terminal=False, color_system=None)
    table = Table(box=box.SIMPLE_HEAD)
    for number, head in enumerate(HEADS):
        table.add_column(head, justify="right" if number else "left", no_wrap=True)
    failures = []
    for row in measured["rows"]:
        if row["failed"] is None:
            table.add_row(*map(escape, cells(row)))
        else:
            failures.append(f"  {row['label']} does not run: {row['failed']}")
    with console.capture() as captured:
        console.print(table)
    control = measured["control"]
    scatter = scatter_of(control)
    trust = [] if control is None else [f"  plain again is {control - 1:+.1%} from plain eager"]
    trust = trust if scatter is None else [f"  {scatter}; smaller differences say nothing"]
    remarks = [f"  {text}" for row in measured["rows"] for text in remarks_of(row)]
    return "\n".join([basis(measured), captured.get().rstrip(), *failures, *trust, *remarks])
