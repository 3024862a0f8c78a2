"""On a GPU: fused layers give what torch's own give, but for the last digits, and take less time and memory."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from outsize.strategies.batch_norm import FusedNorm
from outsize.strategies.cross_entropy import summed
from outsize.strategies.max_pool import FusedPool


def _far(ours: Tensor | None, theirs: Tensor | None) -> float:
    assert ours is not None
    assert theirs is not None
    return float((ours.double() - theirs.double()).norm() / theirs.double().norm())


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(2, 5, 9, 7), (2, 64, 133, 120), (4, 512, 65, 65), (1, 2048, 16, 16)])
def test_norm(shape: tuple[int, ...], dtype: torch.dtype, relu: bool) -> None:
    torch.manual_seed(0)
    x = (torch.randn(shape, device="cuda") * 2 + 5).to(dtype).contiguous(memory_format=torch.channels_last)
    norm = nn.BatchNorm2d(shape[1]).cuda()
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    twin = copy.deepcopy(norm)
    a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
    theirs = F.relu(norm(a)) if relu else norm(a)
    running = (twin.running_mean, twin.running_var)
    ours = FusedNorm.apply(b, twin.weight, twin.bias, running, 0.1, 1e-5, relu)  # type: ignore[no-untyped-call]
    grad = torch.randn_like(theirs)
    theirs.backward(grad)
    ours.backward(grad)
    # where a number is all but zero, the two may disagree on its side
    loose = 1e-3 if dtype is torch.float32 else 5e-3
    assert _far(ours, theirs) < (1e-6 if dtype is torch.float32 else 1e-3)
    assert _far(b.grad, a.grad) < loose
    assert _far(twin.weight.grad, norm.weight.grad) < loose
    assert _far(twin.bias.grad, norm.bias.grad) < loose
    assert _far(twin.running_mean, norm.running_mean) < 1e-6
    assert _far(twin.running_var, norm.running_var) < 1e-6
    again = FusedNorm.apply(b, twin.weight, twin.bias, running, 0.1, 1e-5, relu)  # type: ignore[no-untyped-call]
    assert torch.equal(again, ours)


@pytest.mark.parametrize("window", [(2, 2, 0), (3, 2, 1), (3, 1, 1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_pool(window: tuple[int, int, int], dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 72, 101, 64, device="cuda").to(dtype).contiguous(memory_format=torch.channels_last)
    a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
    theirs = F.max_pool2d(a, *window)
    ours = FusedPool.apply(b, *window)  # type: ignore[no-untyped-call]
    assert torch.equal(ours, theirs)
    grad = torch.randn_like(theirs)
    theirs.backward(grad)
    ours.backward(grad)
    assert _far(b.grad, a.grad) < (1e-6 if dtype is torch.float32 else 5e-3)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_cross_entropy(dtype: torch.dtype, weighted: bool) -> None:
    torch.manual_seed(0)
    scores = 3 * torch.randn(2, 19, 101, 64, device="cuda")
    scores = scores.to(dtype).contiguous(memory_format=torch.channels_last)
    labels = torch.randint(19, (2, 101, 64), dtype=torch.uint8, device="cuda")
    labels[:, :5] = 255
    weights = tuple((torch.rand(19) + 0.5).tolist()) if weighted else None
    a, b = scores.clone().requires_grad_(), scores.clone().requires_grad_()
    each = torch.tensor(weights, device="cuda") if weights is not None else None
    theirs = F.cross_entropy(a.float(), labels.long(), each, ignore_index=255, reduction="sum")
    ours = summed(b, labels, weights)
    assert ours is not None
    theirs.backward()
    ours.backward()
    assert _far(ours, theirs) < 1e-6
    assert _far(b.grad, a.grad) < (1e-6 if dtype is torch.float32 else 1e-2)
