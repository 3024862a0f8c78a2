"""A training of a job from preparing to its last line: read, planned, taken up or begun, run, summed up.

job --> _prepare: plan, samples --> _begin: written down and said --> _run: the loop of fitting --> _sum_up
          |                                                            |
          owner of the ranks alone, which all hear of                  every rank
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outsize.job import Job
from outsize.job.naming import naming
from outsize.planning.situation import Ranks, Sharing
from outsize.planning.telling import say_plan
from outsize.progress import Reporter
from outsize.ranks import World
from outsize.runs import RunFolder
from outsize.session.among import ranks_of, say_ranks
from outsize.session.fitting import fit_job, named_phases
from outsize.session.resuming import (
    Changes,
    begin,
    changes_of,
    go_on_with,
    is_finished,
    plan_to_go_on_with,
    resumes,
    say_finished,
    wants_another_plan,
)
from outsize.session.samples import TrainingSamples, open_samples
from outsize.session.saving import Saving
from outsize.session.staging import Held

if TYPE_CHECKING:
    from torch import Tensor

    from outsize.planning.jobs import Prepared
    from outsize.train.loop import Position


@dataclass(frozen=True)
class Begun:
    """A training that is prepared: the same on all ranks, each of which reads a saved state by itself."""

    job: Job  # with this rank's share of limits
    prepared: Prepared
    samples: TrainingSamples
    changes: Changes
    is_resumed: bool


State = tuple[dict[str, "Tensor"], dict[str, Any]]


def train_job(
    job: Job,
    run: RunFolder,
    job_path: Path,
    asked: tuple[Sequence[str], str, str],
    reporter: Reporter,
    world: World,
    sharing: Sharing,
) -> None:
    """Train a job in its run, in step with all ranks; `asked` are overrides, the device's name and the mode."""
    from outsize.measure.machine import pick_device
    from outsize.train.checkpoint import load_state
    from outsize.train.feed import get_processes_ready

    overrides, device_name, mode = asked
    device = pick_device(device_name)
    if device.type == "cuda":
        get_processes_ready()
    ranks = ranks_of(world, device, sharing)
    state: State | None = None

    def prepare_and_say() -> Begun | None:
        nonlocal state
        with naming(job_path):
            if not world.is_alone:
                say_ranks(job, ranks, device.type, reporter)
            begun = _prepare(job, run, device_name, mode, ranks, reporter)
        state = load_state(run.state, begun.prepared.model) if begun.is_resumed else None
        goes_on = _begin(job, run, begun, None if state is None else state[1], mode, reporter)
        return begun if goes_on else None

    world.at("planning")
    begun = world.owners(prepare_and_say)
    if begun is None:
        return
    begun = replace(begun, prepared=begun.prepared.on(device))
    if begun.is_resumed and state is None:
        state = load_state(run.state, begun.prepared.model)
    _run(begun, state, run, (job_path, overrides), reporter, world)


def _prepare(
    job: Job, run: RunFolder, device_name: str, mode: str, ranks: Ranks, reporter: Reporter
) -> Begun:
    """Plan, read the data, and take up the plan of a training that goes on."""
    from outsize.planning.jobs import prepare

    resuming = resumes(run, job, mode)
    changes = changes_of(run, job) if resuming else {}
    own = ranks.share_of(job)
    with reporter.doing("plan"):
        prepared = prepare(own, device_name, reporter, starting=not resuming, ranks=ranks)
    with reporter.doing("look at labels"):
        samples = open_samples(own, prepared, reporter)
    if resuming and not wants_another_plan(changes):
        prepared = replace(prepared, train_plan=plan_to_go_on_with(run, prepared, own, reporter))
    return Begun(own, prepared, samples, changes, resuming)


def _begin(
    job: Job,
    run: RunFolder,
    begun: Begun,
    position: Mapping[str, Any] | None,
    mode: str,
    reporter: Reporter,
) -> bool:
    """Write down and say how the training is done from here on; False where it is finished."""
    prepared = begun.prepared
    if position is None:
        begin(run, job)
    prepared.record(run)
    if position is not None and is_finished(job, position):
        say_finished(run, position, reporter)
        return False
    for plan in (prepared.train_plan, prepared.predict_plan):
        say_plan(plan, reporter)
    if not prepared.splits.val:
        text = "warning: nothing is held back for validation: epochs are scored on the training scenes"
        reporter.say("warning", text)
    if mode == "resume" and position is None:
        reporter.say("resume", "nothing to resume yet: starting from the beginning", step=0)
    if position is not None:
        step = position["total_steps"]
        reporter.say("resume", f"resuming at step {step}", step=step)
        go_on_with(run, job, begun.changes, step, reporter)
    return True


def _run(
    begun: Begun,
    state: State | None,
    run: RunFolder,
    said: tuple[Path, Sequence[str]],
    reporter: Reporter,
    world: World,
) -> None:
    from outsize.data.sampling import SampleCounts
    from outsize.measure.usage import watching, write_usage
    from outsize.tasks import info_of

    job, prepared = begun.job, begun.prepared
    held = Held(job, prepared, world)
    held.place(prepared)
    seen = SampleCounts([each.name for each in prepared.card.classes])
    saving = Saving(run, prepared, seen, info_of(job.task).score, world, held)
    with (
        closing(begun.samples.windows),
        watching(prepared.device) as usage,
        reporter.beside(usage.latest),
        saving.reporting(*said, job.train.lr),
    ):
        position = fit_job(job, prepared, begun.samples, state, saving, begun.changes, reporter, world)
        num_steps = position.total_steps - (state[1]["total_steps"] if state else 0)
        summary = usage.summary(num_steps * job.train.batch, images_at_once=job.train.batch)
    if world.is_owner:
        write_usage(run.path, "train", summary)
        _sum_up(job, run, position, reporter)


def _sum_up(job: Job, run: RunFolder, position: Position, reporter: Reporter) -> None:
    from outsize.report.split import split_of_run
    from outsize.tasks import info_of

    split = split_of_run(run.metrics)
    if split is not None:
        reporter.say("times", split.line(), **split.as_dict())
    early = " (stopped early)" if position.stopped else ""
    without = f", without {named_phases(position.missed)}" if position.missed else ""
    score = f"best {info_of(job.task).score_name} {position.best_score:.4f}"
    text = f"trained {position.total_steps} steps{early}{without}, {score}: {run.best}"
    figures = {"steps": position.total_steps, "best": position.best_score, "missed": list(position.missed)}
    reporter.say("trained", text, **figures, run=str(run.path))
