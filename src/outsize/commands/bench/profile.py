"""`outsize bench profile JOB`: a training step taken apart, a trace, a timeline, and what would help."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outsize.commands.bench.setting import Bench, benching
from outsize.measurement import Measurement
from outsize.progress import Reporter
from outsize.report.tables import profile_lines
from outsize.report.timeline import draw_timeline
from outsize.runs import write_text

if TYPE_CHECKING:
    from outsize.bench.verdict import Around
    from outsize.data.batch import Batch
    from outsize.planning.jobs import Prepared
    from outsize.session.samples import TrainingSamples

_NUM_TIMED, _NUM_PROFILED = 12, 4
_NUM_TURNS = 3  # of a step, and of one of twice the batch


def profile(
    job_path: Path,
    *,
    overrides: Sequence[str],
    device_name: str,
    out: Path | None,
    reporter: Reporter,
    steps: int = _NUM_TIMED,
) -> Measurement:
    """Train a few steps on the job's data, take them apart, and say what would make them shorter."""
    how: dict[str, Any] = {"overrides": overrides, "device_name": device_name, "out": out}
    with benching("profile", job_path, reporter=reporter, **how) as bench:
        from outsize.bench.taken_apart import parts_of, rates_of
        from outsize.bench.verdict import judge
        from outsize.planning.jobs import prepare
        from outsize.session.samples import open_samples

        prepared = prepare(bench.job, device_name, reporter)
        samples = open_samples(bench.job, prepared, reporter)
        with closing(samples.windows):
            made, found = _run(bench, prepared, samples, steps)
        swaps = prepared.train_plan.swap is not None
        parts, rates = parts_of(found, swaps=swaps), rates_of(found)
        around = _around(bench, prepared, made, rates, parts.step_s - parts.waiting_s)
        verdict = judge(parts, around)
        about = {
            "verdict": verdict.as_dict(),
            "parts": parts.shares(),
            "step_s": found.step_s.as_dict(),
            "wait_s": found.wait_s.as_dict(),
            "copied_bytes_per_s": rates,
            "around": vars(around),
        }
        measured = bench.measurement(prepared, [vars(parts)], about=about)
        bench.leave(measured)
        picture = bench.target.with_suffix(".svg")
        write_text(picture, draw_timeline(found.spans, f"{found.num_steps} steps: {measured.job.text}"))
    trace = _trace(bench)
    text = "\n".join(
        [*profile_lines(measured), f"written: {bench.target}, {picture}, {trace} (ui.perfetto.dev)"]
    )
    reporter.say("bench", text, **measured.as_dict(), path=str(bench.target), trace=str(trace))
    return measured


def _trace(bench: Bench) -> Path:
    return bench.run.bench / "profile-trace.json"


def _run(
    bench: Bench, prepared: Prepared, samples: TrainingSamples, steps: int
) -> tuple[tuple[float, float], Any]:
    """Return what making one batch takes, and the steps taken apart."""
    from outsize.bench.taken_apart import made_s, run_steps
    from outsize.data.sampling import SampleCounts
    from outsize.session.fitting import recipe_of
    from outsize.session.hosting import place
    from outsize.session.samples import batch_maker, open_feed

    job = bench.job
    recipe = recipe_of(job, samples.windows)
    make = batch_maker(job, prepared, samples, recipe)
    made = made_s(lambda number: make((0, number)))
    place(prepared.model, prepared.train_plan, prepared.device, bf16=prepared.where.bf16)
    seen = SampleCounts([each.name for each in prepared.card.classes])
    enough = replace(recipe, steps_per_epoch=_num_warm(job.train.workers) + steps + _NUM_PROFILED)
    feed = open_feed(job, prepared, make, seen, enough, bench.reporter)

    with closing(feed):
        found = run_steps(
            feed.batches(0, 0),
            _step(bench, prepared, samples),
            _trace(bench),
            prepared.device,
            num_warm=_num_warm(job.train.workers),
            num_timed=steps,
            num_profiled=_NUM_PROFILED,
        )
    return made, found


def _num_warm(workers: int) -> int:
    """Count the steps until nothing is left of the batches that were made before the first one."""
    return 2 * workers + 2


def _step(bench: Bench, prepared: Prepared, samples: TrainingSamples) -> Callable[[Batch], object]:
    """Return the step as a training runs it, with the optimizer of its first phase."""
    from outsize.strategies.compose import compose
    from outsize.tasks import task_of
    from outsize.train.optimizer import make_optimizer

    section = bench.job.train
    terms = task_of(bench.job.task).make_loss_terms(section.loss, prepared.card.statistics, samples.weights)
    step = compose(prepared.model, terms, prepared.train_plan, bf16=prepared.where.bf16)
    optimizer = make_optimizer(
        prepared.model,
        section.optimizer,
        lr=section.lr,
        momentum=section.momentum,
        weight_decay=section.weight_decay,
    )
    prepared.model.train()

    def run(batch: Batch) -> object:
        terms = step(batch, last=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return terms

    return run


def _around(
    bench: Bench,
    prepared: Prepared,
    made: tuple[float, float],
    rates: dict[str, float | None],
    busy_s: float,
) -> Around:
    from outsize.bench.verdict import Around

    job, where, plan = bench.job, prepared.where, prepared.train_plan
    link = where.rates.to_device_bytes_per_s
    reached, twice = rates["host to device"], _twice(bench, prepared)
    return Around(
        device="GPU" if where.kind == "cuda" else "CPU",
        batch=job.train.batch,
        workers=max(1, job.train.workers),
        cores=where.machine.num_cores,
        making_s=made[0],
        making_cpu_s=made[1],
        twice_s=None if twice is None else twice * busy_s,
        link_share=None if link is None or reached is None else reached / link,
        records=where.kind == "cuda" and plan.is_recordable and not plan.graph and not job.data.objects,
    )


def _twice(bench: Bench, prepared: Prepared) -> float | None:
    """Return how many times as long a plain step of twice the batch takes; None where it does not fit."""
    from outsize.bench.gauge import take_turn
    from outsize.bench.measured_step import make_measured_step
    from outsize.plan.limits import usable_bytes
    from outsize.plan.plan import unplanned
    from outsize.plan.ways import plain
    from outsize.planning.jobs import train_task
    from outsize.tasks import task_of

    job, where, num_bands = bench.job, prepared.where, len(prepared.bands)
    request = train_task(job, prepared.model, num_bands, prepared.facts.halo, where)
    once, twice = job.train.batch, 2 * job.train.batch
    if plain(replace(request, batch=twice)).peak_bytes > usable_bytes(where.machine, job.limits):
        return None
    task, num_classes = task_of(job.task), len(job.data.classes)

    def runs(batch: int) -> Callable[[], object]:
        section = job.train.model_copy(update={"batch": batch})
        given = prepared.model, task, section, num_bands, num_classes, bench.device
        made = make_measured_step(*given, bf16=where.bf16)
        return made.runs(made.composed(unplanned()))

    pair = runs(once), runs(twice)
    turns = [[take_turn(each, bench.device).ms for each in pair] for _ in range(_NUM_TURNS)]
    return statistics.median(larger / smaller for smaller, larger in turns)
