"""What a raster of classes counts, and what is left of it in a part."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from outsize.data.sample import IGNORE
from outsize.data.targets.raster import ClassRaster, ClassRasters
from outsize.tiles.window import Window


def test_ignored_pixels_are_of_no_class() -> None:
    assert ClassRaster(np.array([[0, 2], [2, IGNORE]], np.uint8)).count(3).tolist() == [1, 0, 2]


@pytest.mark.parametrize("shape", [(3, 5), (400, 400), (401, 399)])
def test_classes_of_few_and_of_many_labels_are_counted(shape: tuple[int, int]) -> None:
    rng = np.random.default_rng(0)
    labels = rng.choice(np.array([0, 1, 2, 5, 255], np.uint8), shape)
    wanted = [np.count_nonzero(labels == number) for number in range(7)]
    assert ClassRaster(labels).count(7).tolist() == wanted
    assert ClassRaster(labels[:, ::-1]).count(7).tolist() == wanted


def test_only_the_core_of_a_part_is_learnt() -> None:
    whole = ClassRasters(torch.arange(20, dtype=torch.uint8).view(1, 4, 5))
    part = whole.crop(Window(1, 2, 4, 4), Window(2, 3, 2, 2))
    wanted = torch.full((1, 4, 4), IGNORE, dtype=torch.uint8)
    wanted[0, 1:3, 1:3] = whole.labels[0, 2:4, 3:5]
    assert part.labels.equal(wanted)
