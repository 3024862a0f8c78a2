"""Any module, made to fit a budget by one line, with the answer unchanged."""

from __future__ import annotations

import copy
import importlib
import re
import warnings
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import outsize
from outsize.errors import JobError, PlanError
from outsize.measure.machine import look_at_machine
from outsize.measure.tracing.step import trace_step
from outsize.models import build_model
from outsize.plan.cost import StepCost
from outsize.plan.limits import USABLE


def _net() -> nn.Module:
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for _ in range(4):
        layers += [nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True)]
    return nn.Sequential(nn.Conv2d(3, 8, 1), nn.Sequential(*layers[:6]), nn.Sequential(*layers[6:]))


def _loss(model: nn.Module, images: Tensor) -> Tensor:
    value: Tensor = model(images).square().mean()
    return value


module = importlib.import_module("outsize.planning.within")
IMAGES = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(1))


def _budget(share: float) -> int:
    """Return a budget of which the usable part is a share of what the plain step needs."""
    facts = trace_step(_net(), tuple(IMAGES.shape), loss=_loss, optimizer=torch.optim.AdamW, device="cpu")
    return int(share * StepCost(facts).peak_bytes() / USABLE["cpu"])


def _trained(model: nn.Module, num_steps: int = 5) -> dict[str, Tensor]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(num_steps):
        optimizer.zero_grad()
        _loss(model, IMAGES).backward()
        optimizer.step()
    return {name: value.clone() for name, value in model.state_dict().items()}


def test_a_budget_that_is_enough_changes_nothing() -> None:
    with outsize.within(_net(), IMAGES, "1GiB", loss=_loss) as fit:
        assert fit.plan.recompute is None
        assert fit.plan.exact
        assert fit.recorded is None


@pytest.mark.parametrize("share", [0.9, pytest.param(0.8, marks=pytest.mark.long), 0.7])
def test_a_smaller_budget_gives_the_same_weights_and_statistics(share: float) -> None:
    model = _net()
    wanted = _trained(copy.deepcopy(model))
    with outsize.within(model, IMAGES, _budget(share), loss=_loss) as fit:
        assert fit.plan.recompute is not None
        assert fit.plan.peak_bytes <= USABLE["cpu"] * fit.plan.limit_bytes
        found = _trained(model)
    assert all(torch.equal(found[name], value) for name, value in wanted.items())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert not any("forward" in vars(module) for module in model.modules())


def test_a_step_that_fails_leaves_the_next_one_whole() -> None:
    model = _net()
    wanted = _trained(copy.deepcopy(model), 1)
    with outsize.within(model, IMAGES, _budget(0.75), loss=_loss):
        with pytest.raises(RuntimeError):
            model(torch.randn(2, 5, 64, 64))
        found = _trained(model, 1)
    assert all(torch.equal(found[name], value) for name, value in wanted.items())


