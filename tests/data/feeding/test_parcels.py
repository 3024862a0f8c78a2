"""Tensors handed over in memory that stays: they arrive as they were, and places are used again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from outsize.data.batch import Batch
from outsize.data.feeding import parcels
from outsize.data.feeding.parcels import Packer, forget
from outsize.data.opened.decoded import can_share_decoded
from outsize.data.targets import ClassRasters, ObjectLists

pytestmark = pytest.mark.skipif(not can_share_decoded(), reason="no memory to share without a file system")


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    yield
    forget("a")
    assert not parcels._mapped


def _batch(number: int, side: int = 5) -> Batch:
    images = torch.arange(3 * side * side).view(1, 3, side, side) + number
    valid = torch.arange(side * side).view(1, side, side) % 2 == 0
    maps = {"edges": (images[:, 0] % 2).to(torch.uint8)}
    return Batch(
        images,
        valid,
        ObjectLists(ClassRasters(images[:, 1].to(torch.uint8)), ((),)),
        {"loss": 2.0},
        maps,
        (number,),
    )


def _same(one: Batch, other: Batch) -> bool:
    def parts(batch: Batch) -> list[Tensor]:
        return list(batch.tensors())

    kept = [(each.totals, each.targets.objects, each.keys, list(each.maps)) for each in (one, other)]
    pairs = zip(parts(one), parts(other), strict=True)
    return kept[0] == kept[1] and all(a.dtype == b.dtype and torch.equal(a, b) for a, b in pairs)


def test_what_arrives_is_what_was_sent() -> None:
    packer = Packer("a", 3)
    opened, counts = packer.pack((_batch(7), np.arange(4))).open(Tensor.clone)
    assert _same(opened, _batch(7))
    assert counts.tolist() == [0, 1, 2, 3]


def test_as_many_as_there_are_places_are_kept_apart() -> None:
    packer = Packer("a", 3)
    for first in range(0, 9, 3):
        sent = [packer.pack(_batch(number)) for number in range(first, first + 3)]
        assert len({each.start for each in sent}) == 3
        for number, each in enumerate(sent, first):
            assert _same(each.open(Tensor.clone), _batch(number))


def test_memory_is_made_and_opened_once() -> None:
    packer = Packer("a", 2)
    packer.pack(_batch(0)).open(Tensor.clone)
    num_open = len(list(Path("/proc/self/fd").iterdir()))
    sent = [packer.pack(_batch(number)) for number in range(10)]
    for each in sent:
        each.open(Tensor.clone)
    assert len({each.file for each in sent}) == 1
    assert len(list(Path("/proc/self/fd").iterdir())) == num_open


def test_an_item_that_needs_more_gets_more() -> None:
    packer = Packer("a", 2)
    small, large, after = packer.pack(_batch(1)), packer.pack(_batch(2, side=200)), packer.pack(_batch(3))
    assert small.file != large.file == after.file
    for number, (side, each) in enumerate(((5, small), (200, large), (5, after)), 1):
        assert _same(each.open(Tensor.clone), _batch(number, side))


def test_without_tensors_or_with_empty_or_strided_ones() -> None:
    packer = Packer("a", 2)
    assert packer.pack({"b": 1}).open(Tensor.clone) == {"b": 1}
    items = (torch.empty(0, 3), torch.arange(6).view(2, 3).t(), torch.tensor(4.5))
    found = packer.pack(items).open(Tensor.clone)
    assert [each.shape for each in found] == [each.shape for each in items]
    assert all(torch.equal(one, other) for one, other in zip(found, items, strict=True))


def test_to_be_page_locked_a_tensor_is_copied_by_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    pinned = []
    monkeypatch.setattr(Tensor, "pin_memory", lambda tensor: pinned.append(tensor) or tensor.clone())
    assert _same(Packer("a", 2).pack(_batch(4)).pin_memory(), _batch(4))
    assert len(pinned) == 4


def test_an_owners_memory_is_let_go() -> None:
    sent = Packer("a", 2).pack(_batch(1))
    sent.open(Tensor.clone)
    mapped = Path("/proc/self/maps")
    before = mapped.read_text().count("memfd:parcels")
    forget("a")
    assert mapped.read_text().count("memfd:parcels") < before
