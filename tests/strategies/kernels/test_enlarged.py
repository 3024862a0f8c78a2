"""Bilinear enlarging with a backward by products: torch's results and gradients, and facts that see the products."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from outsize.measure.tracing.step import trace_step
from outsize.models import build_model
from outsize.models.resized import Resized
from outsize.plan.cost import StepCost
from outsize.plan.memory.recompute import find_recipes
from outsize.plan.plan import Fuse
from outsize.plan.step import StepFacts
from outsize.strategies.kernels import enlarged, fused_layer
from outsize.strategies.kernels.enlarged import back_by_products
from outsize.strategies.kernels.layers import can_be_fused, fused_layers, fusible
from outsize.strategies.saved.hooks import SavedTensors


@pytest.fixture(autouse=True)
def _on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused_layer, "_ON_CPU", True)


def _pictures(shape: tuple[int, ...], dtype: torch.dtype = torch.float64, *, last: bool = True) -> Tensor:
    torch.manual_seed(3)
    layout = torch.channels_last if last else torch.contiguous_format
    return torch.randn(shape, dtype=dtype).contiguous(memory_format=layout)


def _loss(model: nn.Module, images: Tensor) -> Tensor:
    loss: Tensor = model(images).float().square().mean()
    return loss


_WAYS: list[tuple[tuple[int, int], dict[str, Any]]] = [
    ((5, 7), {"scale_factor": 2.0}),
    ((5, 7), {"scale_factor": (2.7, 3.3)}),  # where the size does not tell the scale
    ((5, 7), {"scale_factor": (2.7, 3.3), "recompute_scale_factor": True}),
    ((5, 7), {"size": (11, 13)}),
    ((1, 1), {"size": (6, 5)}),
    ((4, 3), {"size": (4, 9)}),
    ((5, 7), {"size": (3, 4)}),  # less: not fused by itself, but the same
    ((3, 4), {"size": (1, 8)}),
]


@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize(("sides", "how"), _WAYS)
def test_the_way_back_is_that_of_torch(
    sides: tuple[int, int], how: dict[str, Any], align_corners: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(enlarged, "pays", lambda *_: True)
    monkeypatch.setattr("outsize.strategies.kernels.layers.pays", lambda *_: True)
    monkeypatch.setattr("outsize.strategies.kernels.layers.suits", lambda _: True)
    layer = nn.Upsample(mode="bilinear", align_corners=align_corners, **how)
    for last in (True, False):
        x = _pictures((2, 3, *sides), last=last).requires_grad_()
        theirs = layer(x)
        grad = torch.randn_like(theirs)
        (wanted,) = torch.autograd.grad(theirs, x, grad)
        with fused_layers(layer, Fuse(enlargings=("",)))():
            ours = layer(x)
            assert "Enlarged" in type(ours.grad_fn).__name__
            (found,) = torch.autograd.grad(ours, x, grad)
            assert torch.autograd.gradcheck(layer, (x,), check_undefined_grad=False)
        assert torch.equal(ours, theirs)
        torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)
        assert found.is_contiguous(memory_format=torch.channels_last)
        assert not found._is_view()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_shares_are_those_of_torch_in_short_numbers(dtype: torch.dtype) -> None:
    x = _pictures((2, 33, 9, 11), dtype).requires_grad_()
    wide = x.detach().double().requires_grad_()
    settings: dict[str, Any] = {"scale_factor": (3.1, 2.3), "mode": "bilinear"}
    theirs, made = F.interpolate(wide, **settings), F.interpolate(x, **settings)
    ours = back_by_products(x, made, (3.1, 2.3), align_corners=False)
    grad = torch.randn_like(made)
    theirs.backward(grad.double())
    ours.backward(grad)
    assert x.grad is not None
    assert wide.grad is not None
    far = float((x.grad.double() - wide.grad).norm() / wide.grad.norm())
    assert far < (1e-6 if dtype is torch.float32 else 5e-3)
    assert x.grad.dtype == dtype


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize(("side", "out"), [(128, 256), (32, 256), (45, 90), (9, 28)])
def test_no_gradient_is_lost_or_added_in_short_numbers(
    side: int, out: int, align_corners: bool, dtype: torch.dtype
) -> None:
    short, exact = (
        enlarged._weights(side, out, None, align_corners, each, torch.device("cpu")).double()
        for each in (dtype, torch.float32)
    )
    assert torch.equal(short.sum(0), torch.ones(out, dtype=torch.float64))  # the two shares of each result
    step = torch.finfo(dtype).eps / 4
    assert float((short - exact).abs().max()) <= 1.001 * step
    assert float((short.sum(1) / exact.sum(1) - 1).abs().max()) <= 2 * step  # all of them one way
    torch.manual_seed(0)
    grad = torch.rand(1, 32, out, 8).to(dtype).contiguous(memory_format=torch.channels_last)
    found = enlarged._gradient(grad, torch.Size((1, 32, side, 8)), (None, None), align_corners=align_corners)
    assert float(found.double().mean() * side / (grad.double().mean() * out)) == pytest.approx(1, abs=1e-3)


def test_a_part_of_a_gradient_is_not_copied_and_results_may_be_changed_in_place() -> None:
    class Beside(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.up = nn.Conv2d(3, 32, 1), nn.UpsamplingBilinear2d(scale_factor=4)
            self.last = nn.Conv2d(35, 2, 1)

        def forward(self, images: Tensor) -> Tensor:
            wide = self.up(F.avg_pool2d(self.first(images), 4)).relu_()
            return torch.as_tensor(self.last(torch.cat((wide, images), dim=1)))

    plain = Beside().to(memory_format=torch.channels_last)
    ours, images = copy.deepcopy(plain), _pictures((2, 3, 16, 20), torch.float32)
    alone = trace_step(plain, tuple(images.shape), loss=_loss)
    fuse = fusible(plain, alone)
    assert fuse == Fuse(enlargings=("up",))
    facts = _traced(plain, images, fuse)
    kinds = [op.kind for op in facts.ops if op.backward]
    assert kinds.count("bmm") == 2
    assert "upsample_bilinear2d_backward" not in kinds
    before = [op.kind for op in alone.ops if op.backward]
    assert all(kinds.count(kind) == before.count(kind) for kind in ("clone", "copy_", "_to_copy"))
    with fused_layers(ours, fuse)():
        _loss(ours, images).backward()
    _loss(plain, images).backward()
    for one, other in zip(ours.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)


def _traced(model: nn.Module, images: Tensor, fuse: Fuse, **settings: Any) -> StepFacts:
    shape = tuple(images.shape)
    return trace_step(model, shape, loss=_loss, around=lambda twin: fused_layers(twin, fuse)(), **settings)


def test_facts_count_products_and_what_lies_between_them() -> None:
    layer = nn.Sequential(nn.Conv2d(3, 32, 1), nn.UpsamplingBilinear2d(scale_factor=4))
    layer = layer.to(memory_format=torch.channels_last)
    images = _pictures((2, 3, 6, 5), torch.float32)
    facts = _traced(layer, images, Fuse(enlargings=("1",)))
    first, second = (op for op in facts.ops if op.kind == "bmm")
    by_index = {each.index: each for each in facts.storages}
    between = by_index[first.outputs[0]]
    assert between.size_bytes == 2 * 24 * 5 * 32 * 4
    assert between.index in second.inputs
    assert between.born == first.index
    assert between.dies <= next(op.index for op in facts.ops if op.kind == "convolution_backward")
    assert by_index[second.outputs[0]].size_bytes == 2 * 6 * 5 * 32 * 4
    assert first.flops == 2 * (2 * 24) * 5 * 20 * 32
    assert second.flops == 2 * 2 * 6 * 24 * (5 * 32)


def test_under_autocast_the_gradient_comes_back_as_short_as_what_went_in() -> None:
    layer = nn.UpsamplingBilinear2d(scale_factor=2)
    x = _pictures((2, 32, 6, 5), torch.bfloat16).requires_grad_()
    made = F.interpolate(x.float(), scale_factor=2, mode="bilinear", align_corners=True)  # as CUDA's does
    back_by_products(x, made, (2.0, 2.0), align_corners=True).square().sum().backward()
    assert x.grad is not None
    assert x.grad.dtype == torch.bfloat16
    net = nn.Sequential(nn.Conv2d(3, 32, 1), layer).to(memory_format=torch.channels_last)
    facts = _traced(
        net, _pictures((2, 3, 6, 5), torch.float32), Fuse(enlargings=("1",)), bf16=True, device="cuda"
    )
    assert [op.dtype for op in facts.ops if op.kind == "bmm"] == ["float32"] * 2


@pytest.mark.parametrize("layer", [nn.Upsample(scale_factor=2), nn.UpsamplingNearest2d(scale_factor=2)])
def test_only_bilinear_ones(layer: nn.Module) -> None:
    assert not can_be_fused(layer)
    assert can_be_fused(nn.Upsample(scale_factor=2, mode="bilinear"))
    assert can_be_fused(Resized(align_corners=True))


@pytest.mark.parametrize(
    ("shape", "scale", "fused"),
    [
        ((2, 32, 4, 5), 2, True),
        ((2, 31, 4, 5), 2, False),
        ((2, 32, 2, 257), 2, False),
        ((2, 32, 257, 2), 2, False),
        ((2, 32, 8, 8), 0.5, False),
    ],
)
def test_products_only_where_they_pay(shape: tuple[int, ...], scale: float, fused: bool) -> None:
    layer = nn.Upsample(scale_factor=scale, mode="bilinear")
    with fused_layers(layer, Fuse(enlargings=("",)))():
        made = layer(_pictures(shape, torch.float32).requires_grad_())
    assert ("Enlarged" in type(made.grad_fn).__name__) == fused


def _net(name: str, **options: Any) -> nn.Module:
    torch.manual_seed(0)
    model = build_model(name, num_classes=3, in_channels=4, **options)
    return model.to(memory_format=torch.channels_last).train()


@pytest.mark.parametrize(
    ("name", "options", "found"),
    [
        ("unet", {"width": 32, "levels": 2, "upsampling": "bilinear"}, 1),
        ("gscnn", {"width": 8}, 2),  # resize_deep and the pyramid's
        ("smp:DeepLabV3Plus/resnet18", {}, 1),
    ],
)
def test_a_step_of_a_network_is_the_plain_step(name: str, options: dict[str, Any], found: int) -> None:
    images = _pictures((2, 5 if name == "gscnn" else 4, 32, 48), torch.float32)
    plain, ours = _net(name, **options), _net(name, **options)
    fuse = fusible(plain, trace_step(plain, tuple(images.shape), loss=_loss))
    fuse = Fuse(enlargings=fuse.enlargings)
    kinds = [op.kind for op in _traced(plain, images, fuse).ops]
    assert kinds.count("bmm") == 2 * found
    for model, taken in ((plain, Fuse()), (ours, fuse)):
        torch.manual_seed(1)
        with fused_layers(model, taken)():
            _loss(model, images).backward()
    for one, other in zip(ours.parameters(), plain.parameters(), strict=True):
        if other.grad is not None:
            assert (
                float((torch.as_tensor(one.grad) - other.grad).norm())
                <= 1e-4 * float(other.grad.norm()) + 1e-8
            )


def test_what_was_enlarged_can_be_made_again() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.up = nn.Conv2d(4, 32, 1), nn.Upsample(scale_factor=4, mode="bilinear")
            self.second, self.relu = nn.Conv2d(32, 3, 3), nn.ReLU()

        def forward(self, images: Tensor) -> Tensor:
            return torch.as_tensor(self.second(self.up(self.relu(self.first(images)))))

    plain, images = Net().to(memory_format=torch.channels_last), _pictures((2, 4, 8, 8), torch.float32)
    ours, fuse = copy.deepcopy(plain), Fuse(enlargings=("up",))
    facts = _traced(plain, images, fuse, device="cpu")
    recipes = [each for each in find_recipes(StepCost(facts), lambda _: 1.0) if not each.costly]
    chosen = frozenset(
        key
        for each in recipes
        for key in each.keys
        if [op.kind for op in each.ops] == ["upsample_bilinear2d"]
    )
    assert [key[0] for key in chosen] == ["second"]
    with fused_layers(plain, fuse)():
        _loss(plain, images).backward()
    with fused_layers(ours, fuse)(), SavedTensors(ours, chosen) as saved:
        for _ in range(3):  # watched, then as learnt
            ours.zero_grad()
            with saved.forward():
                loss = _loss(ours, images)
            loss.backward()
            assert saved.stats is not None
            assert saved.stats.num_recomputed == 1
            assert saved.stats.unmet == saved.stats.refused == frozenset()
            for one, other in zip(ours.parameters(), plain.parameters(), strict=True):
                assert torch.equal(torch.as_tensor(one.grad), torch.as_tensor(other.grad))
