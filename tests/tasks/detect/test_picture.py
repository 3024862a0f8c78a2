"""Boxes drawn over a scene: panels one below the other, and of a large scene the part where boxes are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image
from tests.tasks.detect.painted import write_scene

from outsize.raster.reading import describe
from outsize.tasks.detect.picture import SIDE_PX, draw_boxes
from outsize.tasks.detect.settle import FoundBoxes, no_found


def _found(*sides: tuple[float, ...]) -> FoundBoxes:
    return FoundBoxes(np.array(sides), np.zeros(len(sides), np.int64), np.ones(len(sides)))


def test_a_box_has_the_colour_of_its_class_at_its_place(tmp_path: Path) -> None:
    info = describe(write_scene(tmp_path / "a.tif", np.full((3, 60, 80), 90, np.uint8)))
    panels = {"true": _found((10, 20, 40, 50), (-9, -9, 5, 5)), "found": no_found()}
    draw_boxes(tmp_path / "a.png", info, panels, [("Car", (255, 0, 0))])
    with Image.open(tmp_path / "a.png") as picture:
        pixels = np.asarray(picture.convert("RGB"))
    below = pixels.copy()
    below[:28] = 0
    reds = np.argwhere((below == (255, 0, 0)).all(-1))
    assert pixels.shape[0] > 2 * 60
    assert len(reds)
    assert reds[:, 0].max() < pixels.shape[0] / 2
    rows, cols = reds[reds[:, 1] > 8].T
    assert (cols.min(), cols.max(), rows.max() - rows.min()) == (10, 40, 30)
    assert (pixels[:28] == (255, 0, 0)).all(-1).sum() > 50  # the legend


def test_of_a_large_scene_the_part_with_boxes_is_shown(tmp_path: Path) -> None:
    info = describe(write_scene(tmp_path / "b.tif", np.full((3, 40, SIDE_PX * 2), 90, np.uint8)))
    draw_boxes(tmp_path / "b.png", info, {"found": _found((5, 5, 30, 30))}, [("Car", (255, 0, 0))])
    with Image.open(tmp_path / "b.png") as picture:
        assert picture.width == SIDE_PX
        assert (np.asarray(picture.convert("RGB")) == (255, 0, 0)).all(-1).any()
