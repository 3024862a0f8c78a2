"""Small pictures of discs and squares with the objects in them, for tests of the task instances."""

from __future__ import annotations

import numpy as np
import torch

from outsize.data.batch import Batch
from outsize.data.object import Object, make_object
from outsize.data.statistics import BandStatistics
from outsize.data.targets import ClassRasters, ObjectLists
from outsize.models.maskrcnn import MaskRCNN
from outsize.tasks.instances.terms import count_terms
from outsize.tiles.window import Window

STATISTICS = BandStatistics((80.0,) * 3, (40.0,) * 3)
_MIDDLES = ((15, 15), (15, 45), (45, 17), (45, 45))


def small_model(norm: str, **options: object) -> MaskRCNN:
    """Build a narrow network."""
    torch.manual_seed(0)
    small = {"anchor_px": [8, 16, 32, 64, 128], "rois_per_image": 32, "least_proposals": 200}
    narrow = {"backbone": "resnet18", "width": 32, "head_width": 64}
    return MaskRCNN(num_classes=2, in_channels=3, norm=norm, **narrow, **{**small, **options})


def draw(num: int, side_px: int = 64, keys: tuple[int, ...] = ()) -> Batch:
    """Draw pictures, the last of them empty where there are more than two."""
    rng = np.random.default_rng(0)
    rows, cols = np.mgrid[:side_px, :side_px]
    images = rng.normal(60, 10, (num, 3, side_px, side_px))
    objects: list[tuple[Object, ...]] = []
    for number, image in enumerate(images):
        found = []
        for index, middle in enumerate(() if number == num - 1 > 1 else _MIDDLES):
            row, col = np.array(middle) + rng.integers(-4, 5, 2)
            radius = rng.integers(6, 11)
            round_mask = (rows - row) ** 2 + (cols - col) ** 2 < radius**2
            square = (abs(rows - row) < radius) & (abs(cols - col) < radius - 2)
            mask = square if index % 2 else round_mask
            image[index % 2][mask] += 100
            one = make_object(index % 2, Window(0, 0, side_px, side_px), mask)
            assert one is not None
            found.append(one)
        objects.append(tuple(found))
    labels = torch.zeros(num, side_px, side_px, dtype=torch.uint8)
    valid = torch.ones_like(labels, dtype=torch.bool)
    targets = ObjectLists(ClassRasters(labels), tuple(objects))
    totals = count_terms("", targets)
    pixels = torch.from_numpy(images.astype(np.float32))
    return Batch(pixels, valid, targets, totals, {}, keys or tuple(range(num)))
