"""Readers lent out, within a limit."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from outsize.data.opened.readers import OpenScenes
from outsize.raster.reading import SceneInfo, describe
from outsize.raster.reading import SceneReader as Reader

WriteRaster = Callable[..., Path]


@pytest.fixture
def pictures(tmp_path: Path) -> list[SceneInfo]:
    """Return six pictures of 300 bytes each once decoded, the nth filled with n."""
    for number in range(6):
        Image.fromarray(np.full((10, 10, 3), number, np.uint8)).save(tmp_path / f"{number}.png")
    return [describe(tmp_path / f"{number}.png") for number in range(6)]


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Return how many readers were opened and closed."""
    found = {"opened": 0, "closed": 0}
    real_init, real_close = Reader.__init__, Reader.close

    def init(self: Reader, info: SceneInfo) -> None:
        found["opened"] += 1
        real_init(self, info)

    def close(self: Reader) -> None:
        found["closed"] += 1
        real_close(self)

    monkeypatch.setattr(Reader, "__init__", init)
    monkeypatch.setattr(Reader, "close", close)
    return found


def _look(scenes: OpenScenes, info: SceneInfo) -> int:
    with scenes.lend(info) as reader:
        return int(reader.read(info.window).pixels.max())


def test_what_fits_stays_open(pictures: list[SceneInfo], counts: dict[str, int]) -> None:
    scenes = OpenScenes(limit_bytes=6 * 300)
    assert [_look(scenes, info) for _ in range(3) for info in pictures] == [*range(6)] * 3
    assert counts == {"opened": 6, "closed": 0}
    scenes.close()
    assert counts == {"opened": 6, "closed": 6}


def test_the_one_not_used_for_longest_makes_room(pictures: list[SceneInfo], counts: dict[str, int]) -> None:
    scenes = OpenScenes(limit_bytes=2 * 300)
    for number in (0, 1, 0, 2):  # 1 is closed
        _look(scenes, pictures[number])
    assert counts == {"opened": 3, "closed": 1}
    _look(scenes, pictures[0])
    assert counts["opened"] == 3
    _look(scenes, pictures[1])
    assert counts == {"opened": 4, "closed": 2}
    scenes.close()


def test_one_in_use_is_not_closed(pictures: list[SceneInfo], counts: dict[str, int]) -> None:
    scenes = OpenScenes(limit_bytes=300)
    with scenes.lend(pictures[0]) as held:
        for info in pictures[1:]:
            _look(scenes, info)
        assert counts["closed"] == 5
        assert held.read(pictures[0].window).pixels.max() == 0
    scenes.close()
    assert counts == {"opened": 6, "closed": 6}


def test_threads_get_the_scene_they_ask_for(pictures: list[SceneInfo]) -> None:
    scenes = OpenScenes(limit_bytes=700)
    asked = np.random.default_rng(0).integers(0, 6, 120).tolist()
    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(lambda number: _look(scenes, pictures[number]), asked)) == asked
    scenes.close()


def test_rasters_are_limited_by_their_open_files(write_raster: WriteRaster, counts: dict[str, int]) -> None:
    infos = [describe(write_raster(f"{n}.tif", np.full((4, 4), n, np.uint8))) for n in range(4)]
    scenes = OpenScenes(limit_bytes=2 * 32 * 2**20)
    assert [_look(scenes, info) for info in infos] == [0, 1, 2, 3]
    assert counts == {"opened": 4, "closed": 2}
    scenes.close()
