"""The training loop, read top to bottom."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import nn

from outsize import stopping
from outsize.data.batch import Batch
from outsize.ranks import ALONE, World
from outsize.strategies.compose import Step
from outsize.strategies.elsewhere import is_here
from outsize.train.log import LOG_STEPS
from outsize.train.optimizer import load_state_tensors, make_optimizer, state_tensors
from outsize.train.phases import LrSchedule, TrainPhase, begin_phase
from outsize.train.soundness import SoundnessWatch
from outsize.train.waits import BatchWaits


@dataclass(frozen=True)
class Position:
    """Where a training stands: everything besides tensors that a resumed one needs."""

    phase: int = 0
    epoch: int = 0  # within the phase
    step: int = 0  # within the epoch
    total_epochs: int = 0
    total_steps: int = 0
    best_score: float = -1.0
    best_epoch: int = -1  # in total_epochs
    stopped: bool = False  # early
    spent_s: float = 0.0  # in the loop, by all sessions together
    missed: Sequence[str] = ()  # phases that time was over for before they began


@dataclass(frozen=True)
class TrainSettings:
    """How to train, for all phases."""

    phases: Sequence[TrainPhase]
    schedule: LrSchedule
    optimizer: str
    momentum: float
    weight_decay: float
    steps_per_epoch: int
    seed: int
    early_stop_epochs: int | None = None
    score: str = "mean_iou"  # that an epoch is judged by
    checkpoint_steps: int | None = None
    max_s: float | None = None  # that all phases may take, each as its epochs are of all

    @property
    def num_epochs(self) -> int:
        """How many all phases have."""
        return sum(phase.epochs for phase in self.phases)

    def spent(self, phase: int, seconds: float) -> float:
        """Return the share of a phase's time that is gone after so many seconds of all; 0 where there is no limit."""
        if self.max_s is None:
            return 0.0
        epochs = [each.epochs for each in self.phases]
        begin, end = (self.max_s * sum(epochs[:number]) / sum(epochs) for number in (phase, phase + 1))
        return (seconds - begin) / (end - begin)


@dataclass(frozen=True)
class Hooks:
    """What the loop calls and does not know the inside of."""

    batches: Callable[[int, int], Iterator[Batch]]  # (epoch of all, first step) -> batches to the epoch's end
    validate: Callable[[nn.Module], Mapping[str, Any]]  # -> scores, that of the recipe among them
    log: Callable[[Mapping[str, Any]], None]  # one line of metrics
    save_state: Callable[[Mapping[str, torch.Tensor], Mapping[str, Any]], None]
    save_epoch: Callable[[Position, bool], None]  # position, whether it is the best so far
    copied_s: Callable[[], float] = lambda: 0.0  # time of copies to the device that ended since the last call
    # whether one can go on from the state that was saved last, as the step behind it has shown
    state_is_good: Callable[[], None] = lambda: None
    state_is_bad: Callable[[], None] = lambda: None
    stops: Callable[[], bool] = stopping.asked  # whether to end behind the step that was done last
    # says of a weight whether its state is kept on this rank; an optimizer is new
    kept_of: Callable[[torch.optim.Optimizer], Callable[[torch.Tensor], bool]] = lambda _: is_here
    world: World = ALONE  # in which all decide as one: each calls every hook


def fit(
    model: nn.Module,
    step: Step,
    recipe: TrainSettings,
    hooks: Hooks,
    resume: tuple[Mapping[str, torch.Tensor], Mapping[str, Any]] | None = None,
) -> Position:
    """Train through all phases and return where it ended; `resume` is a saved optimizer state and position.

    A signal that asks for the end is heard behind a step, or at once in a validation; all is saved before it goes up.
    """
    with stopping.held():
        return _fit(model, step, recipe, hooks, resume)


def _fit(
    model: nn.Module,
    step: Step,
    recipe: TrainSettings,
    hooks: Hooks,
    resume: tuple[Mapping[str, torch.Tensor], Mapping[str, Any]] | None,
) -> Position:
    position = Position(**resume[1]) if resume else Position()
    position = replace(position, missed=tuple(position.missed))  # which a file has as a list
    spent_s = _stopwatch(position.spent_s, recipe, hooks.world)
    optimizer_state = resume[0] if resume else {}
    output = recipe.phases[position.phase].output
    watch = SoundnessWatch(hooks.state_is_good, hooks.state_is_bad, position.total_steps)
    for number in range(position.phase, len(recipe.phases)):
        phase = recipe.phases[number]
        begun = position.epoch > 0 or position.step > 0
        if not begun and recipe.spent(number, spent_s()) >= 1:
            position = replace(position, phase=number + 1, missed=(*position.missed, phase.name))
            continue
        if phase.output != output:  # another output's scores are no measure for this one's
            position, output = replace(position, best_score=-1.0), phase.output
        begin_phase(model, phase)
        optimizer = make_optimizer(
            model,
            recipe.optimizer,
            lr=phase.lr,
            momentum=recipe.momentum,
            weight_decay=recipe.weight_decay,
        )
        load_state_tensors(optimizer, optimizer_state, hooks.kept_of(optimizer))
        optimizer_state = {}
        while position.epoch < phase.epochs and not position.stopped:
            is_over = recipe.spent(number, spent_s()) >= 1
            if is_over and not position.step:
                break
            if not is_over:  # else one that broke off in its validation is closed
                position = _run_epoch(model, step, optimizer, recipe, hooks, position, spent_s, watch)
            try:
                position = _close_epoch(model, recipe, hooks, position)
            except stopping.Stopped:  # in the validation, which a resumed training begins with
                _save(hooks, optimizer, position, watch)
                raise
            position = replace(position, spent_s=spent_s())
            _save(hooks, optimizer, position, watch)
            if hooks.world.agree(stopping.asked()):
                raise stopping.stop()
        # stopping early ends a phase, not those after it
        stopped = position.stopped and number == len(recipe.phases) - 1
        position = replace(position, phase=number + 1, epoch=0, step=0, stopped=stopped)
    hooks.state_is_good()  # nobody goes on from it
    return position


