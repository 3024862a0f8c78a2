"""Samples, batches and their totals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional

from outsize.data.batch import Batch, collate, reduced
from outsize.data.object import Object
from outsize.data.sample import IGNORE, Sample
from outsize.data.targets import ClassRaster, ClassRasters, ObjectList
from outsize.tasks.segment.terms import count_terms
from outsize.tiles.window import Window


def _samples() -> list[Sample]:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, (3, 5, 6)).astype(np.uint8)
    labels[0] = IGNORE
    images = rng.integers(0, 60000, (3, 2, 5, 6)).astype(np.uint16)
    valid = rng.random((3, 5, 6)) < 0.8
    return [
        Sample(image, inside, ClassRaster(own))
        for image, inside, own in zip(images, valid, labels, strict=True)
    ]


def _batch() -> Batch:
    return collate(_samples(), lambda targets, _: count_terms("cross_entropy", targets))


def test_collate_stacks_in_order_and_counts_the_labels() -> None:
    samples, batch = _samples(), _batch()
    assert batch.images.dtype == torch.uint16
    assert batch.images.shape == (3, 2, 5, 6)
    for number, sample in enumerate(samples):
        np.testing.assert_array_equal(batch.images[number], sample.image)
        np.testing.assert_array_equal(batch.valid[number], sample.valid)
        np.testing.assert_array_equal(batch.targets.labels[number], sample.target.labels)
    assert batch.totals == {"cross_entropy": 60.0}


def test_a_part_keeps_the_totals_of_the_whole() -> None:
    batch = _batch()
    part = batch.part(slice(1, 3))
    assert part.totals == batch.totals
    np.testing.assert_array_equal(part.images, batch.images[1:3])
    np.testing.assert_array_equal(part.targets.labels, batch.targets.labels[1:3])
    np.testing.assert_array_equal(part.valid, batch.valid[1:3])


def test_a_copy_on_a_device_has_everything() -> None:
    there = _batch().to(torch.device("meta"))
    assert {there.images.device.type, there.valid.device.type, there.targets.labels.device.type} == {"meta"}
    assert there.totals == {"cross_entropy": 60.0}


def test_maps_are_made_once_and_go_wherever_samples_go() -> None:
    samples = _samples()
    seen = []

    def make(images: torch.Tensor, valid: torch.Tensor, targets: ClassRasters) -> dict[str, torch.Tensor]:
        return {"low": (images[:, 0].float() < 30000).to(torch.uint8) * valid, "labels": targets.labels}

    def count(targets: ClassRasters, maps: Mapping[str, torch.Tensor]) -> dict[str, float]:
        seen.append(maps)
        return {"loss": float(targets.labels.numel())}

    batch = collate(samples, count, make)
    assert seen == [batch.maps]
    assert list(batch.maps) == ["low", "labels"]
    part = batch.part(slice(1, 2))
    assert torch.equal(part.maps["labels"], batch.targets.labels[1:2])
    there = batch.to(torch.device("meta"))
    assert {each.device.type for each in there.maps.values()} == {"meta"}
    twice = batch.each(lambda tensor: tensor.repeat_interleave(2, dim=0))
    assert len(twice.images) == len(twice.maps["low"]) == 6


@pytest.mark.parametrize(("height", "width"), [(16, 24), (17, 20), (13, 12)])
def test_reduced_labels_are_the_nearest_to_the_middle_of_their_square(height: int, width: int) -> None:
    labels = torch.arange(height * width).view(1, height, width)
    assert reduced(labels, 1) is labels
    found = reduced(labels, 8)
    assert found[0, 0, 0] == 4 * width + 4
    whole = height // 8, width // 8
    nearest = functional.interpolate(
        labels[:, None, : 8 * whole[0], : 8 * whole[1]].float(), whole, mode="nearest-exact"
    )
    assert torch.equal(found[:, : whole[0], : whole[1]], nearest[:, 0].long())


def test_objects_and_keys_go_with_their_samples() -> None:
    disc = Object(0, Window(0, 0, 2, 2), np.ones((2, 2), np.bool_))
    samples = [
        replace(each, target=ObjectList(each.target, (disc,) * number))
        for number, each in enumerate(_samples())
    ]
    batch = collate(samples, lambda *_: {"loss": 1.0}, keys=range(7, 7 + len(samples)))
    part = batch.part(slice(1, 2)).to(torch.device("cpu"))
    assert [len(own) for own in part.targets.objects] == [1]
    assert part.keys == (8,)
    assert part.totals == batch.totals
