"""`outsize.within`: plans the training steps of any module for a budget, and returns the block to run them in."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from pydantic import BaseModel, ValidationError
from torch import nn

from outsize.errors import JobError, PlanError, explain
from outsize.job.fields import Bytes
from outsize.job.mistakes import mistake
from outsize.measure.machine import host_room_bytes, look_at_machine, machine_rates
from outsize.measure.memory import ran_out, sweep
from outsize.measure.state import reach_as_it_was
from outsize.plan.facts import Machine
from outsize.plan.limits import limit_for, usable_share
from outsize.plan.plan import Fuse, Plan
from outsize.plan.search import Link
from outsize.plan.seen import as_seen
from outsize.plan.step import StepFacts
from outsize.plan.times import Clock, Learnt
from outsize.plan.way import Way
from outsize.plan.ways import choose_recompute
from outsize.planning.own_step import (
    Loss,
    MakeOptimizer,
    OwnStep,
    facts_of,
    own_step,
    peak_as_planned,
    traced,
    unfit_blocks,
)
from outsize.planning.profiled import gain_of_owning, taught_by_steps
from outsize.strategies.blocks import others_hooks
from outsize.strategies.forward import Owned, Within
from outsize.strategies.kernels import made_by_slices
from outsize.units import format_bytes

_NUM_TRIED = 4  # plans of a recorded step that are run
_NUM_ROUNDS = 8  # of plans whose blocks are tried
_MORE = 1.1  # than there is, or was planned: what a step is taken to want that ran out of memory


def within(
    model: nn.Module,
    example: Any,
    budget: str | int | None = None,
    *,
    loss: Loss | None = None,
    optimizer: MakeOptimizer | None = torch.optim.AdamW,
    bf16: bool | None = None,
    profile: bool = False,
    capture: bool = False,
) -> Within:
    """Plan for training steps of `model` on batches like `example`, and return a block to run them in.

        with outsize.within(model, images, budget="16GiB") as fit:
            print("\\n".join(fit.plan.why))
            for images, labels in batches:
                criterion(model(images), labels).backward()

    `example` is a batch: a tensor; a tuple or list, which is spread over the arguments of forward; or a dict, whose
    entries are keywords of forward where it takes them by these names, else the dict is its one argument. `budget` is
    the memory for weights, gradients, optimizer and all that a step holds ("16GiB", or a number of bytes), by default
    what the device has free. `loss(model, example)` is what backward begins at, by default the mean square of all
    outputs, which takes about the memory of cross-entropy; give your own where it takes more. `optimizer` makes one
    of parameters, as `torch.optim.SGD` does; None: its state is not counted. `bf16` says whether steps run under
    autocast, by default whether this call does. A module that cannot be followed on shapes alone runs a real step on
    the example, with everything kept if there is room, and then as planned; `fit.recorded` says why.

    With `profile` some steps are run on the example as a first plan says, and the plan is made again with what they
    taught of times: of operations, and of the host that calls them; weights are put back. Where `loss` is given,
    `fit.step(batch)` is forward, loss and backward in one call. With `capture` it is written into a CUDA graph after a
    few steps and replayed, as long as gradients are set to None before each and shapes stay; plans are then made as if
    calls of the host cost nothing, and `fit.plan.why` says what that gains.
    """
    step = own_step(model, example, loss, optimizer, bf16)
    machine, on_gpu = look_at_machine(step.device), step.device.type == "cuda"
    limit_bytes = _limit_bytes(budget, machine, machine.free_bytes + _own_bytes(model, step.device))
    usable, tried, captures = usable_share(machine), Tried(step), capture and on_gpu
    # the autocast that may be around this is not the step's
    with torch.autocast(step.device.type, enabled=False), reach_as_it_was(model, example):
        asked = _Asked(step, *facts_of(step), tried, _clock(step.device), limit_bytes, usable, captures)
        found = asked.planned()
        if profile and isinstance(found, Plan):
            asked = replace(asked, learnt=taught_by_steps(step, found, asked.facts, asked.clock))
            found = found if asked.learnt is None else asked.planned()
    if isinstance(found, Plan):
        owned = None if loss is None else Owned(loss, step.device, step.autocast, captures)
        gain = (
            ()
            if loss is None
            else (gain_of_owning(asked.known(asked.facts), asked.times, captures=captures),)
        )
        plan = replace(found, why=(*found.why, *gain))
        return Within(model, plan, asked.recorded, tuple(step.calls), owned)
    raise _refusal(found, asked)


def _refusal(found: list[Way], asked: _Asked) -> PlanError:
    usable, limit_bytes = asked.usable, asked.limit_bytes
    least = min(found, key=lambda way: way.peak_bytes)
    return PlanError(
        explain(
            "a step does not fit the budget",
            f"{format_bytes(found[0].peak_bytes)} predicted, and at least {format_bytes(least.peak_bytes)} "
            f"by {least.name}",
            f"at most {format_bytes(usable * limit_bytes)} ({usable:.0%} of the budget)",
            f"raise the budget to {limit_for(least.peak_bytes, usable)}, or take a smaller batch"
            + "".join(f" ({each})" for each in asked.tried.in_words()),
        )
    )


def _clock(device: torch.device) -> Clock:
    rates = machine_rates(device)
    return Clock(rates, tf32=rates.tf32_flops_per_s is not None, overlaps=device.type == "cuda")


@dataclass(frozen=True)
class _Asked:
    """A step that a plan is asked for, and what there is for it."""

    step: OwnStep
    facts: StepFacts
    recorded: str | None  # why facts are those of one real step
    tried: Tried
    clock: Clock
    limit_bytes: int
    usable: float  # share of the limit that tensors may fill
    captures: bool  # the step will be one CUDA graph: calls of the host cost nothing
    learnt: Learnt | None = None

    @property
    def times(self) -> Clock:
        """The clock by all that is known."""
        return self.clock if self.learnt is None else self.clock.taught(self.learnt)

    def known(self, facts: StepFacts) -> StepFacts:
        """Return facts with what is known of their times."""
        return facts if self.learnt is None else as_seen(facts, self.learnt)

    def planned(self) -> Plan | list[Way]:
        """Return the fastest plan that fits, or all ways where none does."""
        budget_bytes = self.usable * self.limit_bytes
        choose = self._chooser(self.facts)
        found = choose(budget_bytes=budget_bytes)
        if self.recorded is not None:
            return _as_it_runs(self.step, found, choose, budget_bytes)
        return found if isinstance(found, Plan) else self._by_slices(found, budget_bytes)

    def _chooser(self, facts: StepFacts, later: tuple[str, ...] = ()) -> Callable[..., Plan | list[Way]]:
        """Return what finds a plan for a budget; a step that is followed on shapes may run blocks again."""

        def again(paths: tuple[str, ...]) -> StepFacts:
            return self.known(traced(self.step, paths, later=later))

        on_gpu, times = self.clock.overlaps, self.times.settings()
        choose = partial(
            choose_recompute,
            self.known(facts),
            limit_bytes=self.limit_bytes,
            blocks_of=again if self.recorded is None else None,
            link=Link.of(self.clock.rates) if on_gpu else None,  # on a CPU all memory is the host's
            host_bytes=host_room_bytes(),
            **(times | ({"host_op_s": 0.0} if self.captures else {})),
        )
        return partial(_tried, self.tried, choose)

    def _by_slices(self, refused: list[Way], budget_bytes: float) -> Plan | list[Way]:
        """Return a plan that makes what is joined and enlarged by slices, where none other fits; or all ways."""
        later = made_by_slices(self.step.model, self.facts)
        if not later:
            return refused
        found = self._chooser(traced(self.step, later=later), later)(budget_bytes=budget_bytes)
        if isinstance(found, Plan):
            fuse = Fuse(later=later)
            return replace(found, fuse=fuse, why=(fuse.why_later, *found.why))
        return [*refused, *(replace(way, name=f"{way.name}, joins by slices") for way in found)]


class Tried:
    """Which blocks do the same when they run again, as far as a plan wanted to know."""

    def __init__(self, step: OwnStep) -> None:
        self._step = step
        self._fit: set[str] = set()
        self.unfit: dict[str, str] = {}
        for path in others_hooks(step.model):
            outer, _, name = path.rpartition(".")
            self.unfit[outer] = f"a hook on '{name}' in it would fire twice"
        self.unfit.pop("", None)  # the model itself is never run again

    def finds(self, paths: Collection[str]) -> bool:
        """Try those that were not yet; say whether any is unfit."""
        new = [path for path in paths if path not in self._fit]
        found = unfit_blocks(self._step, new) if new else {}
        self.unfit |= found
        if not found:
            self._fit.update(new)
        return bool(found)

    def in_words(self) -> tuple[str, ...]:
        """Say why some are not run again."""
        if not self.unfit:
            return ()
        (path, why), *others = self.unfit.items()
        more = f", and {len(others)} more" if others else ""
        return (f"not run again for backward: module '{path}', for {why}{more}",)


def _tried(tried: Tried, choose: Callable[..., Plan | list[Way]], *, budget_bytes: float) -> Plan | list[Way]:
    """Return a plan that runs only such blocks again as do the same; none at all where most do not."""
    for num in range(_NUM_ROUNDS + 1):
        never = {""} if num == _NUM_ROUNDS else tried.unfit
        found = choose(budget_bytes=budget_bytes, never=frozenset(never))
        recompute = found.recompute if isinstance(found, Plan) else None
        if recompute is None or not tried.finds(recompute.blocks):
            break
    return replace(found, why=(*found.why, *tried.in_words())) if isinstance(found, Plan) else found


def _as_it_runs(
    step: OwnStep, found: Plan | list[Way], choose: Callable[..., Plan | list[Way]], budget_bytes: float
) -> Plan | list[Way]:
    """Return the plan of a step that was recorded with the peak that it is seen to have, or a tighter one that fits.

    Where none does, all ways are returned, and none of them as if it took less than the least that was seen.
    """
    aimed_bytes, least_bytes = budget_bytes, math.inf
    for _ in range(_NUM_TRIED):
        if not isinstance(found, Plan):
            break
        if found.recompute is None and found.swap is None:
            return found
        seen_bytes = _seen_bytes(step, found, at_least=budget_bytes)
        if seen_bytes <= budget_bytes:
            return replace(found, peak_bytes=int(seen_bytes))
        least_bytes = min(least_bytes, seen_bytes)
        aimed_bytes *= found.peak_bytes / seen_bytes
        found = choose(budget_bytes=aimed_bytes)
    ways = choose(budget_bytes=0.0) if isinstance(found, Plan) else found
    assert not isinstance(ways, Plan)
    if math.isinf(least_bytes):
        least = min(ways, key=lambda way: way.peak_bytes)
        plan = Plan("train", 1, int(budget_bytes), least.peak_bytes, exact=True, why=(), **least.settings)
        least_bytes = _seen_bytes(step, plan, at_least=budget_bytes)
    return [replace(way, peak_bytes=int(max(way.peak_bytes, least_bytes))) for way in ways]


def _seen_bytes(step: OwnStep, plan: Plan, *, at_least: float) -> float:
    """Run a step as planned and return what it takes; more than it may where memory runs out."""
    try:
        return peak_as_planned(step, plan)
    except RuntimeError as error:
        if not ran_out(error):
            raise
    sweep(step.device)  # when the error is gone, which held the frames of the attempt
    return _MORE * max(at_least, plan.peak_bytes)


def _limit_bytes(budget: str | int | None, machine: Machine, room_bytes: int) -> int:
    if budget is None:
        return room_bytes
    limit_bytes = _asked_bytes(budget)
    if limit_bytes > machine.memory_bytes:
        need, remedy = f"at most {format_bytes(machine.memory_bytes)}", "lower it, or leave it out"
        raise PlanError(
            explain(f"the budget is more than {machine.spoken} has", format_bytes(limit_bytes), need, remedy)
        )
    if limit_bytes > room_bytes:
        need, remedy = f"at most {format_bytes(room_bytes)}", "the plan is for that; free memory for more"
        text = explain(
            f"the budget is more than {machine.spoken} has free", format_bytes(limit_bytes), need, remedy
        )
        warnings.warn(text, stacklevel=3)
    return min(limit_bytes, room_bytes)


class _Budget(BaseModel):
    """A budget in words, which is read as a job's limits are and refused in the same way."""

    budget: Bytes


def _asked_bytes(budget: str | int) -> int:
    if isinstance(budget, str):
        try:
            return _Budget.model_validate({"budget": budget}).budget
        except ValidationError as error:
            raise JobError(mistake(error, _Budget, "outsize.within")) from None
    if type(budget) is not int or budget <= 0:
        needed = 'a whole number of bytes, more than 0, or e.g. "16GiB"'
        raise JobError(explain("the budget is no size", repr(budget), needed, "correct it"))
    return budget


def _own_bytes(model: nn.Module, device: torch.device) -> int:
    """Return what is not free because this process has it, weights that a plan counts among it."""
    if device.type == "cuda":
        return torch.cuda.memory_reserved(device)
    return sum(each.nbytes for each in (*model.parameters(), *model.buffers()))
