"""Joins and enlargements that are never made as a whole: the same answer, and less memory by what was foretold."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import outsize
from outsize.errors import PlanError
from outsize.losses.cross_entropy import cross_entropy, summed_by
from outsize.measure.memory import LiveBytes
from outsize.measure.tracing import trace_step
from outsize.plan.cost import StepCost
from outsize.plan.limits import USABLE
from outsize.plan.plan import Fuse, plan_from_dict
from outsize.plan.step import BLOCK_BYTES
from outsize.planning.own_step import own_step, traced
from outsize.strategies.kernels import later, made_by_slices, made_later, standing_in
from outsize.strategies.kernels.entropy import summed
from outsize.strategies.kernels.later import Pending, Postponing


class _Decoder(nn.Module):
    """Levels of several sizes, enlarged and joined for one convolution, with a norm behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.fuse = nn.Sequential(nn.Conv2d(48, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.ReLU())

    def forward(self, *levels: Tensor) -> Tensor:
        size = levels[0].shape[-2:]
        others = [F.interpolate(x, size, mode="bilinear", align_corners=False) for x in levels[1:]]
        found: Tensor = self.fuse(torch.cat([levels[0], *others], dim=1))
        return found


class _Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.levels = nn.ModuleList(nn.Conv2d(3, 16, 2**n, stride=2**n) for n in range(3))
        self.decoder = _Decoder()
        self.up = nn.Upsample(scale_factor=2)
        self.head = nn.Conv2d(4, 2, 3, padding=1)

    def forward(self, images: Tensor) -> Tensor:
        found: Tensor = self.head(self.up(self.decoder(*(level(images) for level in self.levels))))
        return found


IMAGES = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(1))
LATER = ("decoder", "up")


def _square(model: nn.Module, images: Tensor) -> Tensor:
    value: Tensor = model(images).square().mean()
    return value


def _stepped(model: nn.Module, images: Tensor, *, bf16: bool = False) -> list[Tensor]:
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        value = _square(model, images)
    value.backward()
    grads = [each.grad for each in model.parameters()]
    return [value.detach(), *(each for each in grads if each is not None), *model.buffers()]


@pytest.fixture(params=[1, 3, 4])
def at_once(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Of the four samples so many are joined at a time."""
    monkeypatch.setattr(later, "_MOST_BYTES", request.param * 48 * 32 * 32 * 8)
    num: int = request.param
    return num


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_the_step_is_the_plain_one(at_once: int, layout: torch.memory_format) -> None:
    torch.manual_seed(0)
    model = _Net().double().to(memory_format=layout)
    images = IMAGES.double().to(memory_format=layout).requires_grad_()
    plain, again = copy.deepcopy(model), images.detach().clone().requires_grad_()
    wanted = _stepped(plain, again)
    with made_later(model, LATER):
        found = _stepped(model, images)
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(images.grad, again.grad, rtol=1e-12, atol=1e-14)
    assert not any("forward" in vars(each) for each in model.modules())
    assert at_once


def test_under_autocast_weights_keep_their_gradients() -> None:
    torch.manual_seed(0)
    model = _Net()
    wanted = _stepped(copy.deepcopy(model), IMAGES, bf16=True)
    with made_later(model, LATER):
        found = _stepped(model, IMAGES, bf16=True)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=0.03, atol=0.01)


def test_what_is_held_is_less_and_foretold_to_the_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(later, "_MOST_BYTES", 1)
    torch.manual_seed(0)
    model = _Net()
    step = own_step(model, IMAGES, _square, None, bf16=False)
    plain, sliced = (StepCost(traced(step, later=paths)) for paths in ((), LATER))
    with made_later(model, LATER), LiveBytes(BLOCK_BYTES) as live:
        _square(model, IMAGES).backward()
    assert sliced.peak_bytes() == live.peak_bytes + sliced.lasting_bytes
    assert sliced.peak_bytes() - sliced.lasting_bytes < 0.7 * (plain.peak_bytes() - plain.lasting_bytes)


class _Logits(nn.Module):
    """A network whose logits are enlarged last."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Conv2d(3, 8, 3, stride=4, padding=1), nn.Conv2d(8, 24, 1)
        self.up = nn.UpsamplingBilinear2d(scale_factor=4)

    def forward(self, images: Tensor) -> Tensor:
        found: Tensor = self.up(self.head(self.body(images).relu()))
        return found


_LABELS = torch.randint(0, 24, (4, 32, 32), generator=torch.Generator().manual_seed(2))
_LABELS[:, :3] = 255


def _entropy(model: nn.Module, images: Tensor) -> Tensor:
    logits = model(images)
    labels = torch.zeros_like(logits[:, 0], dtype=torch.long) if images.is_meta else _LABELS
    return F.cross_entropy(
        logits if images.dtype == torch.float64 else logits.float(), labels, ignore_index=255
    )


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_logits_enlarged_last_never_exist_as_a_whole(
    weighted: bool, reduction: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(later, "_MOST_BYTES", 1)
    torch.manual_seed(0)
    model, weight = _Logits().double(), torch.rand(24).double() if weighted else None
    plain, images = copy.deepcopy(model), IMAGES.double()
    options = {"weight": weight, "ignore_index": 255, "reduction": reduction}
    wanted = F.cross_entropy(plain(images), _LABELS, **options)
    wanted.backward()
    with made_later(model, ("up",)), LiveBytes(BLOCK_BYTES) as live:
        logits = model(images)
        assert type(logits) is Pending
        with torch.no_grad():
            assert torch.equal(logits.argmax(1), plain(images).argmax(1))  # of which nothing stays
        live.peak_bytes = live.now_bytes
        found = F.cross_entropy(logits, _LABELS, **options)
        found.backward()
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-14)
    for one, other in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-12, atol=1e-14)
    whole_bytes = 4 * 24 * 32 * 32 * 8
    assert live.peak_bytes < 1.6 * whole_bytes  # plain: logits, their logarithms and two gradients