class _Fussy(nn.Module):
    """Looks at a number: shapes alone do not tell which way it goes."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = _net()

    def forward(self, images: Tensor) -> Tensor:
        scale = 2.0 if images.mean().item() > 0 else 1.0
        result: Tensor = self.inner(images) * scale
        return result


def test_a_module_that_cannot_be_followed_is_recorded_in_a_real_step() -> None:
    model = _Fussy()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    wanted = _trained(copy.deepcopy(model))
    fit = outsize.within(model, IMAGES, int(_budget(0.75) * 0.9), loss=_loss)
    assert fit.recorded is not None
    assert ".item()" in fit.recorded
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    with fit:
        assert fit.plan.recompute is not None
        found = _trained(model)
    assert all(torch.equal(found[name], value) for name, value in wanted.items())


class _Again(_Fussy):
    """Runs a block a second time in backward, where nobody saw its tensors in forward."""

    def forward(self, images: Tensor) -> Tensor:
        scale = 2.0 if images.mean().item() > 0 else 1.0
        result: Tensor = checkpoint(self.inner[1], self.inner[0](images), use_reentrant=True)
        return self.inner[2](result) * scale  # type: ignore[no-any-return]


@pytest.mark.parametrize("share", [2.0, 0.7])
def test_what_a_reentrant_checkpoint_keeps_is_its_own(share: float) -> None:
    model = _Again()
    wanted = _trained(copy.deepcopy(model))
    with outsize.within(model, IMAGES, int(share * _budget(1.0)), loss=_loss) as fit:
        assert fit.recorded is not None
        found = _trained(model)
    assert all(torch.equal(found[name], value) for name, value in wanted.items())


def test_an_example_of_several_tensors_is_reach_as_it_was() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = _net()

        def forward(self, one: Tensor, other: Tensor) -> dict[str, Any]:
            return {"sum": self.inner(one + other), "none": None}

    for example in ((IMAGES, IMAGES), [IMAGES, IMAGES], {"one": IMAGES, "other": IMAGES}):
        fit = outsize.within(Two(), example, "1GiB")
        assert fit.recorded is None
        assert fit.plan.peak_bytes > 0


def test_budgets_that_cannot_be_are_refused() -> None:
    with pytest.raises(
        PlanError, match=r"a step does not fit .* at least .* by .* raise the budget to .[0-9]+MiB"
    ):
        outsize.within(_net(), IMAGES, "100KiB", loss=_loss)
    with pytest.raises(PlanError, match=r"more than .* has: found 1024.0 TiB"):
        outsize.within(_net(), IMAGES, 1 << 50, loss=_loss)


@pytest.mark.parametrize(
    ("budget", "refusal"),
    [
        ("lots", "bad value for 'budget' in outsize.within: found 'lots', needed .*16GiB"),
        ("10", r"found 10 bytes, needed a size with its unit; did you mean 10GiB\?"),
        ("0GiB", "found '0GiB', needed more than 0"),
        (-5, "the budget is no size: found -5, needed a whole number of bytes, more than 0, or e.g. .16GiB."),
        (0, "found 0, needed a whole number"),
        (2.5e8, "found 250000000.0, needed a whole number"),
        (True, "found True, needed a whole number"),
    ],
)
def test_budgets_that_are_no_sizes_are_refused(budget: Any, refusal: str) -> None:
    with pytest.raises(JobError, match=refusal):
        outsize.within(_net(), IMAGES, budget, loss=_loss)


def test_a_budget_that_is_not_free_is_lowered_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    model = _net()
    machine = replace(look_at_machine(torch.device("cpu")), memory_bytes=2**31, free_bytes=2**30)
    monkeypatch.setattr(module, "look_at_machine", lambda _: machine)
    with pytest.warns(
        UserWarning, match=r"has free: found 1.5 GiB, needed at most 1.0 GiB; the plan"
    ) as told:
        fit = outsize.within(model, IMAGES, "1.5GiB", loss=_loss)
    assert told[0].filename == __file__
    assert fit.plan.limit_bytes < 1.1 * 2**30


def test_what_the_model_itself_takes_is_not_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    model = _net()
    own_bytes = sum(each.nbytes for each in (*model.parameters(), *model.buffers()))
    machine = replace(look_at_machine(torch.device("cpu")), free_bytes=2**30)
    monkeypatch.setattr(module, "look_at_machine", lambda _: machine)
    assert outsize.within(model, IMAGES, loss=_loss).plan.limit_bytes == 2**30 + own_bytes


def test_calls_without_gradients_are_no_deviation_from_the_plan() -> None:
    model = _net()
    with outsize.within(model, IMAGES, _budget(0.7), loss=_loss), warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            with torch.no_grad():
                model(IMAGES)
            _loss(model, IMAGES).backward()


def test_the_budget_that_a_refusal_names_will_do() -> None:
    torch.manual_seed(0)
    model = build_model("unet", num_classes=3, in_channels=3, levels=3, width=8)
    images = torch.randn(2, 3, 64, 64)
    plain = outsize.within(model, images, "1GiB").plan.peak_bytes
    with pytest.raises(PlanError) as refused:
        outsize.within(model, images, int(0.4 * plain))
    (named,) = re.findall(r'raise the budget to "(\d+MiB)"', str(refused.value))
    assert outsize.within(model, images, named).plan.exact


def test_a_loss_that_is_not_told_is_taken_to_need_what_most_do() -> None:
    """Logits of many classes: what a loss keeps and makes of them is a good part of the step."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 32, 1))
    images, labels = torch.randn(2, 3, 64, 64), torch.randint(0, 32, (2, 64, 64))
    untold = outsize.within(model, images, "1GiB").plan.peak_bytes
    for criterion in (
        nn.functional.cross_entropy,
        lambda found, _: nn.functional.mse_loss(found, found.detach() + 1),
    ):
        told = outsize.within(
            model, images, "1GiB", loss=lambda net, each, by=criterion: by(net(each), labels)
        )
        assert untold == pytest.approx(told.plan.peak_bytes, rel=0.05)
