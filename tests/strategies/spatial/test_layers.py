"""One picture over ranks: results, gradients and buffers of the whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import segmentation_models_pytorch as smp
import torch
from tests.ranks.gang import Gang
from torch import Tensor, nn
from torch.nn import functional

from outsize.errors import ModelError, PlanError
from outsize.models import build_model
from outsize.ranks import ALONE, World
from outsize.strategies.spatial import rows_of, spread_rows


class _Squeeze(nn.Module):
    def forward(self, inputs: Tensor) -> Tensor:
        return inputs * functional.adaptive_avg_pool2d(inputs, 1).sigmoid() + inputs.mean(
            (2, 3), keepdim=True
        )


# name -> (network, stride, height)
_NETS: dict[str, tuple[Callable[[], nn.Module], int, int]] = {
    "conv 3": (lambda: nn.Conv2d(3, 4, 3, padding=1), 1, 13),
    "conv 3 without padding": (lambda: nn.Conv2d(3, 4, 3), 1, 13),
    "conv 7 of stride 2": (lambda: nn.Conv2d(3, 4, 7, stride=2, padding=3), 2, 23),
    "conv 1 of stride 2": (lambda: nn.Conv2d(3, 4, 1, stride=2), 2, 22),
    "conv 3 dilated": (lambda: nn.Conv2d(3, 4, 3, padding=3, dilation=3), 1, 17),
    "conv same": (lambda: nn.Conv2d(3, 4, (5, 3), padding="same"), 1, 14),
    "depthwise of stride 2": (lambda: nn.Conv2d(3, 3, 5, stride=2, padding=2, groups=3), 2, 19),
    "max pool 3 of stride 2": (lambda: nn.MaxPool2d(3, 2, 1), 2, 21),
    "max pool to ceiling": (lambda: nn.MaxPool2d(2, 2, ceil_mode=True), 2, 21),
    "average pool": (lambda: nn.AvgPool2d(2), 2, 21),
    "transposed 2": (lambda: nn.ConvTranspose2d(3, 4, 2, stride=2), 1, 9),
    "transposed 3 of stride 2": (lambda: nn.ConvTranspose2d(3, 4, 3, stride=2, padding=1, output_padding=1), 1, 9),
    "transposed 4 of stride 2": (lambda: nn.ConvTranspose2d(3, 4, 4, stride=2, padding=1), 1, 9),
    "transposed 1 of stride 2": (lambda: nn.ConvTranspose2d(3, 4, 1, stride=2), 1, 9),
    "nearest": (lambda: nn.Upsample(scale_factor=2), 1, 9),
    "bilinear": (lambda: nn.Upsample(scale_factor=4, mode="bilinear"), 1, 9),
    "squeeze": (_Squeeze, 1, 11),
    "batch norm": (lambda: nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU()), 1, 11),
    "unet": (lambda: build_model("unet", num_classes=2, in_channels=3, levels=3, width=4), 4, 44),
    "smp unet resnet18": (
        lambda: smp.Unet("resnet18", encoder_weights=None, decoder_channels=(16, 8, 8, 4, 4), classes=2), 32, 160,
    ),
    "smp unet mobilenet": (
        lambda: smp.Unet("mobilenet_v2", encoder_weights=None, decoder_channels=(16, 8, 8, 4, 4), classes=2), 32, 128,
    ),
}  # fmt: skip


def run(world: World, name: str) -> tuple[Tensor, Tensor, dict[str, Tensor], dict[str, Tensor]]:
    """Return this rank's rows of the answer, the gradient of its rows, its part of those of weights, and buffers."""
    make, stride, height = _NETS[name]
    torch.manual_seed(0)
    net = make().double().train()
    images = torch.randn(2, 3, height, 64, dtype=torch.float64)
    rows = rows_of(height, world, stride)
    own = images[:, :, rows.start : rows.stop].clone().requires_grad_()
    if world.is_alone:
        answer = net(own)
    else:
        with spread_rows(rows):
            answer = net(own)
    # a loss that is another one at every pixel, and a sum, so that ranks add up
    answer.square().mul(answer.detach().sin()).sum().backward()
    assert own.grad is not None
    gradients = {key: each.grad for key, each in net.named_parameters() if each.grad is not None}
    return answer.detach(), own.grad, gradients, {key: each.clone() for key, each in net.named_buffers()}


def _near(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and float((one - other).abs().max()) <= 1e-11 * max(
        1.0, float(other.abs().max())
    )


@pytest.mark.parametrize(
    ("name", "size"),
    [
        pytest.param(name, size, marks=pytest.mark.long if size == 3 and "smp" in name else ())
        for name in _NETS
        for size in (2, 3)
    ],
)
def test_rows_on_ranks_are_the_whole_picture(gang: Gang, name: str, size: int) -> None:
    answer, gradient, of_weights, buffers = run(ALONE, name)
    parts = gang.run(size, run, name)
    assert _near(torch.cat([each[0] for each in parts], dim=2), answer)
    assert _near(torch.cat([each[1] for each in parts], dim=2), gradient)
    for key, whole in of_weights.items():
        assert _near(sum((each[2][key] for each in parts), torch.zeros(())), whole), key
    for key, whole in buffers.items():
        assert all(_near(each[3][key].double(), whole.double()) for each in parts), key


def refused(world: World, name: str) -> str:
    nets: dict[str, Any] = {
        "corners": nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True),
        "group norm": nn.GroupNorm(1, 3),
        "dropout": nn.Dropout2d(0.5),
        "pool to 2": nn.AdaptiveAvgPool2d(2),
        "rows": nn.MaxPool2d(4),
        "far": nn.Conv2d(3, 3, 3, padding=20, dilation=20),
    }
    images = torch.zeros(1, 3, 6 if name == "rows" else 8, 8)
    try:
        with spread_rows(rows_of(8 * world.size, world, 8)):
            nets[name](images)
    except (ModelError, PlanError) as error:
        return str(error)
    return "taken"


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("corners", "interpolate by 2, bilinear, align_corners=True"),
        ("group norm", "torch's group_norm"),
        ("dropout", "found dropout"),
        ("pool to 2", "pooling to 2"),
        ("rows", "6 rows on a rank before a stride of 4"),
        ("far", "8 rows on a rank, needed at least 20"),
    ],
)
def test_what_looks_at_all_rows_in_another_way_is_refused(gang: Gang, name: str, told: str) -> None:
    first = gang.run(2, refused, name)[0]
    assert told in first


def test_a_picture_with_fewer_strides_than_ranks_is_refused() -> None:
    with pytest.raises(PlanError, match="64 rows, needed at least 96 rows"):
        rows_of(64, World(0, 3), 32)
    own = [rows_of(100, World(rank, 3), 16) for rank in range(3)]
    assert [(each.start, each.stop) for each in own] == [(0, 32), (32, 64), (64, 100)]
