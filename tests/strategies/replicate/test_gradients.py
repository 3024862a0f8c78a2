"""Ranks that train together: losses, gradients, buffers and weights of one process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from tests.ranks.gang import Gang
from torch import Tensor, nn
from torch.nn import functional

from outsize.data.batch import Batch
from outsize.data.targets import ClassRasters
from outsize.ranks import ALONE, World
from outsize.strategies.replicate import look_across, replicated, share_out

_NUM, _STEPS, _CLASSES = 5, 20, 3
Trained = tuple[list[float], dict[str, Tensor]]


class _Net(nn.Module):
    """Batch norm, dropout of both kinds, and a layer that only some samples use."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(0.3),
            nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.Dropout2d(0.2),
        )  # fmt: skip
        self.rare = nn.Conv2d(8, 8, 1)
        self.never = nn.Conv2d(8, 8, 1)
        self.head = nn.Conv2d(8, _CLASSES, 1)

    def forward(self, images: Tensor) -> Tensor:
        inner = self.body(images)
        is_rare = images.abs().amax((1, 2, 3)) > 10  # the last sample
        if is_rare.any():
            inner = inner + self.rare(inner) * is_rare[:, None, None, None]
        return self.head(inner)  # type: ignore[no-any-return]


def _data() -> tuple[Tensor, Tensor]:
    chance = torch.Generator().manual_seed(1)
    images = torch.randn(_NUM, 3, 12, 12, generator=chance, dtype=torch.float64)
    images[-1, 0, 0, 0] = 20.0
    labels = torch.randint(0, _CLASSES, (_NUM, 12, 12), generator=chance)
    labels[0, :9] = 255  # unequal areas that are ignored
    labels[3] = 255
    return images, labels


_WEIGHTS = torch.tensor([1.0, 0.5, 2.0], dtype=torch.float64)


def _count(labels: Tensor) -> float:
    return float(_WEIGHTS[labels[labels != 255]].sum())


def train(world: World, bucket_bytes: int) -> Trained:
    """Train for some steps."""
    torch.manual_seed(0)
    net = _Net().double()
    look_across(net, share_out(world, _NUM))
    images, labels = _data()
    mine = share_out(world, _NUM).mine
    totals = world.sum({"entropy": _count(labels[mine])})
    batch = Batch(images[mine], labels[mine] != 255, ClassRasters(labels[mine]), totals)

    def plain(part: Batch, *, last: bool) -> Mapping[str, Tensor]:
        logits = net(part.images)
        entropy = functional.cross_entropy(
            logits, part.targets.labels.long(), weight=_WEIGHTS, ignore_index=255, reduction="sum"
        )
        share = entropy / part.totals["entropy"]
        share.backward()
        return {"entropy": share.detach()}

    step = replicated(plain, net, world, bucket_bytes=bucket_bytes)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
    losses = []
    for number in range(_STEPS):
        torch.manual_seed(100 + number)
        losses.append(float(step(batch, last=True)["entropy"]))
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return losses, {name: each.detach().clone() for name, each in net.state_dict().items()}


def _distance(one: Trained, other: Trained) -> float:
    assert list(one[1]) == list(other[1]), "a name has changed"
    apart = [float((one[1][name] - other[1][name]).abs().max()) for name in one[1]]
    return max(*apart, *(abs(a - b) for a, b in zip(one[0], other[0], strict=True)))


@pytest.mark.parametrize("size", [pytest.param(2, marks=pytest.mark.long), 3])
@pytest.mark.parametrize("bucket_bytes", [1, 2000, 10**9])
def test_ranks_train_as_one_process_does(gang: Gang, size: int, bucket_bytes: int) -> None:
    alone = train(ALONE, bucket_bytes)
    for each in gang.run(size, train, bucket_bytes):
        assert _distance(alone, each) < 1e-12
    never = alone[1]["never.weight"]
    torch.manual_seed(0)
    assert torch.equal(never, _Net().double().state_dict()["never.weight"]), "no rank had a gradient for it"


def accumulate(world: World) -> dict[str, Any]:
    """Run one step in two parts and return gradients, and how often something was sent for them."""
    torch.manual_seed(0)
    net = nn.Linear(4, 2).double()
    images = torch.arange(32.0, dtype=torch.float64).view(8, 4)
    mine = share_out(world, 8).mine
    batch = Batch(images[mine], torch.ones(0), ClassRasters(torch.zeros(4)), {"sum": 8.0})

    def plain(part: Batch, *, last: bool) -> Mapping[str, Tensor]:
        share = net(part.images).square().sum() / part.totals["sum"]
        share.backward()
        return {"sum": share.detach()}

    step = replicated(plain, net, world)
    step(batch.part(slice(0, 2)), last=False)
    before = [each.grad.clone() for each in net.parameters() if each.grad is not None]
    step(batch.part(slice(2, 4)), last=True)
    return {"before": before, "after": [each.grad for each in net.parameters()]}


def test_parts_are_summed_with_the_last_one_only(gang: Gang) -> None:
    first, second = gang.run(2, accumulate)
    assert not torch.equal(first["before"][0], second["before"][0]), "nothing is sent before the last part"
    torch.manual_seed(0)
    net = nn.Linear(4, 2).double()
    (net(torch.arange(32.0, dtype=torch.float64).view(8, 4)).square().sum() / 8).backward()
    for own, each, other in zip(net.parameters(), first["after"], second["after"], strict=True):
        assert own.grad is not None
        assert torch.allclose(own.grad, each, rtol=1e-14)
        assert torch.equal(each, other)
