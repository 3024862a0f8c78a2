"""A few steps of a training under the profiler, and what there is around them that could be changed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from outsize.job import Job
from outsize.progress import Reporter
from outsize.session.fitting import recipe_of
from outsize.session.hosting import place
from outsize.session.samples import batch_maker, open_feed

if TYPE_CHECKING:
    from outsize.bench.taken_apart import Made, TakenApart
    from outsize.bench.verdict import Around
    from outsize.data.batch import Batch
    from outsize.planning.jobs import Prepared
    from outsize.session.samples import TrainingSamples

_NUM_PROFILED = 4
_NUM_TURNS = 3  # of a step, and of one of twice the batch


def take_apart(
    job: Job,
    prepared: Prepared,
    samples: TrainingSamples,
    trace: Path,
    steps: int,
    reporter: Reporter,
) -> tuple[Made, TakenApart]:
    """Return what making one batch takes, and steps as a training runs them; leaves a trace."""
    from outsize.bench.taken_apart import run_steps, time_making
    from outsize.data.sampling import SampleCounts

    recipe = recipe_of(job, samples.windows)
    make = batch_maker(job, prepared, samples, recipe)
    made = time_making(lambda number: make((0, number)))
    place(prepared.model, prepared.train_plan, prepared.device, bf16=prepared.where.bf16)
    seen = SampleCounts([each.name for each in prepared.card.classes])
    enough = replace(recipe, steps_per_epoch=_num_warm(job.train.workers) + steps + _NUM_PROFILED)
    feed = open_feed(job, prepared, make, seen, enough, reporter)

    with closing(feed):
        found = run_steps(
            feed.batches(0, 0),
            _step(job, prepared, samples),
            trace,
            prepared.device,
            num_warm=_num_warm(job.train.workers),
            num_timed=steps,
            num_profiled=_NUM_PROFILED,
        )
    return made, found


def _num_warm(workers: int) -> int:
    """Count the steps until nothing is left of the batches that were made before the first one."""
    return 2 * workers + 2


def _step(job: Job, prepared: Prepared, samples: TrainingSamples) -> Callable[[Batch], object]:
    """Return the step as a training runs it, with the optimizer of its first phase."""
    from outsize.strategies.compose import compose
    from outsize.tasks import task_of
    from outsize.train.optimizer import make_optimizer

    section = job.train
    terms = task_of(job.task).make_loss_terms(section.loss, prepared.card.statistics, samples.weights)
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


def around_of(
    job: Job,
    prepared: Prepared,
    made: Made,
    rates: dict[str, float | None],
    busy_s: float,
    cores_s: float,
) -> Around:
    """Return what a verdict takes into account besides the parts of a step, which is busy for so long.

    `cores_s` is of this process: on a CPU threads of it make batches, for a GPU others do.
    """
    from outsize.bench.verdict import Around
    from outsize.tasks import task_of

    where, plan = prepared.where, prepared.train_plan
    link = where.rates.to_device_bytes_per_s
    reached, twice = rates["host to device"], _twice(job, prepared)
    records = where.kind == "cuda" and plan.is_recordable and not plan.graph and task_of(job.task).records
    return Around(
        device="GPU" if where.kind == "cuda" else "CPU",
        batch=job.train.batch,
        workers=max(1, job.train.workers),
        cores=where.machine.num_cores,
        making_s=made.wall_s,
        making_cpu_s=made.computing_s,
        cores_s=cores_s if where.kind == "cpu" else made.computing_s,
        twice_s=None if twice is None else twice * busy_s,
        link_share=None if link is None or reached is None else reached / link,
        records=records,
    )


def _twice(job: Job, prepared: Prepared) -> float | None:
    """Return how many times as long a plain step of twice the batch takes; None where it does not fit."""
    from outsize.bench.gauge import take_turn
    from outsize.bench.measured_step import make_measured_step
    from outsize.plan.limits import usable_bytes
    from outsize.plan.plan import unplanned
    from outsize.plan.ways import plain
    from outsize.planning.jobs import train_task
    from outsize.tasks import task_of

    where, num_bands = prepared.where, len(prepared.bands)
    request = train_task(job, prepared.model, num_bands, prepared.facts.halo, where)
    once, twice = job.train.batch, 2 * job.train.batch
    if plain(replace(request, batch=twice)).peak_bytes > usable_bytes(where.machine, job.limits):
        return None
    task, num_classes = task_of(job.task), len(job.data.classes)

    def runs(batch: int) -> Callable[[], object]:
        section = job.train.model_copy(update={"batch": batch})
        given = prepared.model, task, section, num_bands, num_classes, prepared.device
        made = make_measured_step(*given, bf16=where.bf16)
        return made.runs(made.composed(unplanned()))

    pair = runs(once), runs(twice)
    return times_as_long([[take_turn(each, prepared.device).ms for each in pair] for _ in range(_NUM_TURNS)])


def times_as_long(turns: Sequence[Sequence[float]]) -> float:
    """Return how many times as long the second of each pair takes, as all turns show it: the most.

    Where others are at work turns differ by half, and their median would blame the batch for it.
    """
    return max(larger / smaller for smaller, larger in turns)
