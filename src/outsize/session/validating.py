"""What training does at the end of an epoch: score the model, and say how well it does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outsize.errors import first_line
from outsize.plan.plan import Plan
from outsize.plan.tighten import smaller
from outsize.progress import Bar, Reporter
from outsize.session.pace import StepPace
from outsize.units import format_count

if TYPE_CHECKING:
    from torch import nn

    from outsize.planning.jobs import Prepared
    from outsize.tasks.info import TaskInfo
    from outsize.tasks.task import Task
    from outsize.train.log import TrainingLog


def validate(
    task: Task, prepared: Prepared, model: nn.Module, folder: Path | None = None
) -> Mapping[str, Any]:
    """Return the scores of a model on what is held back, or else on what it learns from.

    What passes keep and memory does not hold goes to `folder`.
    """
    from outsize.infer.ready import stream_settings
    from outsize.tasks.task import HeldBack

    plan = prepared.predict_plan
    assert plan.tiles is not None
    settings = replace(stream_settings(plan, prepared.device, prepared.where.bf16), folder=folder)
    scenes = prepared.splits.val or prepared.splits.train
    return task.validate(model, HeldBack(scenes, prepared.table, prepared.card, plan.tiles, settings))


def validate_with_less(
    task: Task, prepared: Prepared, model: nn.Module, changed: Callable[[Plan, str], None], folder: Path
) -> Mapping[str, Any]:
    """Validate, in smaller parts where memory runs out; `changed` gets each new plan and the reason in words.

    Tiles with their halos give what the whole does, so they may be smaller; not where objects are found in them, or
    where a model looks further than the halo.
    """
    from outsize.measure.memory import ran_out, sweep

    cuts = task.cutting.exactly and prepared.predict_plan.exact and not prepared.facts.halo.obstacles
    while True:
        try:
            return validate(task, prepared, model, folder)
        except RuntimeError as error:
            less = smaller(prepared.predict_plan, cuts=cuts) if ran_out(error) else None
            if less is None:
                raise
            found = first_line(error)
        # out here, for the error holds the frames of the attempt, and they hold its tensors
        assert less.tiles is not None
        sweep(prepared.device)
        what = f"{format_count(less.batch, 'tile')} at once, with a core of {less.tiles.core_px} px"
        changed(less, f"memory ran out in validation ({found}): it starts over, {what}")
        prepared = prepared.with_plan(less)


def log_and_say(
    judged: TaskInfo,
    log: TrainingLog,
    bar: Bar,
    reporter: Reporter,
    pace: StepPace,
    record: Mapping[str, Any],
) -> None:
    """Write one line of metrics; a step moves the bar, an epoch is reported."""
    log.line(record)
    if record["kind"] == "step":
        bar.advance(1, **pace.told(record))
        return
    score, name = judged.score, judged.score_name
    bar.advance(0, **pace.judged(record[score]))
    text, extra = f"epoch {record['epoch']}: validation {name} {record[score]:.4f}", {score: record[score]}
    if record.get("unanswered_px"):
        extra["unanswered_px"] = record["unanswered_px"]
        text += (
            f"; warning: {format_count(record['unanswered_px'], 'pixel')} count as wrong, for the logits there are NaN "
            "or infinite"
        )
    reporter.say("epoch", text, epoch=record["epoch"], **extra)
