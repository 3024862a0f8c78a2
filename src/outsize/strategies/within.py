"""`outsize.within`: makes the training steps of any module fit a budget, and leaves them as they are written."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from types import TracebackType
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
from outsize.plan.ladder import choose_recompute
from outsize.plan.plan import Plan, Recompute
from outsize.plan.step import StepFacts, Storage
from outsize.plan.timeline import Link
from outsize.plan.times import Clock
from outsize.strategies.blocks import checkpointed
from outsize.strategies.recompute import unmet_by, waits_of
from outsize.strategies.saved import SavedTensors
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
    limit_bytes = machine.free_bytes if budget is None else parse_bytes(budget)
    if limit_bytes > machine.memory_bytes:
        need, remedy = f"at most {format_bytes(machine.memory_bytes)}", "lower it, or leave it out"
        raise PlanError(
            explain(f"the budget is more than {machine.name} has", format_bytes(limit_bytes), need, remedy)
        )
    limit_bytes = min(limit_bytes, machine.free_bytes)
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


class Within:
    """A block in which every call of the model runs as the plan says; outside of it, the model is as it was."""

    def __init__(self, model: nn.Module, plan: Plan, recorded: str | None) -> None:
        self.plan = plan
        self.recorded = recorded  # why facts are those of one real step; None: they were followed on shapes
        self._model = model
        self._told = False
        self._block = ExitStack()
        self._call = ExitStack()

    def __enter__(self) -> Within:
        if self.plan.recompute is None and self.plan.swap is None:
            return self
        recompute, swap = self.plan.recompute or Recompute(), self.plan.swap
        self._block.enter_context(checkpointed(self._model, recompute.blocks))
        keys, dear = frozenset(recompute.saved), frozenset(recompute.dear)
        saved = SavedTensors(self._model, keys, swap, dear=dear, waits=waits_of(recompute))
        self._block.enter_context(saved)
        self._block.callback(saved.close)

        def begin(_: nn.Module, __: Any) -> None:
            self._call.close()
            self._call.enter_context(saved.forward())

        def end(_: nn.Module, __: Any, ___: Any) -> None:
            self._call.close()
            if not self._told and saved.stats is not None:
                self._told = True
                for text in unmet_by(saved, recompute, swap):
                    warnings.warn(text, stacklevel=2)

        # outside of the hooks that tell which module runs, which were set before
        self._block.callback(self._model.register_forward_pre_hook(begin, prepend=True).remove)
        self._block.callback(self._model.register_forward_hook(end, always_call=True).remove)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._call.close()
        self._block.close()


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
    buffers = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]
    training = [(module, module.training) for module in model.modules()]
    for parameter, _ in gradients:
        parameter.grad = None
    model.train()
    try:
        with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
            yield
    finally:
        for parameter, gradient in gradients:
            parameter.grad = gradient
        with torch.no_grad():
            for buffer, before in buffers:
                buffer.copy_(before)
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
