"""Tiles through a model: every core once, in order, whatever the batch."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from outsize.errors import DataError
from outsize.infer.stream import Settings, TileResult, Waits, stream_tiles
from outsize.raster.reading import SceneInfo, SceneReader, describe
from outsize.tiles.grid import cover
from outsize.tiles.window import Tile, Window

PIXELS = np.random.default_rng(1).integers(0, 255, (2, 70, 90)).astype(np.uint8)


@pytest.fixture
def info(write_raster: Callable[..., Path]) -> SceneInfo:
    return describe(write_raster("scene.tif", PIXELS))


def _stream(reader: SceneReader, tiles: tuple[Tile, ...], batch: int, **more: Any) -> Any:
    def decode(logits: Tensor, valid: Tensor) -> dict[str, Tensor]:
        return {"first": logits[:, 0].to(torch.uint8), "both": logits.to(torch.uint8), "valid": valid.byte()}

    settings = Settings(batch=batch, device=torch.device("cpu"), num_threads=3)
    model = more.pop("model", nn.Identity())
    return stream_tiles(
        model,
        reader,
        tiles,
        prepare=lambda images, _: images.float(),
        decode=decode,
        settings=settings,
        **more,
    )


@pytest.mark.parametrize("batch", [1, 3, 100])
@pytest.mark.parametrize(("core_px", "halo"), [(16, (5, 3)), (32, (0, 0)), (128, (8, 8))])
def test_every_core_once_and_in_order(
    info: SceneInfo, batch: int, core_px: int, halo: tuple[int, int]
) -> None:
    tiles = cover(info.height, info.width, core_px, halo)
    with SceneReader(info) as reader:
        # held to the end: a result must not change when its slot is filled again
        results: list[TileResult] = list(_stream(reader, tiles, batch))
    assert [result.tile for result in results] == list(tiles)
    picture, seen = np.zeros_like(PIXELS), np.zeros(PIXELS.shape[1:], int)
    for result in results:
        rows, cols = result.tile.core.slices
        picture[:, rows, cols] = result.layers["both"]
        np.testing.assert_array_equal(result.layers["first"], PIXELS[0, rows, cols])
        assert result.layers["valid"].all()
        seen[rows, cols] += 1
    np.testing.assert_array_equal(picture, PIXELS)
    assert (seen == 1).all()


def test_the_model_never_gets_more_than_a_batch(info: SceneInfo) -> None:
    sizes = []

    class Spy(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            sizes.append(len(images))
            assert torch.is_inference_mode_enabled()
            return images

    tiles = cover(info.height, info.width, 32, (4, 4))
    with SceneReader(info) as reader:
        list(_stream(reader, tiles, 4, model=Spy()))
    assert sizes == [4, 4, 1]


def test_no_tiles_no_results(info: SceneInfo) -> None:
    with SceneReader(info) as reader:
        assert list(_stream(reader, (), 4)) == []


class _Failing(SceneReader):
    """A reader whose file breaks below a row."""

    def read_into(self, window: Window, pixels: Any, valid: Any) -> None:
        if window.row_end > 50:
            raise DataError("broken")
        super().read_into(window, pixels, valid)


def _read_threads() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name.startswith("read")]


@pytest.mark.parametrize("batch", [1, 2, 50])
def test_an_error_of_the_reader_surfaces_and_threads_end(info: SceneInfo, batch: int) -> None:
    tiles = cover(info.height, info.width, 16, (0, 0))
    with _Failing(info) as reader, pytest.raises(DataError, match="broken"):
        list(_stream(reader, tiles, batch))
    assert not _read_threads()


def test_a_stream_closed_early_ends_its_threads(info: SceneInfo) -> None:
    tiles = cover(info.height, info.width, 16, (0, 0))
    with SceneReader(info) as reader:
        stream = _stream(reader, tiles, 2)
        next(stream)
        assert _read_threads()
        stream.close()
        assert not _read_threads()


def test_waits_are_counted(info: SceneInfo) -> None:
    waits = Waits()
    with SceneReader(info) as reader:
        list(_stream(reader, cover(info.height, info.width, 16, (0, 0)), 2, waits=waits))
    assert waits.reads_s > 0
    assert waits.device_s > 0