def _save(hooks: Hooks, optimizer: torch.optim.Optimizer, position: Position, watch: SoundnessWatch) -> None:
    hooks.save_state(state_tensors(optimizer), asdict(position))
    watch.saved(position.total_steps)


def _run_epoch(
    model: nn.Module,
    step: Step,
    optimizer: torch.optim.Optimizer,
    recipe: TrainSettings,
    hooks: Hooks,
    position: Position,
    spent_s: Callable[[], float],
    watch: SoundnessWatch,
) -> Position:
    """Train to the end of an epoch, or of the time that the phase has."""
    phase = recipe.phases[position.phase]
    num_steps = phase.epochs * recipe.steps_per_epoch
    model.train()
    waits = BatchWaits()
    ended_s = time.perf_counter()
    for batch in hooks.batches(position.total_epochs, position.step):
        waits.end(batch.images.device)
        phase_step = position.epoch * recipe.steps_per_epoch + position.step
        spent = recipe.spent(position.phase, position.spent_s)
        lr = phase.lr * recipe.schedule.factor(phase_step, num_steps, recipe.steps_per_epoch, spent=spent)
        for group in optimizer.param_groups:
            group["lr"] = lr
        # dropout depends on seed and step alone, so a resumed or repeated step draws the same
        torch.manual_seed((recipe.seed << 32) ^ position.total_steps)
        terms = step(batch, last=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)  # now, not before the next: validation has no room for them
        waits.mark_work()
        del batch  # or it would stay beside the next one
        position = replace(position, step=position.step + 1, total_steps=position.total_steps + 1)
        position = replace(position, spent_s=spent_s())
        # from end to end, so that the log's wait for a GPU, which it has once in a while, is counted too
        began_s, ended_s = ended_s, time.perf_counter()
        times = {"wait_s": waits.seconds(), "copy_s": hooks.copied_s(), "step_s": ended_s - began_s}
        hooks.log({"kind": "step", **_where(position), "lr": lr, **times, "terms": terms})
        watch.add(position.total_steps, terms)
        is_due = recipe.checkpoint_steps and position.total_steps % recipe.checkpoint_steps == 0
        stops = hooks.stops()
        if is_due or stops:
            watch.look(model, position.total_steps, lr, partial(state_tensors, optimizer))
            _save(hooks, optimizer, position, watch)
        elif position.total_steps % LOG_STEPS == 0:
            watch.look(model, position.total_steps, lr)
        if stops:
            raise stopping.stop()
        if recipe.spent(position.phase, position.spent_s) >= 1:
            break
        waits.begin()
    # nobody scores weights that are none
    watch.look(
        model, position.total_steps, optimizer.param_groups[0]["lr"], partial(state_tensors, optimizer)
    )
    return position


def _close_epoch(model: nn.Module, recipe: TrainSettings, hooks: Hooks, position: Position) -> Position:
    model.eval()
    began_s = time.perf_counter()
    # of ranks none leaves the others in the middle
    with stopping.at_once() if hooks.world.is_alone else nullcontext():
        scores = hooks.validate(model)
    validate_s = time.perf_counter() - began_s
    score = scores[recipe.score]
    better = math.isfinite(score) and score > position.best_score
    ended = replace(
        position,
        epoch=position.epoch + 1,
        step=0,
        total_epochs=position.total_epochs + 1,
        best_score=score if better else position.best_score,
        best_epoch=position.total_epochs if better else position.best_epoch,
    )
    patience = recipe.early_stop_epochs
    began = position.total_epochs - position.epoch  # of the phase: each has its own patience
    if patience is not None and position.total_epochs - max(ended.best_epoch, began) >= patience:
        ended = replace(ended, stopped=True)
    hooks.log({"kind": "epoch", **_where(ended), **scores, "validate_s": validate_s})
    hooks.save_epoch(ended, better)
    return ended


def _stopwatch(before_s: float, recipe: TrainSettings, world: World) -> Callable[[], float]:
    """Return what tells the time spent, on the owner's clock; without a limit nothing that is kept depends on it."""
    if recipe.max_s is None:
        return lambda: before_s
    start_s = time.monotonic() - before_s
    return lambda: world.owners(lambda: time.monotonic() - start_s)


def _where(position: Position) -> dict[str, int]:
    return {"phase": position.phase, "epoch": position.total_epochs, "step": position.total_steps}
