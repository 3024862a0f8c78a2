"""With a perfect detector every disc of a scene is found once, whatever the tiles; memory goes with the objects."""

from __future__ import annotations

import os
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.tasks.instances.discs import DiscDetector, draw_discs, write_scene

from outsize.data.object import Object, iou
from outsize.data.statistics import BandStatistics
from outsize.errors import ModelError
from outsize.infer.stream import Settings
from outsize.plan.plan import Tiling
from outsize.raster.reading import SceneInfo, SceneReader
from outsize.tasks.instances.finding.objects import Finder, detect_tiles, find_objects
from outsize.tiles.halo import Halo, Reach

CPU = Settings(batch=2, device=torch.device("cpu"), num_threads=1)
ROOT = Path(__file__).resolve().parents[4]
SAME_SCALE = BandStatistics((0.0,), (255.0,))


def finder(core_px: int, overlap_px: int, model: torch.nn.Module | None = None) -> Finder:
    halo = Halo(Reach(overlap_px, overlap_px), Reach(overlap_px, overlap_px), 32)
    return Finder(model or DiscDetector(), ("",), SAME_SCALE, Tiling.of(core_px, halo), CPU, 0.3)


def find(info: SceneInfo, core_px: int, overlap_px: int) -> tuple[Object, ...]:
    disc_finder = finder(core_px, overlap_px)
    with SceneReader(info) as reader:
        return find_objects(disc_finder, reader, disc_finder.tiles(info))


def test_every_disc_is_found_once_at_every_size_of_tiles(tmp_path: Path) -> None:
    picture, discs = draw_discs(500, 700, 120)
    info = write_scene(tmp_path / "scene.tif", picture)
    found = {core_px: find(info, core_px, 64) for core_px in (64, 128, 256)}
    assert {core_px: len(objects) for core_px, objects in found.items()} == dict.fromkeys(found, len(discs))
    for objects in found.values():
        assert _partners(objects, found[256]) == len(discs)
        assert not any(each.clipped for each in objects)
    centres = {(o.window.row + o.window.height // 2, o.window.col + o.window.width // 2) for o in found[64]}
    assert all(any(abs(row - r) <= 1 and abs(col - c) <= 1 for r, c in centres) for row, col, _ in discs)


def test_objects_larger_than_the_overlap_are_joined(tmp_path: Path) -> None:
    picture, discs = draw_discs(600, 600, 4, radii=(90, 120))
    info = write_scene(tmp_path / "scene.tif", picture)
    objects = find(info, 64, 64)
    assert len(objects) == len(discs) == 4
    for row, col, radius in discs:
        best = max(
            objects,
            key=lambda each: -abs(each.window.row - row + radius) - abs(each.window.col - col + radius),
        )
        assert best.num_px == pytest.approx(np.pi * radius**2, rel=0.03)
        assert (best.window.height, best.window.width) == (
            pytest.approx(2 * radius + 1, abs=3),
            pytest.approx(2 * radius + 1, abs=3),
        )


def test_a_long_thing_across_the_whole_scene_is_one(tmp_path: Path) -> None:
    picture = np.zeros((300, 900), np.uint8)
    picture[140:160, 5:895] = 200
    picture[20:280, 440:460] = 200
    objects = find(write_scene(tmp_path / "scene.tif", picture), 128, 64)
    assert len(objects) == 1
    assert objects[0].num_px == pytest.approx(int((picture > 0).sum()), rel=0.05)


def test_nodata_takes_pixels_away_and_empty_scenes_have_no_objects(tmp_path: Path) -> None:
    info = write_scene(tmp_path / "scene.tif", np.zeros((100, 100), np.uint8))
    assert find(info, 64, 64) == ()


def test_memory_goes_with_the_objects_and_not_with_the_scene(tmp_path: Path) -> None:
    peaks = {}
    for side in (512, 2048):
        picture, _ = draw_discs(512, 512, 40)
        scene = np.zeros((side, side), np.uint8)
        scene[:512, :512] = picture
        info = write_scene(tmp_path / f"{side}.tif", scene)
        tracemalloc.start()
        num = len(find(info, 256, 64))
        peaks[side] = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert num == 40
    assert peaks[2048] < 1.5 * peaks[512]
    assert peaks[2048] < 2048 * 2048  # less than one byte for each pixel


@pytest.mark.long
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the peak from /proc")
def test_resident_memory_does_not_grow_with_the_scene(tmp_path: Path) -> None:
    code = (
        "import re, sys; from pathlib import Path; from tests.tasks.instances.finding.test_objects import find\n"
        "from outsize.raster.reading import describe; num = len(find(describe(Path(sys.argv[1])), 512, 64))\n"
        "print(num, re.search(r'VmHWM:\\s+(\\d+)', Path('/proc/self/status').read_text())[1])"
    )
    picture, _ = draw_discs(512, 512, 40)
    found = []
    for side in (1024, 8192):
        scene = np.zeros((side, side), np.uint8)
        scene[:512, :512] = picture
        write_scene(tmp_path / f"{side}.tif", scene)
        # GDAL keeps what it has read, up to a limit that no scene moves: here a small one
        words = [sys.executable, "-c", code, str(tmp_path / f"{side}.tif")]
        told = subprocess.check_output(words, env={**os.environ, "GDAL_CACHEMAX": "16"}, cwd=ROOT)
        found.append([int(word) for word in told.split()])
    assert [num for num, _ in found] == [40, 40]
    assert (
        found[1][1] - found[0][1] < 40 * 1024
    )  # KiB; held whole, the scene would take 64 MiB in bytes alone


def test_a_model_of_another_task_is_refused(tmp_path: Path) -> None:
    info = write_scene(tmp_path / "scene.tif", np.zeros((64, 64), np.uint8))
    other = finder(64, 32, torch.nn.Identity())
    with SceneReader(info) as reader, pytest.raises(ModelError, match="finds no objects"):
        list(detect_tiles(other, reader, other.tiles(info)))


def _partners(some: tuple[Object, ...], others: tuple[Object, ...]) -> int:
    return sum(any(iou(each, other) >= 0.5 for other in others) for each in some)
