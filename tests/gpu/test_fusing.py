"""On a GPU: fused layers give what torch's own give, but for the last digits, and take less time and memory."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from outsize.measure.tracing.step import trace_step
from outsize.models import build_model
from outsize.models.unet import JoinedConv2d
from outsize.plan.plan import Fuse
from outsize.strategies.kernels.entropy.cross_entropy import summed
from outsize.strategies.kernels.join import joined
from outsize.strategies.kernels.join import kernels as join_kernels
from outsize.strategies.kernels.layers import fused_layers, fusible
from outsize.strategies.kernels.norm import kernels as norm_kernels
from outsize.strategies.kernels.norm.batch_norm import FusedNorm
from outsize.strategies.kernels.pool.max_pool import FusedPool


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
    shift = torch.randn(channels[1], device="cuda").to(dtype)
    shifted = torch.cat((first, second + shift[:, None, None]), 1)
    assert torch.equal(join_kernels.join(first, second, shift), shifted)
    wanted = shifted.double().sum((0, 2, 3))
    assert (norm_kernels.sums(shifted).double() - wanted).abs().max() < 1e-6 * shifted.double().abs().sum()


@pytest.mark.parametrize("bf16", [False, True])
def test_a_unet_whose_joins_add_biases(bf16: bool) -> None:
    torch.manual_seed(0)
    model = build_model("unet", num_classes=5, in_channels=3, width=16, levels=4, norm="none")
    with torch.no_grad():
        for layer in model.up:
            layer.bias.normal_()
    images = torch.randn(2, 3, 96, 128)
    expected = {name: each.clone() for name, each in _gradients_of(model.double(), images.double()).items()}
    plain = model.float().cuda().to(memory_format=torch.channels_last)
    images = images.cuda().contiguous(memory_format=torch.channels_last)
    facts = trace_step(
        plain, tuple(images.shape), loss=lambda net, x: net(x).float().square().sum(), bf16=bf16
    )
    fuse = fusible(plain, facts)
    assert len(fuse.shifts) == 3
    apart = []
    for shifts in ((), fuse.shifts):
        with (
            fused_layers(plain, replace(fuse, shifts=shifts))(),
            torch.autocast("cuda", torch.bfloat16, enabled=bf16),
        ):
            found = _gradients_of(plain, images)
        apart.append(max(_far(each.cpu(), expected[name]) for name, each in found.items()))
    print(f"from float64: {apart[0]:.1e} with biases apart, {apart[1]:.1e} added by joins")
    assert apart[1] < max(2e-3, 1.5 * apart[0])


def _gradients_of(model: nn.Module, images: Tensor) -> dict[str, Tensor]:
    model.zero_grad(set_to_none=True)
    model(images).double().square().sum().backward()
    return {name: each.grad for name, each in model.named_parameters() if each.grad is not None}


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


def _apart(fused: bool, layer: nn.Module, x: Tensor, grad: Tensor) -> tuple[list[Tensor], float]:
    """Return results and gradients of a layer, and how long both ways take in milliseconds."""
    fuse = (
        Fuse()
        if not fused
        else Fuse(columns=("",))
        if isinstance(layer, nn.Conv2d)
        else Fuse(enlargings=("",))
    )
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    with fused_layers(layer, fuse)():
        for index in range(13):
            if index == 3:
                begin.record()
            layer.zero_grad(set_to_none=True)
            given = x.clone().requires_grad_()
            made = layer(given)
            made.backward(grad)
        end.record()
    torch.cuda.synchronize()
    assert (type(made.grad_fn).__name__ in ("_FoldedBackward", "_EnlargedBackward")) == fused
    found = [made.detach(), given.grad, *(each.grad for each in layer.parameters())]
    return [each for each in found if each is not None], begin.elapsed_time(end) / 10


def _compare(layer: nn.Module, x: Tensor, loose: float) -> None:
    made = layer(x)
    grad = torch.randn_like(made)
    ours, ours_ms = _apart(True, layer, x, grad)
    theirs, theirs_ms = _apart(False, layer, x, grad)
    exact, _ = _apart(False, copy.deepcopy(layer).double(), x.double(), grad.double())
    print(f"{layer} of {tuple(x.shape)}, {x.dtype}: {ours_ms:.2f} ms, torch's own {theirs_ms:.2f} ms")
    for one, other, right in zip(ours, theirs, exact, strict=True):
        assert one.dtype == other.dtype
        ours_last, theirs_last = (
            each.is_contiguous(memory_format=torch.channels_last) for each in (one, other)
        )
        assert ours_last or not theirs_last  # as rows and 1 x 1 are not
        assert _far(one, right) < loose


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(8, 128, 64, 128), (2, 24, 48, 33)])
def test_rows_far_apart(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    conv = nn.Conv2d(shape[1], shape[1], (3, 1), padding=(16, 0), dilation=(16, 16)).cuda().to(dtype)
    x = torch.randn(shape, device="cuda").to(dtype).contiguous(memory_format=torch.channels_last)
    _compare(conv.to(memory_format=torch.channels_last), x, 1e-2 if dtype is torch.bfloat16 else 2e-3)  # TF32


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize(
    ("shape", "scale"), [((8, 256, 45, 60), 4.0), ((2, 40, 33, 47), 2.6), ((4, 256, 1, 1), 50.0)]
)
def test_enlarging(shape: tuple[int, ...], scale: float, align_corners: bool, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    layer = nn.Upsample(scale_factor=scale, mode="bilinear", align_corners=align_corners)
    x = torch.randn(shape, device="cuda").to(dtype).contiguous(memory_format=torch.channels_last)
    _compare(layer, x, 1e-2 if dtype is torch.bfloat16 else 3e-5)


@pytest.mark.parametrize("layer", ["column", "enlarging"])
def test_rows_and_enlarging_under_autocast(layer: str) -> None:
    torch.manual_seed(0)
    if layer == "column":
        last: nn.Module = nn.Conv2d(64, 64, (3, 1), padding=(16, 0), dilation=(16, 16))
    else:
        last = nn.UpsamplingBilinear2d(scale_factor=4)
    net = nn.Sequential(nn.Conv2d(8, 64, 3, padding=1), last).cuda().to(memory_format=torch.channels_last)
    images = torch.randn(4, 8, 32, 40, device="cuda").contiguous(memory_format=torch.channels_last)

    def run(fuse: Fuse) -> list[Tensor]:
        net.zero_grad(set_to_none=True)
        with fused_layers(net, fuse)():
            with torch.autocast("cuda", torch.bfloat16):
                made = net(images)
            made.float().square().mean().backward()
        return [made.detach(), *(each.grad for each in net.parameters() if each.grad is not None)]

    fuse = Fuse(columns=("1",)) if layer == "column" else Fuse(enlargings=("1",))
    ours, again, theirs = run(fuse), run(fuse), run(Fuse())
    for one, two, other in zip(ours, again, theirs, strict=True):
        assert one.dtype == two.dtype == other.dtype
        assert _far(one, other) < 1e-2
    assert torch.equal(ours[0], again[0])
