"""A TIFF of which something is said to lie behind its end is refused, and no other file is."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import numpy as np
import pytest
import rasterio

from outsize.errors import DataError, UnsafeFileError
from outsize.raster.reading import describe
from outsize.raster.reading.tiffs import refuse_cut_tiff

PIXEL_SCALE, SUB_DIRECTORIES = 33550, 330
FAR = 2**62


def draw(path: Path, *, is_big: bool, order: str = "LITTLE", side: int = 64) -> Path:
    grid = rasterio.transform.from_origin(5e5, 5e6, 2, 2)
    form = {"driver": "GTiff", "count": 3, "dtype": "uint8", "crs": "EPSG:32632", "transform": grid}
    form |= {"BIGTIFF": "YES" if is_big else "NO", "ENDIANNESS": order}
    with rasterio.open(path, "w", height=side, width=side, **form) as file:
        file.write(np.zeros((3, side, side), np.uint8))
    return path


def entries(data: bytes) -> tuple[dict[int, int], int]:
    """Return where the entry of each tag of a BigTIFF lies, and where the place of the next directory."""
    (offset,) = struct.unpack_from("<Q", data, 8)
    (num,) = struct.unpack_from("<Q", data, offset)
    places = [offset + 8 + 20 * index for index in range(num)]
    return {struct.unpack_from("<H", data, at)[0]: at for at in places}, offset + 8 + 20 * num


def spoil(path: Path, what: str) -> None:
    data = bytearray(path.read_bytes())
    places, following = entries(bytes(data))
    if what == "next directory":
        struct.pack_into("<Q", data, following, FAR)
    elif what == "inner directory":
        struct.pack_into("<HHQQ", data, places[PIXEL_SCALE], SUB_DIRECTORIES, 16, 1, FAR)
    elif what == "place on Earth":
        struct.pack_into("<Q", data, places[PIXEL_SCALE] + 12, FAR)
    else:
        struct.pack_into("<Q", data, places[PIXEL_SCALE] + 4, FAR)
    path.write_bytes(data)


@pytest.mark.parametrize("what", ["next directory", "inner directory", "place on Earth", "number of values"])
def test_what_lies_behind_the_end_is_told(
    tmp_path: Path, what: str, capfd: pytest.CaptureFixture[str]
) -> None:
    path = draw(tmp_path / "a.tif", is_big=True)
    spoil(path, what)
    with pytest.raises(DataError, match="is truncated"):
        describe(path)
    assert "tiffSeekProc" not in capfd.readouterr().err  # a line of libtiff's own


def test_a_private_tag_behind_the_end_that_nothing_reads_is_none_of_ours(tmp_path: Path) -> None:
    path = draw(tmp_path / "a.tif", is_big=True)
    data = bytearray(path.read_bytes())
    places, _ = entries(bytes(data))
    last = places[max(places)]  # tags are in order, so another high number may stand there
    struct.pack_into("<HHQQ", data, last, 65000, 1, 4096, FAR)
    path.write_bytes(data)
    refuse_cut_tiff(path)
    assert describe(path).num_bands == 3


def test_a_cut_overview_is_told(tmp_path: Path) -> None:
    path = draw(tmp_path / "a.tif", is_big=True)
    spoil(draw(tmp_path / "a.tif.ovr", is_big=True, side=32), "next directory")
    with pytest.raises(DataError, match=r"a.tif.ovr is truncated"):
        describe(path)


@pytest.mark.parametrize("is_big", [False, True])
@pytest.mark.parametrize("order", ["LITTLE", "BIG"])
def test_whole_files_pass(tmp_path: Path, is_big: bool, order: str) -> None:
    path = draw(tmp_path / "a.tif", is_big=is_big, order=order)
    with rasterio.open(path, "r+") as file:
        file.build_overviews([2, 4])
    refuse_cut_tiff(path)
    assert describe(path).num_bands == 3
    path.write_bytes(path.read_bytes()[:400])
    with pytest.raises(DataError, match="is truncated"):
        refuse_cut_tiff(path)


def test_directories_that_lead_in_a_circle_end(tmp_path: Path) -> None:
    path = draw(tmp_path / "a.tif", is_big=True)
    data = bytearray(path.read_bytes())
    struct.pack_into("<Q", data, entries(bytes(data))[1], struct.unpack_from("<Q", data, 8)[0])
    path.write_bytes(data)
    refuse_cut_tiff(path)


@pytest.mark.parametrize("data", [b"", b"II", b"II*\0", b"II*\0" + bytes(12), b"GIF89a" + bytes(20)])
def test_what_is_no_tiff_passes(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "a.tif"
    path.write_bytes(data)
    refuse_cut_tiff(path)
    refuse_cut_tiff(tmp_path / "none.tif")


def test_a_pipe_does_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.tif")
    with pytest.raises(UnsafeFileError, match="a pipe"):
        refuse_cut_tiff(tmp_path / "a.tif")
