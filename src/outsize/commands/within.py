"""`outsize.within`: plans the training steps of any module for a budget, and returns the block to run them in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from outsize.errors import PlanError, TraceError, explain
from outsize.measure.bandwidth import machine_rates
from outsize.measure.host import host_room_bytes
from outsize.measure.machine import look_at_machine
from outsize.measure.record import record
from outsize.measure.step import state_bytes, trace_step
from outsize.plan.choose import usable_share
from outsize.plan.facts import Machine
from outsize.plan.ladder import choose_recompute
from outsize.plan.plan import Plan
from outsize.plan.step import StepFacts, Storage
from outsize.plan.timeline import Link
from outsize.plan.times import Clock
from outsize.strategies.before import Before
from outsize.strategies.blocks import checkpointed
from outsize.strategies.within import Within
from outsize.units import format_bytes, parse_bytes

Loss = Callable[[nn.Module, Any], Tensor]


def within(
    model: nn.Module,
    example: Any,
    budget: str | int | None = None,
    *,
    loss: Loss | None = None,
    optimizer: Callable[[Any], torch.optim.Optimizer] | None = torch.optim.AdamW,
    bf16: bool = False,
) -> Within:
    """Plan for training steps of `model` on batches like `example`, and return a block to run them in.

        with outsize.within(model, images, budget="16GiB") as fit:
            print("\\n".join(fit.plan.why))
            for images, labels in batches:
                criterion(model(images), labels).backward()

    `budget` is the memory for weights, gradients, optimizer and all that a step holds, by default what the device has
    free. `loss` is what backward begins at, by default the sum of all outputs. A module that cannot be followed on
    shapes alone runs one real step on the example, with everything kept; `fit.recorded` then says why.
    """
    device = next((each.device for each in model.parameters()), torch.device("cpu"))
    machine = look_at_machine(device)
    limit_bytes = _limit_bytes(budget, machine, machine.free_bytes + _own_bytes(model, device))
    facts, recorded = _facts(model, example, loss or _sum_of_outputs, optimizer, bf16=bf16)
    usable = usable_share(machine)
    budget_bytes = usable * limit_bytes
    rates = machine_rates(device)
    clock = Clock(rates, tf32=rates.tf32_flops_per_s is not None, overlaps=device.type == "cuda")

    def blocks_of(paths: tuple[str, ...]) -> StepFacts:
        again = _with_blocks(loss or _sum_of_outputs, paths)
        return _traced(model, example, again, optimizer, bf16=bf16)

    found = choose_recompute(
        facts,
        limit_bytes=limit_bytes,
        budget_bytes=budget_bytes,
        blocks_of=blocks_of if recorded is None else None,
        link=Link.of(rates) if device.type == "cuda" else None,  # on a CPU all memory is the host's
        host_bytes=host_room_bytes(),
        **clock.settings(),
    )
    if isinstance(found, Plan):
        return Within(model, found, recorded)
    least = min(found, key=lambda way: way.peak_bytes)
    raise PlanError(
        explain(
            "a step does not fit the budget",
            f"{format_bytes(found[0].peak_bytes)} predicted, and at least {format_bytes(least.peak_bytes)} "
            f"by {least.name}",
            f"at most {format_bytes(budget_bytes)} ({usable:.0%} of the budget)",
            "raise the budget, or take a smaller batch",
        )
    )


def _limit_bytes(budget: str | int | None, machine: Machine, room_bytes: int) -> int:
    limit_bytes = room_bytes if budget is None else parse_bytes(budget)
    if limit_bytes > machine.memory_bytes:
        need, remedy = f"at most {format_bytes(machine.memory_bytes)}", "lower it, or leave it out"
        raise PlanError(
            explain(f"the budget is more than {machine.name} has", format_bytes(limit_bytes), need, remedy)
        )
    return min(limit_bytes, room_bytes)


def _own_bytes(model: nn.Module, device: torch.device) -> int:
    """Return what is not free because this process has it, weights that a plan counts among it."""
    if device.type == "cuda":
        return torch.cuda.memory_reserved(device)
    return sum(each.nbytes for each in (*model.parameters(), *model.buffers()))


def _facts(
    model: nn.Module,
    example: Any,
    loss: Loss,
    optimizer: Callable[[Any], torch.optim.Optimizer] | None,
    *,
    bf16: bool,
) -> tuple[StepFacts, str | None]:
    if isinstance(example, Tensor):
        try:
            return _traced(model, example, loss, optimizer, bf16=bf16), None
        except TraceError as error:
            reason = str(error)
    else:
        reason = f"the example is a {type(example).__name__} and no tensor"

    def step() -> None:
        with torch.autocast(_device_type(example), torch.bfloat16, enabled=bf16):
            value = loss(model, example)
        value.backward()

    given = [leaf for leaf in tree_leaves(example) if isinstance(leaf, Tensor)]
    with _left_as_it_was(model):
        facts = record(step, model, given=given)
    if optimizer is None:
        return facts, reason
    kept = Storage(len(facts.storages), state_bytes(model, optimizer), -1, len(facts.ops), "optimizer")
    return replace(facts, storages=(*facts.storages, kept)), reason


def _traced(
    model: nn.Module,
    example: Tensor,
    loss: Loss,
    optimizer: Callable[[Any], torch.optim.Optimizer] | None,
    *,
    bf16: bool,
) -> StepFacts:
    device: Literal["cuda", "cpu"] = "cuda" if example.device.type == "cuda" else "cpu"
    return trace_step(model, tuple(example.shape), loss=loss, optimizer=optimizer, bf16=bf16, device=device)


def _with_blocks(loss: Loss, paths: tuple[str, ...]) -> Loss:
    def again(model: nn.Module, example: Any) -> Tensor:
        with checkpointed(model, paths):
            return loss(model, example)

    return again


@contextmanager
def _left_as_it_was(model: nn.Module) -> Iterator[None]:
    """Take back what one step does to a model: gradients, running statistics, random numbers."""
    gradients = [(parameter, parameter.grad) for parameter in model.parameters()]
    training = [(module, module.training) for module in model.modules()]
    for parameter, _ in gradients:
        parameter.grad = None
    before = Before(model)
    before.take()
    model.train()
    try:
        yield
    finally:
        before.give_back()
        for parameter, gradient in gradients:
            parameter.grad = gradient
        for module, was in training:
            module.training = was


def _sum_of_outputs(model: nn.Module, example: Any) -> Tensor:
    output = model(*example) if isinstance(example, tuple) else model(example)
    found = [
        each.float().sum() for each in tree_leaves(output) if isinstance(each, Tensor) and each.requires_grad
    ]
    return torch.stack(found).sum()


def _device_type(example: Any) -> str:
    tensors = [leaf for leaf in tree_leaves(example) if isinstance(leaf, Tensor)]
    return tensors[0].device.type if tensors else "cpu"
