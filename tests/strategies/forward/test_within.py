"""What a block tells of calls that the plan was not made for, and what it keeps quiet about."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor, nn

import outsize
from outsize.measure.tensors import format_shapes, num_values, shapes_of
from outsize.measure.tracing.step import trace_step
from outsize.plan.cost import StepCost
from outsize.plan.limits import USABLE
from outsize.strategies.forward.within import Within

IMAGES = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(1))
LARGER = torch.randn(6, 3, 64, 64, generator=torch.Generator().manual_seed(2))


class _Net(nn.Module):
    """Runs its blocks plainly, or saves other tensors than that."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Conv2d(3, 8, 1)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()) for _ in range(4)
        )
        self.squares = False
        self.most_samples = 64
        self.num_blocks = 4  # after which it fails where there are more

    def forward(self, images: Tensor) -> Tensor:
        if len(images) > self.most_samples:
            raise torch.OutOfMemoryError("no room")
        maps: Tensor = self.first(images)
        for number, block in enumerate(self.blocks):
            if number == self.num_blocks:
                raise ValueError("out of blocks")
            maps = maps.square() if self.squares else block(maps)
        return maps


def _fit(model: nn.Module, share: float = 0.7) -> Within:
    """Plan for a share of what the plain step needs."""
    facts = trace_step(model, tuple(IMAGES.shape), loss=_loss, optimizer=torch.optim.AdamW, device="cpu")
    fit = outsize.within(model, IMAGES, int(share * StepCost(facts).peak_bytes() / USABLE["cpu"]), loss=_loss)
    assert (fit.plan.recompute is None) == (share >= 1)
    return fit


def _loss(model: nn.Module, images: Tensor) -> Tensor:
    value: Tensor = model(images).square().mean()
    return value


@contextmanager
def _silence() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


@pytest.mark.parametrize("share", [2.0, 0.7])
def test_larger_inputs_are_told_once_with_both_sizes(share: float) -> None:
    model = _Net()
    with _fit(model, share):
        with _silence():
            _loss(model, IMAGES).backward()
            _loss(model, IMAGES[:1]).backward()
            with torch.no_grad():
                model(LARGER)
        with pytest.warns(UserWarning, match="found 6x3x64x64, needed at most 2x3x64x64 as in the example"):
            _loss(model, LARGER).backward()
        with _silence():
            _loss(model, LARGER).backward()


def test_inputs_that_no_memory_is_left_for_are_told_of() -> None:
    model = _Net()
    model.most_samples = 4
    with (
        _fit(model, 2.0),
        pytest.warns(UserWarning, match="found 6x3x64x64"),
        pytest.raises(torch.OutOfMemoryError),
    ):
        model(LARGER)


def test_inputs_by_name_and_in_lists_count() -> None:
    class Named(_Net):
        def forward(self, *, images: list[Tensor]) -> Tensor:  # type: ignore[override]
            return super().forward(torch.cat(images))

    model = Named()
    with outsize.within(model, {"images": [IMAGES, IMAGES]}, "1GiB"):
        with _silence():
            model(images=[IMAGES, IMAGES])
        with pytest.warns(
            UserWarning, match="found 6x3x64x64, 2x3x64x64, needed at most 2x3x64x64, 2x3x64x64"
        ):
            model(images=[LARGER, IMAGES])


def test_labels_beside_the_inputs_are_none_of_them() -> None:
    model = _Net()
    labels = torch.zeros(1_000_000)
    fit = outsize.within(model, (IMAGES, labels), "1GiB", loss=lambda net, batch: _loss(net, batch[0]))
    with fit, pytest.warns(UserWarning, match="at most 2x3x64x64 as"):
        model(LARGER)


def test_a_later_call_that_misses_the_plan_is_told_once() -> None:
    model = _Net()
    with _fit(model):
        with _silence():
            for _ in range(2):
                _loss(model, IMAGES).backward()
        model.squares = True
        with pytest.warns(UserWarning, match=r"of \d+ tensors that the plan recomputes, \d+ are not saved"):
            _loss(model, IMAGES).backward()
        with _silence():
            _loss(model, IMAGES).backward()


@pytest.mark.parametrize("share", [2.0, 0.7])
def test_a_call_that_failed_is_not_told_of_and_leaves_the_warnings_for_others(share: float) -> None:
    model = _Net()
    with _fit(model, share):
        with _silence():
            for channels in (5, 1, 5, 5):
                with pytest.raises(RuntimeError, match="channels"):
                    model(torch.randn(2, channels, 64, 64))
            _loss(model, IMAGES).backward()
        with pytest.warns(UserWarning, match="found 6x3x64x64"):
            _loss(model, LARGER).backward()


def test_a_call_that_failed_is_no_example_of_what_is_saved() -> None:
    model = _Net()
    wanted, state = copy.deepcopy(model), copy.deepcopy(model.state_dict())
    _loss(wanted, IMAGES).backward()
    with _fit(model), _silence():
        model.num_blocks = 2
        for _ in range(4):
            with pytest.raises(ValueError, match="out of blocks"):
                model(IMAGES)
        model.num_blocks = 4
        model.load_state_dict(state)  # running statistics
        _loss(model, IMAGES).backward()
    for found, value in zip(model.parameters(), wanted.parameters(), strict=True):
        assert torch.equal(found.grad, value.grad)  # type: ignore[arg-type]


def test_frozen_calls_and_copies_are_no_deviation() -> None:
    model = _Net()
    with _fit(model), _silence():
        model.requires_grad_(False)
        model(IMAGES)
        model.requires_grad_(True)
        twin = copy.deepcopy(model)
        twin.squares = True
        _loss(twin, LARGER).backward()
        _loss(model, IMAGES).backward()


@pytest.mark.parametrize("share", [2.0, 0.7])
def test_no_hook_is_left(share: float) -> None:
    model = _Net()
    with _fit(model, share):
        assert model._forward_hooks
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_shapes_are_counted_and_written() -> None:
    shapes = shapes_of(((torch.zeros(2, 3), "text"), {"other": [torch.zeros(4), torch.zeros(())]}))
    assert shapes == ((2, 3), (4,), ())
    assert num_values(shapes) == 11
    assert format_shapes(shapes) == "2x3, 4, one number"


def test_a_loss_may_call_the_model_twice() -> None:
    def of_pairs(model: nn.Module, images: Tensor) -> Tensor:
        difference: Tensor = model(images) - model(images.flip(0))
        return difference.square().mean()

    plain_bytes = outsize.within(_Net(), IMAGES, "1GiB", loss=of_pairs).plan.peak_bytes
    model, plain = _Net(), _Net()
    fit = outsize.within(model, IMAGES, int(0.8 * plain_bytes / USABLE["cpu"]), loss=of_pairs)
    assert fit.plan.recompute is not None
    assert {call for _, call, _ in fit.plan.recompute.saved} == {0, 1}
    with warnings.catch_warnings(), fit:
        warnings.simplefilter("error")
        for _ in range(3):
            of_pairs(model, IMAGES).backward()
            with torch.no_grad():
                model(IMAGES)
    for _ in range(3):
        of_pairs(plain, IMAGES).backward()
        with torch.no_grad():
            plain(IMAGES)
    pairs = zip(model.parameters(), plain.parameters(), strict=True)
    assert all(a.grad is not None and b.grad is not None and torch.equal(a.grad, b.grad) for a, b in pairs)
