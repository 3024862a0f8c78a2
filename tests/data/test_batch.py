"""Samples, batches and their totals."""

from __future__ import annotations

import numpy as np
import torch

from outsize.data.batch import Batch, collate
from outsize.data.sample import IGNORE, Sample
from outsize.tasks.segment import count_terms


def _samples() -> list[Sample]:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, (3, 5, 6)).astype(np.uint8)
    labels[0] = IGNORE
    images = rng.integers(0, 60000, (3, 2, 5, 6)).astype(np.uint16)
    valid = rng.random((3, 5, 6)) < 0.8
    return [Sample(*parts) for parts in zip(images, valid, labels, strict=True)]


def _batch() -> Batch:
    return collate(_samples(), lambda labels: count_terms("cross_entropy", labels))


def test_collate_stacks_in_order_and_counts_the_labels() -> None:
    samples, batch = _samples(), _batch()
    assert batch.images.dtype == torch.uint16
    assert batch.images.shape == (3, 2, 5, 6)
    for number, sample in enumerate(samples):
        np.testing.assert_array_equal(batch.images[number], sample.image)
        np.testing.assert_array_equal(batch.valid[number], sample.valid)
        np.testing.assert_array_equal(batch.labels[number], sample.labels)
    assert batch.totals == {"cross_entropy": 60.0}


def test_a_part_keeps_the_totals_of_the_whole() -> None:
    batch = _batch()
    part = batch.part(slice(1, 3))
    assert part.totals == batch.totals
    np.testing.assert_array_equal(part.images, batch.images[1:3])
    np.testing.assert_array_equal(part.labels, batch.labels[1:3])
    np.testing.assert_array_equal(part.valid, batch.valid[1:3])


def test_a_copy_on_a_device_has_everything() -> None:
    there = _batch().to(torch.device("meta"))
    assert {there.images.device.type, there.valid.device.type, there.labels.device.type} == {"meta"}
    assert there.totals == {"cross_entropy": 60.0}
