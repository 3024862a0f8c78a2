"""Convolutions of rows far apart on folded pictures: the same results and gradients, no copy, one operation."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from outsize.measure.tracing.step import trace_step
from outsize.models import build_model
from outsize.plan.cost import StepCost
from outsize.plan.plan import Fuse
from outsize.strategies.kernels import fused_layer
from outsize.strategies.kernels.folded import folded_convolution
from outsize.strategies.kernels.layers import can_be_fused, fused_layers, fusible


@pytest.fixture(autouse=True)
def _on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused_layer, "_ON_CPU", True)


def _column(dilation: int = 16, **settings: Any) -> nn.Conv2d:
    torch.manual_seed(0)
    settings = {"padding": (dilation, 0), "dilation": (dilation, 1), **settings}
    return nn.Conv2d(4, 6, (3, 1), **settings).to(memory_format=torch.channels_last)


def _images(rows: int, cols: int = 5) -> Tensor:
    torch.manual_seed(3)
    return torch.randn(2, 4, rows, cols).contiguous(memory_format=torch.channels_last)


def _loss(model: nn.Module, images: Tensor) -> Tensor:
    loss: Tensor = model(images).float().square().mean()
    return loss


@pytest.mark.parametrize(
    ("kernel", "padding", "dilation", "rows"),
    [(3, 1, 3, 9), (3, 1, 5, 5), (5, 1, 2, 8), (2, 0, 3, 6), (3, 3, 2, 4)],
)
@pytest.mark.parametrize("last", [True, False])
def test_folding_is_the_same_convolution(
    kernel: int, padding: int, dilation: int, rows: int, last: bool
) -> None:
    torch.manual_seed(0)
    layout = torch.channels_last if last else torch.contiguous_format
    x = torch.randn(2, 3, rows, 7, dtype=torch.float64).contiguous(memory_format=layout).requires_grad_()
    weight = (
        torch.randn(4, 3, kernel, 1, dtype=torch.float64).contiguous(memory_format=layout).requires_grad_()
    )
    bias = torch.randn(4, dtype=torch.float64, requires_grad=True)
    ours = folded_convolution(x, weight, bias, padding, dilation)
    theirs = F.conv2d(x, weight, bias, padding=(padding * dilation, 0), dilation=(dilation, 1))
    torch.testing.assert_close(ours, theirs)
    assert ours.stride() == theirs.stride()

    def run(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return folded_convolution(x, weight, bias, padding, dilation)

    assert torch.autograd.gradcheck(run, (x, weight, bias))


def _step(model: nn.Module, images: Tensor, after: Callable[[Tensor], Tensor]) -> list[Tensor]:
    model.zero_grad()
    given = images.clone().requires_grad_()
    made = after(model(given))
    made.square().sum().backward()
    assert given.grad is not None
    return [
        made.detach(),
        given.grad,
        *(each.grad.clone() for each in model.parameters() if each.grad is not None),
    ]


@pytest.mark.parametrize("rows", [32, 48, 16, 40, 7])  # the last two do not divide
def test_a_layer_folds_what_divides_and_is_itself_else(rows: int) -> None:
    conv, images = _column(), _images(rows)
    plain = _step(conv, images, F.relu_)
    with fused_layers(conv, Fuse(columns=("",)))():
        ours = _step(conv, images, F.relu_)  # in place: the result is no view
        node = conv(images.clone().requires_grad_()).grad_fn
    assert ("Folded" in type(node).__name__) == (rows % 16 == 0)
    assert ours[0].is_contiguous(memory_format=torch.channels_last)
    for one, other in zip(ours, plain, strict=True):
        torch.testing.assert_close(one, other)


def test_a_part_of_a_gradient_and_frozen_weights() -> None:
    conv, images = _column(bias=False).requires_grad_(False), _images(32)

    def beside(made: Tensor) -> Tensor:
        return torch.cat((made, 2 * made), dim=1)[:, :9]

    plain = _step(conv, images, beside)
    with fused_layers(conv, Fuse(columns=("",)))():
        ours = _step(conv, images, beside)
    for one, other in zip(ours, plain, strict=True):
        torch.testing.assert_close(one, other)


def test_what_autocast_has_yet_to_cast_and_other_types_run_as_ever() -> None:
    conv, images = _column(), _images(32)
    with fused_layers(conv, Fuse(columns=("",)))():
        with torch.autocast("cpu", torch.bfloat16):
            assert "Folded" not in type(conv(images.clone().requires_grad_()).grad_fn).__name__
            low = conv(images.bfloat16())
            assert "Folded" in type(low.grad_fn).__name__
            assert low.dtype == torch.bfloat16
        with pytest.raises(RuntimeError, match="type"):
            conv(images.bfloat16())


@pytest.mark.parametrize(
    "conv",
    [
        _column(8, padding=(8, 0)),
        _column(padding=(8, 0)),
        _column(padding=(16, 1)),
        _column(stride=(2, 1)),
        _column(groups=2),
        _column(padding="same"),
        _column(padding_mode="reflect"),
        nn.Conv2d(4, 4, 3, padding=16, dilation=16),
        nn.Conv2d(4, 4, (1, 3), padding=(0, 16), dilation=16),
    ],
)
def test_what_is_not_folded(conv: nn.Conv2d) -> None:
    assert not can_be_fused(conv)
    assert can_be_fused(_column())


class _Convolutions(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.kinds: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "convolution" in func.overloadpacket.__name__:
            self.kinds.append(func.overloadpacket.__name__.removeprefix("fused_folded_"))
        return func(*args, **(kwargs or {}))


def test_an_erfnet_folds_its_farthest_rows_and_facts_see_the_step_that_runs() -> None:
    torch.manual_seed(0)
    plain = build_model("erfnet", num_classes=3, in_channels=3, width=4, dropout=0.0, early_dropout=0.0)
    plain = plain.to(memory_format=torch.channels_last).train()
    ours, images = copy.deepcopy(plain), _images(128, 64)[:, :3].contiguous(memory_format=torch.channels_last)
    shape = tuple(images.shape)
    alone = trace_step(plain, shape, loss=_loss)
    fuse = fusible(plain, alone)
    assert len(fuse.columns) == 2
    assert all(path.endswith("tall2") for path in fuse.columns)
    assert fusible(ours, alone) == fuse
    facts = trace_step(
        plain, shape, loss=_loss, around=lambda twin: fused_layers(twin, Fuse(columns=fuse.columns))()
    )
    kinds = [op.kind for op in facts.ops]
    assert kinds.count("fused_folded_convolution") == 2
    before = [op.kind for op in alone.ops]
    assert all(kinds.count(kind) == before.count(kind) for kind in ("clone", "copy_", "_to_copy", "empty"))
    for one, other in (
        (sum(op.flops for op in facts.ops), sum(op.flops for op in alone.ops)),
        (len(facts.saved), len(alone.saved)),
        (StepCost(facts).peak_bytes(), StepCost(alone).peak_bytes()),
    ):
        assert one == other
    with fused_layers(ours, Fuse(columns=fuse.columns))(), _Convolutions() as seen:
        _loss(ours, images).backward()
    assert seen.kinds == [kind.removeprefix("fused_folded_") for kind in kinds if "convolution" in kind]
    _loss(plain, images).backward()
    for one, other in zip(ours.parameters(), plain.parameters(), strict=True):
        if other.grad is not None:
            torch.testing.assert_close(one.grad, other.grad, rtol=1e-3, atol=1e-6)
