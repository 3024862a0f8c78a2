"""Predicts the steps of plan_error.py from shapes alone."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import torch
from plan_error_measured import ADAMW, BANDS, LOSS, Case, Parts
from torch import Tensor, nn

from outsize.measure.tracing.step import trace_step
from outsize.plan.cost import NOTHING, Changed, StepCost
from outsize.plan.memory.recompute import find_recipes
from outsize.plan.plan import Fuse, Recompute
from outsize.plan.search.mixture import mix
from outsize.plan.search.timeline import Link
from outsize.plan.seen import paced
from outsize.plan.step import StepFacts, StepOp
from outsize.plan.times import (
    CHECKPOINTED_CALLS,
    MOVED_CALLS,
    REMADE_CALLS,
    Clock,
    Learnt,
    host_calls,
    together,
)
from outsize.plan.ways.blocks import list_blocks
from outsize.strategies.blocks.checkpointing import checkpointed
from outsize.strategies.kernels.layers import fused_layers, fusible
from outsize.tasks.segment.terms import loss_on_shapes

# Share of what a step holds besides weights and optimizer that these ways may take.
SHARES = {"recompute": 0.6, "swap": 0.45}


@dataclass(frozen=True)
class Way:
    """One way to run a case: settings of the plan, its predicted memory, and every operation that it runs."""

    name: str
    settings: dict[str, Any]  # of a Plan: recompute, and whatever else one may have
    predicted: Parts
    ops: tuple[StepOp, ...]
    again: tuple[StepOp, ...] = ()  # run a second time, to make what was not kept
    by_recipes: bool = False  # those: one by one, with what norms found out kept
    stall_s: float = 0.0  # waiting for copies
    num_calls: float = 0.0  # that the host spends besides operations
    recorded: bool = False  # as one CUDA graph: the host spends nothing
    time_share: float = 1.0  # of the device's; below 1 where compiled code is faster
    host_s: float | None = None  # as it was seen of the step that was tried
    learnt: Learnt | None = None  # of the step that was tried for this prediction, where one was

    def seconds(self, clock: Clock) -> float:
        """Return the predicted time."""
        again_s = clock.again_s if self.by_recipes else clock.op_s
        device_s = sum(map(clock.op_s, self.ops)) + sum(map(again_s, self.again)) + self.stall_s
        num_calls = self.num_calls + sum(map(host_calls, (*self.ops, *self.again)))
        host_s = 0.0 if self.recorded else num_calls * clock.rates.host_op_s
        if self.host_s is not None:
            host_s = self.host_s
        return together(self.time_share * device_s, host_s, overlaps=clock.overlaps)

    def as_seen(self, learnt: Learnt) -> Way:
        """Return the way whose operations take as long as those of a real step did, for what shapes tell of them."""
        ops = paced(self.ops, learnt.paces)
        by_index = {op.index: op for op in ops}
        return replace(self, ops=ops, again=tuple(by_index[op.index] for op in self.again))


@dataclass(frozen=True)
class Clocks:
    """What predicts times before a step is run."""

    catalogue: Clock
    rates: Clock

    def of(self, case: Case) -> dict[str, Clock]:
        both = {"catalogue": self.catalogue, "rates": self.rates}
        return {name: replace(clock, training=case.training) for name, clock in both.items()}


def predict(model: nn.Module, case: Case, *, clock: Clock, device: torch.device) -> list[Way]:
    """Predict a case as it is, with tensors recomputed, with blocks run again, and on a GPU with tensors moved."""
    fuse = fuse_of(model, case, device)
    cost = traced(model, case, device, fuse)
    if not case.training:
        return [Way("predict", {}, parts_of(cost, NOTHING), cost.facts.ops)]
    base = {"fuse": fuse}
    ways = [
        Way("plain", base, parts_of(cost, NOTHING), cost.facts.ops),
        _mixed("recompute", cost, clock, base),
    ]
    sets = list_blocks(cost, clock.op_s)
    if sets:
        blocks = min(sets, key=lambda each: cost.peak_bytes(each.changed))
        inside = tuple(f"{path}." for path in blocks.paths)
        # as the planner does: chosen by an estimate, then followed once more as it will run
        rerun = traced(model, case, device, fuse, blocks.paths)
        kept = sum(f"{each.key[0]}.".startswith(inside) for each in cost.facts.saved)
        settings = {**base, "recompute": Recompute(blocks=blocks.paths)}
        parts, num_calls = parts_of(rerun, NOTHING), CHECKPOINTED_CALLS * kept
        ways.append(Way("blocks", settings, parts, rerun.facts.ops, num_calls=num_calls))
    if device.type == "cuda":
        ways.append(_mixed("swap", cost, clock, base, Link.of(clock.rates)))
    # as a training runs them there, where the host is not faster
    return [replace(way, recorded=device.type == "cuda") for way in ways]


def _mixed(
    name: str, cost: StepCost, clock: Clock, settings: dict[str, Any], link: Link | None = None
) -> Way:
    """Predict a step that is given a share of what it would hold: by what is recomputed, and what is moved."""
    resident_bytes = cost.lasting_bytes
    budget_bytes = resident_bytes + SHARES[name] * (cost.peak_bytes() - resident_bytes)
    found = mix(cost, find_recipes(cost, clock.again_s), clock.op_s, link, budget_bytes)
    num_moved = 0 if found.swap is None else len(found.swap.moved)
    return Way(
        name,
        {**settings, "recompute": found.as_recompute(), "swap": found.swap},
        parts_of(cost, found.changed),
        cost.facts.ops,
        again=tuple(op for recipe in found.recipes for op in recipe.ops),
        by_recipes=True,
        stall_s=found.stall_s,
        num_calls=REMADE_CALLS * len(found.recipes) + MOVED_CALLS * num_moved,
    )


def fuse_of(model: nn.Module, case: Case, device: torch.device) -> Fuse | None:
    """Return the layers that a training on a GPU fuses, as the planner finds them."""
    if device.type != "cuda" or not case.training:
        return None
    return fusible(model, traced(model, case, device, None).facts)


def traced(
    model: nn.Module, case: Case, device: torch.device, fuse: Fuse | None, blocks: tuple[str, ...] = ()
) -> StepCost:
    kind: Literal["cuda", "cpu"] = "cuda" if device.type == "cuda" else "cpu"

    def loss(model: nn.Module, images: Tensor) -> Tensor:
        with checkpointed(model, blocks):
            return loss_on_shapes(LOSS)(model, images)

    return StepCost(
        trace_step(
            model,
            (case.batch, BANDS, case.side_px, case.side_px),
            loss=loss if case.training else None,
            optimizer=partial(ADAMW, on_gpu=kind == "cuda"),
            bf16=case.bf16,
            device=kind,
            around=None if fuse is None else lambda twin: fused_layers(twin, fuse)(),
        )
    )


def facts_of(model: nn.Module, case: Case, *, device: torch.device) -> StepFacts:
    """Follow a case as it is, without fused layers: compiled blocks fuse theirs themselves."""
    return traced(model, case, device, None).facts


def parts_of(cost: StepCost, changed: Changed) -> Parts:
    live_bytes = cost.live_bytes(changed)
    at = max(range(len(live_bytes)), key=live_bytes.__getitem__)
    resident_bytes = cost.lasting_bytes
    turn_bytes = live_bytes[cost.turn - 1] if cost.facts.training else resident_bytes
    return Parts(live_bytes[at], resident_bytes, turn_bytes, f"at {cost.facts.ops[at].kind}")
