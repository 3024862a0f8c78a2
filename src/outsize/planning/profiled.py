"""What real steps of a caller's own teach, run as a plan says; and what it gains to own all of a step."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch.utils._pytree import tree_map

from outsize.errors import TraceError
from outsize.measure.learning import look_at, taught_by
from outsize.measure.memory import ran_out, sweep
from outsize.measure.state import left_as_it_was
from outsize.plan.cost import StepCost
from outsize.plan.memory import find_recipes
from outsize.plan.plan import Plan, Recompute
from outsize.plan.step import StepFacts, StepOp
from outsize.plan.times import Clock, Learnt, host_calls
from outsize.planning.own_step import OwnStep, traced
from outsize.strategies.forward import Within
from outsize.units import format_seconds


def taught_by_steps(step: OwnStep, plan: Plan, facts: StepFacts, clock: Clock) -> Learnt | None:
    """Run some steps on the example as planned, and return what they teach of times; None where there is no room.

    As planned, because the plain step may not fit.
    """
    try:
        with left_as_it_was(step.model, step.example), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # which come again when the caller's own steps run
            with Within(step.model, plan, None, tuple(step.calls)):
                seen = look_at(_runner(step), step.device)
    except RuntimeError as error:
        if not ran_out(error):
            raise
    else:
        return taught_by(seen, [*_ops_as_planned(step, plan, facts, clock)], clock, batch=1, side_px=1)
    sweep(step.device)  # when the error is gone, which held the frames of the attempt
    return None


def _runner(step: OwnStep) -> Callable[[], None]:
    """Return what runs a whole step on the example, with the optimizer where there is one."""
    trained = [each for each in step.model.parameters() if each.requires_grad]
    optimizer = None if step.optimizer is None else step.optimizer(trained)

    def run() -> None:
        with torch.autocast(step.device.type, step.autocast, enabled=step.autocast is not None):
            # in containers of its own: a loss may take from them
            value = step.value(step.model, tree_map(lambda leaf: leaf, step.example))
        value.backward()
        if optimizer is not None:
            optimizer.step()
        step.model.zero_grad(set_to_none=True)

    return run


def _ops_as_planned(step: OwnStep, plan: Plan, facts: StepFacts, clock: Clock) -> Iterator[StepOp]:
    """Yield the operations of a step that runs as planned."""
    again = plan.recompute or Recompute()
    try:
        yield from (traced(step, again.blocks) if again.blocks else facts).ops
    except TraceError:  # as of a step that was recorded
        yield from facts.ops
    wanted = set(again.saved)
    for recipe in find_recipes(StepCost(facts), clock.again_s):
        if wanted.issuperset(recipe.keys):
            wanted -= set(recipe.keys)  # once, by the first that makes it
            yield from (replace(op, backward=True) for op in recipe.ops)


def gain_of_owning(facts: StepFacts, clock: Clock, *, captures: bool) -> str:
    """Say what fit.step gains over a loop that calls the model, the loss and backward itself, of the plain step."""
    num_calls = sum(1 for op in facts.ops if op.moved_bytes)
    host_s = clock.rates.host_op_s * sum(map(host_calls, facts.ops))
    device_s = sum(map(clock.op_s, facts.ops))
    calls = f"{num_calls} operations that the host calls in {format_seconds(host_s)}"
    kernels = f"their kernels take {format_seconds(device_s)}"
    if captures:
        return f"fit.step(batch) is one CUDA graph after a few steps, in place of {calls}; {kernels}"
    if not clock.overlaps:
        return f"fit.step(batch) gains nothing on a CPU but one call in place of three ({calls})"
    gains = "would be hidden" if host_s <= device_s else f"would save {format_seconds(host_s - device_s)}"
    return f"fit.step(batch) is called kernel by kernel: {calls}; {kernels}; with capture=True these calls {gains}"
