"""Recipes: replayed once for all who wait, not held for those far away, fused where a GPU would."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from outsize.measure.memory import LiveBytes
from outsize.models import build_model
from outsize.plan.step import Key
from outsize.strategies.kernels.norm import fused
from outsize.strategies.saved import recipes, values
from outsize.strategies.saved.hooks import SavedTensors, recomputable

_IMAGES = torch.randn(2, 4, 16, 16, generator=torch.Generator().manual_seed(1))


class Look(torch.autograd.Function):
    """Passes its input on, and sees whether what comes back in backward is the same, also in memory."""

    seen: list[tuple[bool, bool]] = []  # noqa: RUF012

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        ctx.expected, ctx.strides = x.clone(), x.stride()
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (found,) = ctx.saved_tensors
        Look.seen.append((torch.allclose(found, ctx.expected), found.stride() == ctx.strides))
        return gradient


class Residual(nn.Module):
    """relu(norm + x), or the other way round, or both normed; x may lie in memory in another order."""

    def __init__(self, order: str) -> None:
        super().__init__()
        self.order = order
        self.first, self.conv, self.last = (nn.Conv2d(4, 4, 3, padding=1) for _ in range(3))
        self.norm, self.side = nn.BatchNorm2d(4), nn.BatchNorm2d(4, affine=False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        normed = self.norm(self.conv(x))
        match self.order:
            case "norm first":
                both = normed + x
            case "norm last":
                both = x.contiguous(memory_format=torch.channels_last) + normed
            case "both":
                both = self.side(x)
                both += normed
            case "scaled":  # not fused
                both = torch.add(normed, x, alpha=0.5)
        return self.last(Look.apply(both.relu()))


def test_a_tensor_saved_twice_is_recomputed_once_and_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 1))
    keys = recomputable(model, lambda: model(_IMAGES).sum())
    assert {path for path, _, _ in keys} == {"2", "3"}  # the result of the ReLU, the input of the convolution
    calls = []
    make = recipes.CallRecipe.make
    monkeypatch.setattr(recipes.CallRecipe, "make", lambda *args: (calls.append(1), make(*args))[1])
    with SavedTensors(model, keys) as saved:
        with saved.forward():
            loss = model(_IMAGES).sum()
        loss.backward(retain_graph=True)
        assert len(calls) == 2  # batch norm and ReLU
        first = [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
        loss.backward()  # a second time from the same graph
        for parameter, once in zip(model.parameters(), first, strict=True):
            assert torch.equal(parameter.grad, 2 * once)


def test_a_skip_is_not_held_from_one_end_of_backward_to_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build_model("unet", num_classes=3, in_channels=4, levels=4, width=4)
    keys = recomputable(model, lambda: model(_IMAGES).sum())
    at_the_bottom: list[int] = []

    def note(*_: object) -> None:
        at_the_bottom.append(live.now_bytes)

    model.bottleneck.register_full_backward_hook(note)  # type: ignore[union-attr, operator]
    for near in (values.NEAR_PACKS, 10**6):
        monkeypatch.setattr(values, "NEAR_PACKS", near)
        model.zero_grad()
        with SavedTensors(model, keys) as saved, LiveBytes() as live:
            with saved.forward():
                loss = model(_IMAGES).sum()
            loss.backward()
    skip_bytes = 2 * 4 * 16 * 16 * 4
    assert at_the_bottom[1] - at_the_bottom[0] >= skip_bytes


@pytest.mark.parametrize("by", ["watch", "graph"])
@pytest.mark.parametrize("order", ["unet", "norm first", "norm last", "both", "scaled"])
def test_fused_batch_norm(order: str, by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What kernels of a GPU do, as written for others: the same to rounding, and without the stock kernel."""
    torch.manual_seed(3)
    unet = build_model("unet", num_classes=3, in_channels=4, levels=3, width=4)
    model = (unet if order == "unet" else Residual(order)).double()
    plain = copy.deepcopy(model)
    images = _IMAGES.double()
    monkeypatch.setitem(recipes.FUSE, "cpu", True)
    monkeypatch.setattr(Look, "seen", [])
    twin = copy.deepcopy(model)
    keys = recomputable(twin, lambda: twin(images))
    with SavedTensors(model, keys) as saved:
        if by == "graph":  # the first forward is watched
            with saved.forward():
                state = copy.deepcopy(model.state_dict())
                watched = model(images)
            del watched
            Look.seen.clear()
            model.load_state_dict(state)
        with saved.forward():
            loss = model(images).square().mean()
        with torch.profiler.profile() as profile:
            loss.backward()
    assert Look.seen == ([] if order == "unet" else [(True, True)])
    assert saved.stats is not None
    assert saved.stats.num_recomputed > 1
    assert "aten::native_batch_norm" not in {each.key for each in profile.key_averages()}
    plain(images).square().mean().backward()
    for a, b in zip(plain.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-9, atol=1e-12)
    for a, b in zip(plain.buffers(), model.buffers(), strict=True):
        assert torch.equal(a, b)


