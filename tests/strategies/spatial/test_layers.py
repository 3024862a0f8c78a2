"""One picture over ranks: results, gradients and buffers of the whole."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import segmentation_models_pytorch as smp
import torch
from tests.ranks.gang import Gang
from torch import Tensor, nn
from torch.nn import functional

from outsize.errors import ModelError, PlanError
from outsize.models import build_model
from outsize.plan.plan import Spatial
from outsize.ranks import ALONE, World
from outsize.strategies.spatial import Spread, shard_of


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
    "group norm": (lambda: nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.ReLU()), 1, 11),
    "instance norm": (lambda: nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.InstanceNorm2d(4, affine=True)), 1, 11),
    "dropout": (lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.Dropout(0.3), nn.Dropout2d(0.5)), 1, 13),
    "batch norm": (lambda: nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU()), 1, 11),
    "unet": (lambda: build_model("unet", num_classes=2, in_channels=3, levels=3, width=4), 4, 46),
    "smp unet resnet18": (
        lambda: smp.Unet("resnet18", encoder_weights=None, decoder_channels=(16, 8, 8, 4, 4), classes=2), 32, 160,
    ),
    "smp unet mobilenet": (
        lambda: smp.Unet("mobilenet_v2", encoder_weights=None, decoder_channels=(16, 8, 8, 4, 4), classes=2), 32, 128,
    ),
}  # fmt: skip


def run(world: World, name: str, grid: tuple[int, int]) -> tuple[Any, ...]:
    """Return this rank's core, its part of the answer, its gradient, its part of those of weights, and buffers."""
    make, stride, height = _NETS[name]
    torch.manual_seed(0)
    net = make().double().train()
    width = height + stride
    images = torch.randn(2, 3, height, width, dtype=torch.float64)
    shard = shard_of(world, Spatial(grid, (height, width), stride))
    core = shard.tile.core
    own = images[:, :, *core.slices].clone().requires_grad_()
    torch.manual_seed(1)
    with nullcontext() if world.is_alone else Spread(shard):
        answer = net(own)
        # a loss that is another one at every pixel, and a sum, so that ranks add up
        loss = torch.dot(answer.square().flatten(), answer.detach().sin().flatten())
        loss.backward()
    assert own.grad is not None
    gradients = {key: each.grad for key, each in net.named_parameters() if each.grad is not None}
    return (
        core,
        answer.detach(),
        own.grad,
        gradients,
        {key: each.clone() for key, each in net.named_buffers()},
    )


def _joined(parts: list[Tensor], grid: tuple[int, int]) -> Tensor:
    rows = [torch.cat(parts[row * grid[1] : (row + 1) * grid[1]], dim=3) for row in range(grid[0])]
    return torch.cat(rows, dim=2)


def _near(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and float((one - other).abs().max()) <= 1e-11 * max(
        1.0, float(other.abs().max())
    )


_GRIDS = ((2, 1), (3, 1), (1, 2), (2, 2))


@pytest.mark.parametrize("grid", _GRIDS, ids=str)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.long if "smp" in name else ()) for name in _NETS]
)
def test_parts_on_ranks_are_the_whole_picture(gang: Gang, name: str, grid: tuple[int, int]) -> None:
    _, answer, gradient, of_weights, buffers = run(ALONE, name, (1, 1))
    parts = gang.run(grid[0] * grid[1], run, name, grid)
    assert _near(_joined([each[1] for each in parts], grid), answer)
    assert _near(_joined([each[2] for each in parts], grid), gradient)
    for key, whole in of_weights.items():
        assert _near(sum((each[3][key] for each in parts), torch.zeros(())), whole), key
    for key, whole in buffers.items():
        assert all(_near(each[4][key].double(), whole.double()) for each in parts), key


def of_replica(world: World) -> Tensor:
    """Return what two ranks, which share one of two pictures, have of it: group norm and means are of one picture."""
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), nn.GroupNorm(2, 4), _Squeeze(), nn.BatchNorm2d(4)
    ).double()
    images = torch.randn(2, 3, 12, 9, dtype=torch.float64)
    shard = shard_of(world, Spatial((2, 1), (12, 9), 4))
    number, core = world.rank // 2, shard.tile.core
    with nullcontext() if world.is_alone else Spread(shard):
        return net(images if world.is_alone else images[number : number + 1, :, *core.slices]).detach()


def test_replicas_that_share_pictures_are_the_whole_batch(gang: Gang) -> None:
    whole, parts = of_replica(World(0, 1)), gang.run(4, of_replica)
    assert _near(torch.cat([_joined(parts[:2], (2, 1)), _joined(parts[2:], (2, 1))]), whole)


def refused(world: World, name: str) -> str:
    nets: dict[str, Any] = {
        "corners": nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True),
        "padded apart": nn.ReflectionPad2d(1),
        "pool to 2": nn.AdaptiveAvgPool2d(2),
        "rows": nn.MaxPool2d(4),
        "far": nn.Conv2d(3, 3, 3, padding=20, dilation=20),
    }
    images = torch.zeros(1, 3, 6 if name == "rows" else 8, 8)
    try:
        with Spread(shard_of(world, Spatial((world.size, 1), (8 * world.size, 8), 8))):
            nets[name](images)
    except (ModelError, PlanError) as error:
        return str(error)
    return "taken"


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("corners", "interpolate by 2, bilinear, align_corners=True"),
        ("padded apart", "padding as a function of its own"),
        ("pool to 2", "pooling to 2"),
        ("rows", "6 rows on a rank before a stride of 4"),
        ("far", "8 rows on a rank, needed at least 20"),
    ],
)
def test_what_looks_at_all_rows_in_another_way_is_refused(gang: Gang, name: str, told: str) -> None:
    first = gang.run(2, refused, name)[0]
    assert told in first