def test_the_loss_of_a_job_adds_up_slices() -> None:
    torch.manual_seed(0)
    model = _Logits()
    plain = copy.deepcopy(model)
    weights = tuple(torch.rand(24).tolist())
    loss, labels = cross_entropy(weights), _LABELS.to(torch.uint8)
    wanted = loss.sum(plain(IMAGES), labels)
    wanted.backward()
    with made_later(model, ("up",)), summed_by(summed), standing_in():
        logits = model(IMAGES)
        found = loss.sum(logits, labels)
        assert type(logits) is Pending
        assert logits.made is None
    found.backward()
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
    for one, other in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-5)


def test_logits_are_enlarged_as_autocast_did_it_where_the_loss_lies_outside() -> None:
    torch.manual_seed(0)
    model = _Logits()
    plain = copy.deepcopy(model)
    grads = []
    for each in (plain, model):
        with made_later(each, ("up",) if each is model else ()):
            with torch.autocast("cpu", torch.bfloat16):
                logits = each(IMAGES)
            F.cross_entropy(logits.float(), _LABELS, ignore_index=255).backward()
        grads.append([parameter.grad for parameter in each.parameters()])
    for one, other in zip(*grads, strict=True):
        torch.testing.assert_close(one, other, rtol=0.02, atol=1e-3)


def test_within_finds_logits_that_are_enlarged_last() -> None:
    model = _Logits()
    facts = traced(own_step(model, IMAGES, _entropy, None, bf16=False))
    assert made_by_slices(model, facts) == ("up",)


def test_a_function_of_others_is_told_and_not_left_without_its_gradient() -> None:
    class Doubles(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            return grad * 2

    x = torch.randn(2, 3, 4, 4, requires_grad=True)
    with Postponing():
        small = F.interpolate(x, scale_factor=2)
    value = Doubles.apply(small).sum()
    with pytest.raises(PlanError, match="by slices"):
        value.backward()


def test_who_asks_for_the_numbers_gets_them() -> None:
    x = torch.randn(2, 3, 4, 4, requires_grad=True)
    with Postponing():
        small = F.interpolate(x, scale_factor=2)
        both = torch.cat((small, small), 1)
    assert type(both) is Pending
    assert both.shape == (2, 6, 8, 8)
    assert both.size(1) == 6
    assert both.dtype == torch.float32
    whole = F.interpolate(x, scale_factor=2).repeat(1, 2, 1, 1)
    assert torch.equal(both + 1, whole + 1)
    assert torch.equal(both.relu(), whole.relu())
    both.sum().backward()
    assert torch.equal(x.grad, torch.full_like(x, 8.0))


def test_what_is_not_enlarged_nor_wants_gradients_is_made_at_once() -> None:
    x = torch.randn(2, 3, 4, 4, requires_grad=True)
    with Postponing():
        assert type(F.interpolate(x, scale_factor=0.5)) is Tensor
        assert type(F.interpolate(x.detach(), scale_factor=2)) is Tensor
        assert type(torch.cat((x, x), 0)) is Tensor
        with torch.no_grad():
            assert type(torch.cat((x, x), 1)) is Tensor


def test_within_makes_slices_where_nothing_else_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(later, "_MOST_BYTES", 1)
    torch.manual_seed(0)
    model = _Net()
    cost = StepCost(traced(own_step(model, IMAGES, _square, None, bf16=False)))
    wanted = _stepped(copy.deepcopy(model), IMAGES)
    budget_bytes = cost.lasting_bytes + 0.66 * (cost.peak_bytes() - cost.lasting_bytes)
    fit = outsize.within(model, IMAGES, int(budget_bytes / USABLE["cpu"]), loss=_square, optimizer=None)
    assert fit.plan.fuse is not None
    assert set(fit.plan.fuse.later) == set(LATER)
    assert "by slices" in fit.plan.why[0]
    assert fit.plan.peak_bytes <= budget_bytes
    with fit, LiveBytes(BLOCK_BYTES) as live:
        found = _stepped(model, IMAGES)
    assert live.peak_bytes + cost.lasting_bytes == pytest.approx(fit.plan.peak_bytes, rel=0.02)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    assert plan_from_dict(json.loads(json.dumps(fit.plan.as_dict()))) == fit.plan


class _Joins(nn.Module):
    def __init__(self, between: nn.Module) -> None:
        super().__init__()
        self.between, self.conv = between, nn.Conv2d(8, 2, 3)

    def forward(self, x: Tensor) -> Tensor:
        up = F.interpolate(x, scale_factor=2)
        found: Tensor = self.conv(self.between(torch.cat((up, up), 1)))
        return found


@pytest.mark.parametrize(("between", "found"), [(nn.Identity(), ("1",)), (nn.ReLU(), ())])
def test_only_what_convolutions_alone_read(between: nn.Module, found: tuple[str, ...]) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), _Joins(between))
    facts = trace_step(model, (2, 3, 16, 16), loss=_square)
    assert made_by_slices(model, facts) == found
    model[1].forward = model[1].forward  # as of somebody who has replaced it
    assert made_by_slices(model, facts) == ()
    assert "'1' joins" in Fuse(later=("1",)).why_later
    assert "'1' and 1 more" in Fuse(later=("1", "2")).why_later
