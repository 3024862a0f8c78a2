"""Finding boxes in scenes: the same for every size of tile, in pictures of several sizes, mirrored too."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tests.tasks.detect.painted import STATISTICS, PaintedFinder, paint, write_scene

from outsize.infer.stream import Settings
from outsize.plan.plan import Tiling
from outsize.raster.reading import describe
from outsize.tasks.detect.finding import BoxFinder, find_boxes

_BANDS = ("band_1", "band_2", "band_3")


def _finder(core_px: int, halo_px: int = 64, *, batch: int = 3, flips: bool = False) -> BoxFinder:
    tiling = Tiling(core_px, (halo_px, halo_px), (halo_px, halo_px), 32, pads=True)
    settings = Settings(batch, torch.device("cpu"))
    return BoxFinder(PaintedFinder(), _BANDS, STATISTICS, tiling, settings, flips=flips)


@pytest.mark.parametrize("core_px", [128, 192, 320])
def test_a_mosaic_has_the_same_boxes_whatever_its_tiles(core_px: int, tmp_path: Path) -> None:
    pixels, sides = paint(500, 700, 120, seed=1)
    info = describe(write_scene(tmp_path / "mosaic.tif", pixels))
    ((index, found),) = find_boxes(_finder(core_px), [(info, ())])
    assert index == 0
    assert sorted(found.sides.tolist()) == sorted(sides.tolist())
    assert (np.diff(found.scores) <= 0).all()


def test_pictures_of_one_size_share_batches_and_all_are_told(tmp_path: Path) -> None:
    infos, truth = [], []
    for number, size in enumerate([(96, 128), (64, 64), (96, 128), (64, 64), (96, 128), (96, 128)]):
        pixels, sides = paint(*size, 2, seed=number)
        infos.append(describe(write_scene(tmp_path / f"{number}.tif", pixels)))
        truth.append(sides)
    seen = dict(find_boxes(_finder(128), [(info, ()) for info in infos]))
    assert sorted(seen) == list(range(6))
    for number, sides in enumerate(truth):
        assert sorted(seen[number].sides.tolist()) == sorted(sides.tolist())


def test_what_the_mirrored_picture_shows_is_the_same_once(tmp_path: Path) -> None:
    pixels, sides = paint(96, 128, 4, seed=5)
    info = describe(write_scene(tmp_path / "a.tif", pixels))
    ((_, found),) = find_boxes(_finder(128, flips=True), [(info, ())])
    assert sorted(found.sides.tolist()) == sorted(sides.tolist())
