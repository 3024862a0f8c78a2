"""Predicts the steps of plan_error.py from shapes alone, or compiled ones from a smaller step."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from plan_error_compiled import try_compiled
from plan_error_measured import ADAMW, BANDS, LOSS, Case, Parts
from torch import Tensor, nn

from outsize.measure.step import trace_step
from outsize.plan.blocks import list_blocks
from outsize.plan.cost import NOTHING, Changed, StepCost
from outsize.plan.plan import Recompute
from outsize.plan.recompute import changed_by, choose_recipes, find_recipes
from outsize.plan.step import StepOp
from outsize.plan.times import CHECKPOINTED_CALLS, REMADE_CALLS, Clock, host_calls, together
from outsize.strategies.blocks import checkpointed
from outsize.tasks.segment import loss_on_shapes


@dataclass(frozen=True)
class Way:
    """One way to run a case: settings of the plan, its predicted memory, and every operation that it runs."""

    name: str
    settings: dict[str, Any]  # of a Plan: recompute, and whatever else one may have
    predicted: Parts
    ops: tuple[StepOp, ...]
    again: tuple[StepOp, ...] = ()  # run a second time, to make what was not kept
    by_recipes: bool = False  # those: one by one, with what norms found out kept
    num_calls: float = 0.0  # that the host spends besides operations
    time_share: float = 1.0  # of all that; below 1 where compiled code is faster

    def seconds(self, clock: Clock) -> float:
        """Return the predicted time."""
        again_s = clock.again_s if self.by_recipes else clock.op_s
        device_s = sum(map(clock.op_s, self.ops)) + sum(map(again_s, self.again))
        num_calls = self.num_calls + sum(map(host_calls, (*self.ops, *self.again)))
        plain_s = together(device_s, num_calls * clock.rates.host_op_s, overlaps=clock.overlaps)
        return self.time_share * plain_s


@dataclass(frozen=True)
class Clocks:
    """What predicts times before a step is run."""

    catalogue: Clock
    rates: Clock

    def of(self, case: Case) -> dict[str, Clock]:
        both = {"catalogue": self.catalogue, "rates": self.rates}
        return {name: replace(clock, training=case.training) for name, clock in both.items()}


def predict_compiled(model: nn.Module, case: Case, *, device: torch.device) -> list[Way]:
    cost = _traced(model, case, device)
    num_px = case.batch * case.side_px**2
    ways = []
    for name, each in try_compiled(model, case, cost.facts, device).items():
        parts = _parts(StepCost(each.facts(cost.facts, num_px)), NOTHING)
        share = each.time_share
        ways.append(Way(name, {"compile": each.setting}, parts, cost.facts.ops, time_share=share))
    return ways


def _traced(model: nn.Module, case: Case, device: torch.device) -> StepCost:
    kind: Literal["cuda", "cpu"] = "cuda" if device.type == "cuda" else "cpu"
    shape = (case.batch, BANDS, case.side_px, case.side_px)
    loss = loss_on_shapes(LOSS) if case.training else None
    return StepCost(trace_step(model, shape, loss=loss, optimizer=ADAMW, bf16=case.bf16, device=kind))


def predict(model: nn.Module, case: Case, *, clocks: Clocks, device: torch.device) -> list[Way]:
    kind: Literal["cuda", "cpu"] = "cuda" if device.type == "cuda" else "cpu"
    shape = (case.batch, BANDS, case.side_px, case.side_px)
    cost = _traced(model, case, device)
    facts, clock = cost.facts, clocks.catalogue
    if not case.training:
        return [Way("predict", {}, _parts(cost, NOTHING), facts.ops)]
    recipes = choose_recipes(cost, find_recipes(cost, clock.again_s), 0)
    keys = tuple(key for recipe in recipes for key in recipe.keys)
    ways = [
        Way("plain", {}, _parts(cost, NOTHING), facts.ops),
        Way(
            "recompute",
            {"recompute": Recompute(saved=keys)},
            _parts(cost, changed_by(recipes)),
            facts.ops,
            again=tuple(op for recipe in recipes for op in recipe.ops),
            by_recipes=True,
            num_calls=REMADE_CALLS * len(recipes),
        ),
    ]
    sets = list_blocks(cost, clock.op_s)
    if sets:
        blocks = min(sets, key=lambda each: cost.peak_bytes(each.changed))
        inside = tuple(f"{path}." for path in blocks.paths)

        def again(model: nn.Module, images: Tensor) -> Tensor:
            with checkpointed(model, blocks.paths):
                return loss_on_shapes(LOSS)(model, images)

        # as the planner does: chosen by an estimate, then followed once more as it will run
        rerun = trace_step(model, shape, loss=again, optimizer=ADAMW, bf16=case.bf16, device=kind)
        ways.append(
            Way(
                "blocks",
                {"recompute": Recompute(blocks=blocks.paths)},
                _parts(StepCost(rerun), NOTHING),
                rerun.ops,
                num_calls=CHECKPOINTED_CALLS
                * sum(f"{each.key[0]}.".startswith(inside) for each in facts.saved),
            )
        )
    return ways


def _parts(cost: StepCost, changed: Changed) -> Parts:
    live_bytes = cost.live_bytes(changed)
    at = max(range(len(live_bytes)), key=live_bytes.__getitem__)
    resident_bytes = sum(each.size_bytes for each in cost.facts.storages if each.born < 0)
    turn_bytes = live_bytes[cost.turn - 1] if cost.facts.training else resident_bytes
    return Parts(live_bytes[at], resident_bytes, turn_bytes, f"at {cost.facts.ops[at].kind}")
