"""Backward operations know the layer that they find gradients for."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from outsize.measure.tracing.recorder import record
from outsize.measure.tracing.step import trace_step
from outsize.models.unet import UNet
from outsize.plan.step import StepFacts, StepOp


def _step(model: nn.Module, shape: tuple[int, ...]) -> StepFacts:
    return trace_step(model, shape, loss=lambda net, images: net(images).square().sum(), device="cpu")


def _backward(facts: StepFacts) -> list[StepOp]:
    return [op for op in facts.ops if op.backward]


def test_every_convolution_of_a_unet_has_its_backward_in_its_own_layer() -> None:
    facts = _step(UNet(num_classes=3, in_channels=2, width=4, levels=4), (1, 2, 32, 32))
    forward = Counter(op.layer for op in facts.ops if op.kind == "convolution")
    back = Counter(op.layer for op in facts.ops if op.kind == "convolution_backward")
    assert forward == back
    # what is left of the loss alone has no layer
    lost = {op.kind for op in _backward(facts) if not op.layer[0]}
    assert lost <= {"expand", "ones_like", "mul", "pow", "mul_", "sum"}


def test_layers_come_back_in_reverse_order() -> None:
    facts = _step(nn.Sequential(*(nn.Conv2d(2, 2, 3) for _ in range(4))), (1, 2, 32, 32))
    order = [op.layer[0] for op in _backward(facts) if op.kind == "convolution_backward"]
    assert order == ["3", "2", "1", "0"]


class _Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.shared, self.last = nn.Conv2d(2, 2, 1), nn.Conv2d(2, 2, 1)

    def forward(self, pixels: Tensor) -> Tensor:
        return self.last(self.shared(self.shared(pixels))) + pixels  # type: ignore[no-any-return]


def test_calls_of_one_layer_are_told_apart() -> None:
    facts = _step(_Twice(), (1, 2, 8, 8))
    order = [op.layer for op in _backward(facts) if op.kind == "convolution_backward"]
    assert order == [("last", 0), ("shared", 1), ("shared", 0)]


class _Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)  # type: ignore[attr-defined]
        return x * x

    @staticmethod
    def backward(ctx: object, grad: Tensor) -> Tensor:  # type: ignore[override]
        (x,) = ctx.saved_tensors  # type: ignore[attr-defined]
        return torch.cos(2 * x) * grad


class _Own(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return _Square.apply(x)  # type: ignore[no-any-return]


class _Again(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Conv2d(2, 2, 1), nn.Tanh())

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.inner, x, use_reentrant=False)  # type: ignore[no-any-return]


@pytest.mark.parametrize("module", [_Own(), _Again()])
def test_functions_of_others_and_blocks_run_again_are_known(module: nn.Module) -> None:
    net = nn.Sequential(nn.Conv2d(2, 2, 1), module, nn.Conv2d(2, 2, 1))
    images = torch.randn(1, 2, 8, 8)
    facts = record(lambda: net(images).sum().backward(), net, given=[images])
    inner = [op for op in _backward(facts) if op.kind in ("cos", "tanh", "tanh_backward")]
    assert inner
    assert all(op.layer[0].startswith("1") for op in inner)