def test_sum_and_relu_are_fused_with_the_norm(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[bool, bool]] = []
    normed = fused.normed

    def counted(x: Tensor, rows: fused.Rows, other: Tensor | None, *, relu: bool) -> Tensor:
        calls.append((other is not None, relu))
        return normed(x, rows, other, relu=relu)

    monkeypatch.setattr(recipes, "normed", counted)
    monkeypatch.setitem(recipes.FUSE, "cpu", True)
    model = Residual("both")
    with SavedTensors(model, recomputable(model, lambda: model(_IMAGES))) as saved:
        for _ in range(2):  # by the watch, and by the graph
            with saved.forward():
                loss = model(_IMAGES).sum()
            loss.backward()
            assert sorted(calls) == [(False, False), (True, True)]  # what is added has a norm of its own
            calls.clear()
    assert saved._versions  # nothing was missed


def test_views_of_what_is_made_anew() -> None:
    class Views(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.norm = nn.Conv2d(4, 6, 1), nn.BatchNorm2d(6)
            self.part, self.last = nn.Conv2d(3, 4, 1), nn.Conv2d(8, 2, 1)
            self.rows = nn.Linear(16, 2)

        def forward(self, x: Tensor) -> Tensor:
            out = self.norm(self.first(x)).relu()
            few = self.part(out[:, 2:5])  # a view is saved
            many = self.last(torch.cat((few, out.transpose(2, 3)[:, 1:5]), 1))  # a view is a source
            return many.sum() + self.rows(out.permute(0, 2, 1, 3)[:, 3]).square().sum()

    torch.manual_seed(3)
    model = Views()
    plain = copy.deepcopy(model)
    twin = copy.deepcopy(model)
    keys = recomputable(twin, lambda: twin(_IMAGES))
    assert {("part", 0, 0), ("last", 0, 0)} <= keys
    with SavedTensors(model, keys) as saved:
        with saved.forward():
            loss = model(_IMAGES)
        loss.backward()
    plain(_IMAGES).backward()
    for a, b in zip(plain.parameters(), model.parameters(), strict=True):
        assert torch.equal(a.grad, b.grad)


def test_views_of_what_is_kept() -> None:
    class Views(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Conv2d(4, 6, 1), nn.Conv2d(8, 2, 1)

        def forward(self, x: Tensor) -> Tensor:
            out = self.first(x)
            whole = torch.cat((out, x[:, :2]), 1)
            return F.silu(out[:, 1:3]).sum() + F.silu(out).sum() + self.last(whole).square().sum()

    torch.manual_seed(3)
    model = Views()
    plain = copy.deepcopy(model)
    plain(_IMAGES).backward()
    for keys in (frozenset[Key](), frozenset({("last", 0, 0)})):
        model.zero_grad()
        with SavedTensors(model, keys) as saved:
            with saved.forward():
                loss = model(_IMAGES)
            loss.backward()
        assert saved.stats is not None
        assert saved.stats.num_recomputed == len(keys)
        for a, b in zip(plain.parameters(), model.parameters(), strict=True):
            assert torch.equal(a.grad, b.grad)


def test_a_long_chain_is_kept() -> None:
    class Chain(nn.Module):
        def __init__(self, num_ops: int) -> None:
            super().__init__()
            self.num_ops, self.first, self.last = num_ops, nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 1)

        def forward(self, x: Tensor) -> Tensor:
            x = self.first(x).relu()  # saved, or to start from it would free nothing
            for _ in range(self.num_ops):
                x = x * 1.01
            return self.last(x)

    for num_ops in (60, 70, 2000):
        model = Chain(num_ops)
        with SavedTensors(model, frozenset({("last", 0, 0)})) as saved:
            with saved.forward():
                loss = model(_IMAGES).square().sum()
            loss.backward()
        assert saved.stats is not None
        assert saved.stats.num_recomputed == (1 if num_ops < 64 else 0)


def test_changed_in_place_after_being_saved_it_is_still_made_as_it_was() -> None:
    class Twice(nn.Module):
        def __init__(self, *, in_place: bool) -> None:
            super().__init__()
            self.in_place = in_place
            self.first, self.norm, self.last = nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4), nn.Conv2d(4, 4, 1)

        def forward(self, x: Tensor) -> Tensor:
            normed = self.norm(self.first(x))
            squared = normed * normed  # saves what the next line changes; kept, it would be an error
            return self.last(F.relu(normed, inplace=self.in_place)) + squared

    torch.manual_seed(3)
    model = Twice(in_place=True)
    plain = Twice(in_place=False)
    plain.load_state_dict(model.state_dict())
    keys = frozenset({("", 0, 0), ("", 0, 1), ("", 0, 2), ("last", 0, 0)})
    with SavedTensors(model, keys) as saved:
        with saved.forward():
            loss = model(_IMAGES).sum()
        loss.backward()
    assert saved.stats is not None
    assert not saved.stats.refused
    plain(_IMAGES).sum().backward()
    for a, b in zip(plain.parameters(), model.parameters(), strict=True):
        assert torch.equal(a.grad, b.grad)


