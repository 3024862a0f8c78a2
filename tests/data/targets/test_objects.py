"""Objects in a part of a batch."""

from __future__ import annotations

import numpy as np
import torch

from outsize.data.object import Object
from outsize.data.targets.objects import ObjectLists
from outsize.data.targets.raster import ClassRasters
from outsize.tiles.window import Window


def test_a_part_has_what_of_the_objects_lies_in_its_core() -> None:
    inside = Object(0, Window(3, 3, 1, 2), np.ones((1, 2), np.bool_))
    across = Object(1, Window(0, 4, 4, 2), np.ones((4, 2), np.bool_))
    outside = Object(1, Window(0, 0, 1, 1), np.ones((1, 1), np.bool_))
    rasters = ClassRasters(torch.zeros(2, 8, 8, dtype=torch.uint8))
    whole = ObjectLists(rasters, ((inside, across, outside), ()))
    part = whole.crop(Window(1, 1, 6, 6), Window(2, 2, 4, 4))
    assert [[each.window for each in own] for own in part.objects] == [
        [Window(2, 2, 1, 2), Window(1, 3, 2, 2)],
        [],
    ]
    assert [each.clipped for each in part.objects[0]] == [False, True]
    assert [len(own) for own in whole.part(slice(1, 2)).objects] == [0]
