"""fit.step: forward, loss and backward in one call, as planned; and plans that go by steps that were run."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import outsize
from outsize.data.batch import Batch
from outsize.errors import PlanError
from outsize.measure.memory import LiveBytes
from outsize.plan.cost import StepCost
from outsize.planning.own_step import own_step, traced
from outsize.strategies.forward import owned


def _model() -> nn.Module:
    torch.manual_seed(0)
    parts: list[nn.Module] = [nn.Conv2d(3, 16, 3, padding=1)]
    for _ in range(6):
        parts.append(nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16), nn.GELU()))
    return nn.Sequential(*parts, nn.Conv2d(16, 4, 1))


def _batch(seed: int = 1, num: int = 4) -> dict[str, Any]:
    torch.manual_seed(seed)
    return {
        "images": torch.randn(num, 3, 64, 64),
        "labels": torch.randint(4, (num, 64, 64)),
        "note": "as it is",
    }


def _loss(model: nn.Module, batch: dict[str, Any]) -> Tensor:
    return F.cross_entropy(model(batch["images"]), batch["labels"])


def _half(model: nn.Module) -> int:
    cost = StepCost(traced(own_step(model, _batch(), _loss, torch.optim.SGD, None)))
    return int((cost.lasting_bytes + 0.5 * (cost.peak_bytes() - cost.lasting_bytes)) / 0.95)


def test_steps_that_are_owned_are_the_loops_own() -> None:
    plain = _model()
    ours = copy.deepcopy(plain)
    budget_bytes = _half(ours)
    fit = outsize.within(ours, _batch(), budget_bytes, loss=_loss, optimizer=torch.optim.SGD)
    assert fit.plan.recompute is not None
    assert "fit.step(batch) gains nothing on a CPU" in fit.plan.why[-1]
    trained = [torch.optim.SGD(each.parameters(), lr=0.1) for each in (plain, ours)]
    for number in range(3):
        first, second = _batch(number), _batch(10 + number)
        expected = [_loss(plain, first), _loss(plain, second)]
        (0.25 * expected[0] + 0.75 * expected[1]).backward()
        with fit, LiveBytes() as live:
            found = [fit.step(first, weight=0.25), fit.step(second, weight=0.75)]
        assert live.peak_bytes <= fit.plan.peak_bytes
        assert [float(each) for each in found] == pytest.approx([each.item() for each in expected], rel=1e-6)
        for one, other in zip(plain.parameters(), ours.parameters(), strict=True):
            assert one.grad is not None
            assert other.grad is not None
            torch.testing.assert_close(other.grad, one.grad, rtol=1e-5, atol=1e-7)
        for each in trained:
            each.step()
            each.zero_grad()


def test_a_step_needs_a_loss_and_the_block() -> None:
    model = _model()
    with (
        outsize.within(model, _batch()["images"], "1GiB") as fit,
        pytest.raises(PlanError, match="without a loss"),
    ):
        fit.step(_batch())
    with pytest.raises(PlanError, match="outside of the block"):
        outsize.within(model, _batch(), "1GiB", loss=_loss).step(_batch())


def test_steps_that_are_run_teach_times_and_leave_no_trace() -> None:
    model = _model()
    before = copy.deepcopy(model.state_dict())
    budget_bytes = _half(model)
    guessed = outsize.within(model, _batch(), budget_bytes, loss=_loss).plan
    fit = outsize.within(model, _batch(), budget_bytes, loss=_loss, profile=True)
    assert fit.plan.step_s != guessed.step_s
    assert fit.plan.peak_bytes <= budget_bytes
    assert all(torch.equal(each, before[name]) for name, each in model.state_dict().items())
    assert all(each.grad is None for each in model.parameters())


def test_what_is_captured_is_given_as_one_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []

    def graphed(step: Callable[..., Any], *_: Any, **__: Any) -> Callable[..., Any]:
        def run(batch: Batch, *, last: bool) -> Any:
            given.append(batch)
            return step(batch.each(torch.clone), last=last)

        return run

    monkeypatch.setattr(owned, "graphed", graphed)
    model = _model()
    run = owned.Owned(_loss, torch.device("cpu"), captures=True).prepared(model, print, None)
    expected = _loss(copy.deepcopy(model), _batch())
    assert float(run(_batch(), 1.0)) == pytest.approx(expected.item())
    assert [each.shape for each in given[0].tensors()] == [(4, 3, 64, 64), (4, 64, 64)]
    assert float(run(_batch(), 0.5)) == pytest.approx(expected.item(), rel=1e-3)
    assert len(given) == 1  # one of several runs kernel by kernel
    run({**_batch(), "note": "another"}, 1.0)
    assert tuple(given[0].totals) != tuple(given[1].totals)  # which tells captures apart