class Upsampled(nn.Module):
    """What a plan runs convolutions again for: two in a row, and a transposed one of which only the end is saved."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(4, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.down, self.up = nn.Conv2d(8, 16, 2, stride=2), nn.ConvTranspose2d(16, 8, 2, stride=2)
        self.last = nn.Conv2d(16, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        skip = self.norm(self.first(x)).relu()
        return self.last(torch.cat((skip, self.up(self.down(skip))), 1))


_AGAIN = frozenset({("norm", 0, 0), ("", 0, 0), ("down", 0, 0), ("last", 0, 0)})
_CALLS = frozenset({("first", 0), ("up", 0)})


@pytest.mark.parametrize("bf16", [False, True], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("channels_last", [False, True])
def test_convolutions_that_are_named_run_again_to_the_bit(bf16: bool, channels_last: bool) -> None:
    torch.manual_seed(3)
    model = Upsampled()
    images = _IMAGES.contiguous(memory_format=torch.channels_last) if channels_last else _IMAGES
    plain = copy.deepcopy(model)
    saved = SavedTensors(model, _AGAIN, costly=_CALLS)
    for _ in range(3):  # the first is watched as a whole
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            plain(images).float().square().mean().backward()
            with saved, saved.forward():
                loss = model(images).float().square().mean()
        with torch.profiler.profile() as profile:
            loss.backward()
        assert saved.stats is not None
        assert (saved.stats.unmet, saved.stats.refused) == (frozenset(), frozenset())
        assert saved.stats.num_recomputed == len(_AGAIN)
        counts = {each.key: each.count for each in profile.key_averages()}
        assert (
            counts["aten::convolution"] == 2
        )  # the first, kept for those who need it next, and the transposed one
        for a, b in zip(plain.parameters(), model.parameters(), strict=True):
            assert torch.equal(a.grad, b.grad)


def test_convolutions_that_are_not_named_are_held_or_kept() -> None:
    model = Upsampled()
    with SavedTensors(model, _AGAIN) as saved:
        with saved.forward():
            loss = model(_IMAGES).square().mean()
        assert saved.stats is not None
        assert saved.stats.refused == {("norm", 0, 0)}
        assert saved.stats.held_bytes == 2 * 8 * 16 * 16 * 4  # what the transposed convolution made
        with torch.profiler.profile() as profile:
            loss.backward()
    assert "aten::convolution" not in {each.key for each in profile.key_averages()}


def test_a_convolution_runs_by_the_settings_of_the_first_time() -> None:
    cudnn = torch.backends.cudnn
    before = recipes.convolution_settings()
    with cudnn.flags(enabled=True, deterministic=not before[2], benchmark=before[1]):
        settings = recipes.convolution_settings()
    assert settings != before
    assert recipes.convolution_settings() == before
    with recipes._as_set(settings):
        assert recipes.convolution_settings() == settings
    with pytest.raises(ValueError, match="broken"), recipes._as_set(settings):
        raise ValueError("broken")
    assert recipes.convolution_settings() == before
