"""What a step on parts of pictures computes and holds: no pixel twice, and little more than its part of the memory."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from tests.ranks.gang import Gang
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from outsize.data.batch import Batch
from outsize.data.targets import ClassRasters
from outsize.errors import ModelError
from outsize.measure.tracing import record
from outsize.models import build_model
from outsize.plan.cost import StepCost
from outsize.plan.plan import Spatial, unplanned
from outsize.ranks import ALONE, World
from outsize.strategies.compose import compose
from outsize.strategies.replicate import look_across, share_out
from outsize.strategies.spatial import borders_of, refuse_apart, shard_of
from outsize.strategies.step import LossParts
from outsize.tiles.grid import redundancy
from outsize.tiles.halo import Halo, Reach

_PX = 192
_HALO = Halo(Reach(22, 22), Reach(22, 22), 4)


class _Convolved(TorchDispatchMode):
    """Counts the pixels that convolutions make in forward, each by its channels."""

    num = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if func is torch.ops.aten.convolution.default:
            self.num += found.numel()
        return found


def _sums(_: nn.Module, answer: Tensor, batch: Batch) -> dict[str, Tensor]:
    labels = batch.targets.labels.long()  # type: ignore[attr-defined]
    return {"entropy": nn.functional.cross_entropy(answer, labels, reduction="sum", ignore_index=255)}


_TERMS = LossParts(lambda _, batch: (batch.images,), _sums)


def _spatial(size: int, *, exchanges: bool) -> Spatial:
    spatial = Spatial((size, 1), (_PX, _PX), 4)
    return spatial if exchanges else Spatial((size, 1), (_PX, _PX), 4, (24, 24), (24, 24))


def step_of(world: World, norm: str, *, exchanges: bool) -> tuple[int, int, dict[str, Tensor]]:
    """Return the pixels that a step of this rank's part convolves, its peak in bytes, and all gradients."""
    torch.manual_seed(0)
    net = build_model("unet", num_classes=3, in_channels=3, levels=3, width=8, norm=norm).double().train()
    images = torch.randn(1, 3, _PX, _PX, dtype=torch.float64)
    labels = torch.randint(0, 3, (1, _PX, _PX), dtype=torch.uint8)
    batch = Batch(images, labels < 3, ClassRasters(labels), {"entropy": float(_PX * _PX)})
    plan, share = unplanned(), None
    if not world.is_alone:
        spatial = _spatial(world.size, exchanges=exchanges)
        tile = spatial.tiles()[world.rank]
        batch = batch.crop(tile.read, tile.core).each(torch.clone)
        plan, share = unplanned(spatial=spatial), share_out(world, 1, 1, world.size)
        look_across(net, share)
    step = compose(net, _TERMS, plan, bf16=False, share=share)
    with _Convolved() as convolved:
        step(batch, last=True)
    gradients = {name: each.grad.clone() for name, each in net.named_parameters() if each.grad is not None}
    net.zero_grad(set_to_none=True)
    facts = record(
        lambda: step(batch, last=True),
        net,
        optimizer=None,
        given=[*batch.tensors()],
        training=True,
        on_cuda=False,
    )
    lasting = sum(each.numel() * each.element_size() for each in net.parameters())
    return convolved.num, StepCost(facts).peak_bytes() - lasting, gradients


@pytest.mark.parametrize("size", [2, 3])
def test_exchange_computes_nothing_twice_in_its_part_of_the_memory(gang: Gang, size: int) -> None:
    pixels, peak_bytes, gradients = step_of(ALONE, "batch", exchanges=True)
    parts = gang.run(size, _exchanging, "batch")
    assert sum(each[0] for each in parts) <= 1.02 * pixels
    assert max(each[1] for each in parts) <= (0.6 if size == 2 else 0.4) * peak_bytes
    for name, each in gradients.items():
        assert torch.allclose(parts[0][2][name], each, atol=1e-12)


def _exchanging(world: World, norm: str) -> tuple[int, int, dict[str, Tensor]]:
    return step_of(world, norm, exchanges=True)


def _recomputing(world: World, norm: str) -> tuple[int, int, dict[str, Tensor]]:
    return step_of(world, norm, exchanges=False)


def test_halos_computed_anew_are_those_of_the_plan_to_the_pixel(gang: Gang) -> None:
    pixels, _, gradients = step_of(ALONE, "none", exchanges=False)
    parts = gang.run(2, _recomputing, "none")
    predicted = redundancy(_spatial(2, exchanges=False).tiles(), _PX, _PX)
    assert sum(each[0] for each in parts) == predicted * pixels
    for name, each in gradients.items():
        assert torch.allclose(parts[1][2][name], each, atol=1e-12)


def _loss(net: nn.Module, images: Tensor) -> Tensor:
    return net(images).sum()


def test_what_would_be_sent_is_known_before() -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 2, 1))
    # a row of 3 channels up and one down, of 16 columns
    assert borders_of(net, Spatial((2, 1), (32, 16), 1), 3, _loss) == (1, 2 * 3 * 16 * 4)
    told = borders_of(nn.AdaptiveMaxPool2d(2), Spatial((2, 1), (32, 16), 1), 3, _loss)
    assert isinstance(told, str)
    assert "adaptive_max_pool2d" in told


class _Shifted(nn.Module):
    """Looks at the row above by a slice, of which nobody knows."""

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs + torch.cat((inputs[:, :, :1], inputs[:, :, :-1]), dim=2)


def tried(world: World, is_known: bool) -> str:
    net: nn.Module = nn.Sequential(nn.Conv2d(3, 3, 3, padding=1), nn.ReLU() if is_known else _Shifted())
    try:
        refuse_apart(net, Spatial((2, 1), (64, 32), 1), world, 3)
    except ModelError as error:
        return str(error)
    return ""


def test_a_model_whose_parts_are_not_the_whole_is_refused(gang: Gang) -> None:
    assert gang.run(2, tried, True) == ["", ""]
    assert all("is not the whole picture" in each for each in gang.run(2, tried, False))


def test_parts_of_a_picture_know_their_neighbours() -> None:
    own = shard_of(World(3, 6), Spatial((2, 3), (32, 48), 4))
    assert (own.rows.before, own.rows.after, own.cols.before, own.cols.after) == (0, None, None, 4)
    assert (own.tile.core.row, own.tile.core.col) == (16, 0)
    with nullcontext():
        assert shard_of(World(4, 6), Spatial((3, 1), (32, 48), 4)).rows.before == 3
