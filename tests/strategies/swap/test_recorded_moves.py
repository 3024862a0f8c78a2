"""Moves in a recorded step keep the rules of CUDA's capture, played by marks that know whether they were recorded.

in a recording   wait only for what it holds itself; all copies are joined at its end
outside          wait for nothing that was recorded
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.strategies.small import SHAPE, make_batch, op_s, terms
from torch import Tensor, nn

from outsize.data.batch import Batch
from outsize.measure.tracing.step import trace_step
from outsize.models import build_model
from outsize.plan.cost import StepCost
from outsize.plan.memory.recompute import find_recipes
from outsize.plan.plan import Plan
from outsize.plan.search.mixture import mix
from outsize.plan.search.timeline import Link
from outsize.strategies.compose import Terms, compose
from outsize.strategies.cudagraph import capture as graphed
from outsize.strategies.cudagraph.capture import Beside, Recordings
from outsize.strategies.step import Step
from outsize.strategies.swap import move
from outsize.strategies.swap.streams import Copy, Mark, ThreadStreams, Way

PLAIN = Plan("train", 2, limit_bytes=1, peak_bytes=1, exact=True, why=())
NUM_STEPS = 10


class Capture:
    """Whether a recording runs, and whether something in it was not permitted."""

    is_on = False
    is_invalid = False

    @classmethod
    def check(cls, mark: Any) -> None:
        if cls.is_on and cls.is_invalid:
            raise RuntimeError("capture invalidated")
        if cls.is_on and not mark.recorded:
            raise RuntimeError("isolation: a recording waits for what it does not hold")
        if not cls.is_on and mark.recorded:
            raise RuntimeError("captured event: it is waited for outside of its recording")


class _Marked:
    def __init__(self, mark: Mark) -> None:
        self.mark, self.recorded = mark, Capture.is_on

    def query(self) -> bool:
        return self.mark.query()

    def synchronize(self) -> None:
        self.mark.synchronize()

    def elapsed_time(self, end_event: Any) -> float:
        return self.mark.elapsed_time(end_event.mark)


class _Strict(ThreadStreams):
    def now(self) -> Mark:
        return _Marked(super().now())

    def copy(self, way: Way, target: Tensor, source: Tensor, after: Sequence[Any], *, timed: bool) -> Copy:
        assert not (timed and Capture.is_on)
        for mark in after:
            Capture.check(mark)
        copy = super().copy(way, target, source, [each.mark for each in after], timed=timed)
        return Copy(None if copy.begin is None else _Marked(copy.begin), _Marked(copy.end))

    def wait(self, mark: Any, *, timed: bool) -> tuple[Mark, Mark] | None:
        Capture.check(mark)
        pair = super().wait(mark.mark, timed=timed)
        return None if pair is None else (_Marked(pair[0]), _Marked(pair[1]))


class _Recording:
    """Stands for a recording: it ran when it was made, and its gradients are handed out by each replay."""

    def __init__(self, model: nn.Module, terms: Terms) -> None:
        self._gradients = [(each, each.grad) for each in model.parameters() if each.grad is not None]
        self.terms = terms

    def finish(self) -> None:
        pass

    def replay(self, _: Batch) -> Terms:
        for parameter, gradient in self._gradients:
            parameter.grad = gradient
        return self.terms


def _record(step: Step, model: nn.Module, batch: Batch, beside: Beside | None, *, paged: bool) -> _Recording:
    assert beside is not None
    assert not paged
    with graphed._alone(beside):
        Capture.is_on = True
        try:
            terms = step(batch, last=True)
            beside.end_recorded()
        finally:
            Capture.is_on = Capture.is_invalid = False
    found = _Recording(model, terms)
    model.zero_grad(set_to_none=True)
    return found


@pytest.fixture(autouse=True)
def _captures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(move, "open_streams", lambda _: _Strict())
    monkeypatch.setattr(graphed, "_record", _record)
    monkeypatch.setattr(graphed, "_is_on_gpu", lambda _: True)


def _model_and_plan(*, recompute: bool) -> tuple[nn.Module, Plan]:
    torch.manual_seed(0)
    model = build_model("unet", num_classes=3, in_channels=3, levels=3, width=8).train()
    cost = StepCost(trace_step(model, SHAPE, loss=lambda net, x: net(x).square().sum(), device="cpu"))
    lasting_bytes = sum(each.size_bytes for each in cost.facts.storages if each.born < 0)
    budget_bytes = lasting_bytes + 0.5 * (cost.peak_bytes() - lasting_bytes)
    recipes = find_recipes(cost, op_s) if recompute else []
    found = mix(cost, recipes, op_s, Link(1e13, 1e13, 0.0), budget_bytes, least_bytes=1024)
    assert found.swap is not None
    return model, replace(PLAIN, swap=found.swap, recompute=found.as_recompute(), graph=True)


@pytest.mark.parametrize("recompute", [False, True], ids=["moved", "mixed"])
def test_recorded_replayed_let_go_and_recorded_anew(recompute: bool) -> None:
    model, plan = _model_and_plan(recompute=recompute)
    told: list[str] = []
    recordings = Recordings()
    step = compose(model, terms, plan, bf16=False, tell=told.append, recordings=recordings)
    expected = None
    for number in range(NUM_STEPS):
        model.zero_grad(set_to_none=True)
        step(make_batch(), last=True)
        gradients = [each.grad.clone() for each in model.parameters() if each.grad is not None]
        expected = gradients if expected is None else expected
        assert all(torch.equal(one, other) for one, other in zip(gradients, expected, strict=True))
        if number in (5, 7):
            recordings.let_go()
    assert told == []


@pytest.mark.parametrize("invalidates", [False, True], ids=["no memory", "not permitted"])
@pytest.mark.parametrize("where", ["forward", "backward"])
def test_a_recording_that_fails_is_told_and_steps_go_on(where: str, invalidates: bool) -> None:
    model, plan = _model_and_plan(recompute=False)

    def fail(*_: object) -> None:
        if Capture.is_on:
            Capture.is_invalid = invalidates
            raise RuntimeError("no")

    if where == "forward":
        list(model.modules())[-1].register_forward_hook(fail)
    else:
        list(model.parameters())[4].register_hook(fail)
    told: list[str] = []
    step = compose(model, terms, plan, bf16=False, tell=told.append)
    for _ in range(NUM_STEPS):
        model.zero_grad(set_to_none=True)
        step(make_batch(), last=True)
    assert len(told) == 1  # and nothing of a pool that is full
    assert told[0].endswith("cannot be recorded as one CUDA graph: no")
