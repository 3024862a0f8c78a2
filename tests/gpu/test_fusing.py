"""On a GPU: fused layers give what torch's own give, but for the last digits, and take less time and memory."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from outsize.models.unet import JoinedConv2d
from outsize.plan.plan import Fuse
from outsize.strategies import join_kernels, joined
from outsize.strategies.batch_norm import FusedNorm
from outsize.strategies.cross_entropy import summed
from outsize.strategies.fusing import fused_layers
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
    # torch's own in float64: in float32 its statistics are off by 1e-6, enough for a number to change sides at a ReLU
    norm = norm.double()
    a, b = x.double().requires_grad_(), x.clone().requires_grad_()
    theirs = F.relu(norm(a)) if relu else norm(a)
    running = (twin.running_mean, twin.running_var)
    ours = FusedNorm.apply(b, twin.weight, twin.bias, running, 0.1, 1e-5, relu)  # type: ignore[no-untyped-call]
    grad = torch.randn_like(ours)
    theirs.backward(grad.double())
    ours.backward(grad)
    # where a number is all but zero, the two may still disagree on its side
    loose = 1e-3 if dtype is torch.float32 else 5e-3
    assert _far(ours, theirs) < (1e-6 if dtype is torch.float32 else 2e-3)
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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("channels", [(64, 64), (5, 3), (512, 512), (24, 40)])
def test_join(channels: tuple[int, int], dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    first, second = (
        torch.randn(3, each, 33, 47, device="cuda").to(dtype).contiguous(memory_format=torch.channels_last)
        for each in channels
    )
    assert torch.equal(join_kernels.join(first, second), torch.cat((first, second), 1))


@pytest.mark.parametrize("most_bytes", [2**28, 2**20])
@pytest.mark.parametrize("bf16", [False, True])
def test_a_convolution_of_halves(bf16: bool, most_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joined, "_MOST_BYTES", most_bytes)
    torch.manual_seed(0)
    conv = JoinedConv2d(128, 64, 3, padding=1, bias=False).cuda().to(memory_format=torch.channels_last)
    halves = [
        torch.randn(4, 64, 96, 80, device="cuda").contiguous(memory_format=torch.channels_last)
        for _ in range(2)
    ]
    grad = torch.randn(4, 64, 96, 80, device="cuda").contiguous(memory_format=torch.channels_last)

    def run() -> list[Tensor]:
        conv.zero_grad(set_to_none=True)
        skip, up = (each.clone().requires_grad_() for each in halves)
        with torch.autocast("cuda", torch.bfloat16, enabled=bf16):
            low = torch.bfloat16 if bf16 else torch.float32
            made = conv(skip.to(low), up.to(low))
        made.backward(grad.to(made.dtype))
        assert skip.grad is not None
        assert up.grad is not None
        assert conv.weight.grad is not None
        return [made.detach(), skip.grad, up.grad, conv.weight.grad]

    theirs = run()
    with fused_layers(conv, Fuse(joins=("",)))():
        ours = run()
    for one, other in zip(ours, theirs, strict=True):
        assert one.dtype == other.dtype
        assert _far(one, other) < 5e-3  # TF32 and bfloat16, by other kernels
