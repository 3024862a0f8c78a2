"""World files of every kind are found, and say the same as GDAL does."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import rasterio
from PIL import Image

from outsize.errors import DataError, UnsafeFileError
from outsize.raster.georef import NO_PLACE, GeoRef
from outsize.raster.reading import SceneReader, describe, upright
from outsize.raster.reading.worldfile import placed

# of the centre of the first pixel: 2 m pixels, the corner at x = 500000, y = 6700000
WORLD = "2.0\n0.0\n0.0\n-2.0\n500001.0\n6699999.0\n"
WANTED = (2.0, 0.0, 500000.0, 0.0, -2.0, 6700000.0)
KINDS = [
    ("a.tif", "a.tfw"),
    ("a.tif", "a.tifw"),
    ("a.png", "a.pgw"),
    ("a.png", "a.pngw"),
    ("a.png", "a.wld"),
    ("a.jpg", "a.jgw"),
    ("a.jpg", "a.jpgw"),
    ("a.jpeg", "a.jgw"),
    ("a.jpeg", "a.jpegw"),
    ("a.JPG", "a.JGW"),
    ("a.JPG", "a.jgw"),
]


def draw(path: Path, height: int = 6, width: int = 9, **options: object) -> None:
    pixels = np.arange(height * width, dtype=np.uint8).reshape(height, width)
    if path.suffix == ".tif":
        with rasterio.open(
            path, "w", driver="GTiff", height=height, width=width, count=1, dtype="uint8"
        ) as out:
            out.write(pixels, 1)
    else:
        Image.fromarray(pixels).save(path, **options)


def epsg_of(georef: GeoRef) -> int | None:
    found: int | None = rasterio.crs.CRS.from_wkt(georef.crs_wkt).to_epsg()
    return found


@pytest.mark.parametrize(("picture", "world"), KINDS)
def test_a_world_file_is_found(tmp_path: Path, picture: str, world: str) -> None:
    draw(tmp_path / picture)
    (tmp_path / world).write_text(WORLD)
    assert describe(tmp_path / picture).georef == GeoRef(None, WANTED)


@pytest.mark.parametrize("picture", ["a.tif", "a.png", "a.jpg"])
def test_the_system_is_that_of_the_projection_beside(tmp_path: Path, picture: str) -> None:
    draw(tmp_path / picture)
    (tmp_path / "a").with_suffix(f".{picture[2]}{picture[-1]}w").write_text(WORLD)
    (tmp_path / "a.prj").write_text(rasterio.crs.CRS.from_epsg(32633).to_wkt(version="WKT1_ESRI"))
    georef = describe(tmp_path / picture).georef
    assert georef.transform == WANTED
    assert epsg_of(georef) == 32633


@pytest.mark.parametrize("picture", ["a.tif", "a.png", "a.jpg"])
def test_a_pam_file_is_found_and_counts_before_a_world_file(tmp_path: Path, picture: str) -> None:
    draw(tmp_path / picture)
    (tmp_path / f"a.{picture[2]}{picture[-1]}w").write_text(WORLD.replace("500001", "1"))
    wkt = rasterio.crs.CRS.from_epsg(3857).to_wkt().replace('"', "&quot;")
    text = (
        f"<PAMDataset><SRS>{wkt}</SRS><GeoTransform> 500000, 2, 0, 6700000, 0, -2</GeoTransform></PAMDataset>"
    )
    (tmp_path / f"{picture}.aux.xml").write_text(text)
    georef = describe(tmp_path / picture).georef
    assert georef.transform == WANTED
    assert epsg_of(georef) == 3857


def test_a_pam_file_with_statistics_alone_says_nothing(tmp_path: Path) -> None:
    draw(tmp_path / "a.png")
    inner = "<PAMRasterBand band='1'><GeoTransform>1,2,3</GeoTransform></PAMRasterBand>"
    (tmp_path / "a.png.aux.xml").write_text(f"<PAMDataset>{inner}</PAMDataset>")
    assert describe(tmp_path / "a.png").georef == NO_PLACE


def test_gdal_reads_the_same_place(tmp_path: Path) -> None:
    draw(tmp_path / "a.png")
    turned = "1.5\n0.25\n0.5\n-2.0\n500001.0\n6699999.0\n"
    (tmp_path / "a.pgw").write_text(turned)
    with rasterio.open(tmp_path / "a.png") as theirs:
        assert describe(tmp_path / "a.png").georef.transform == pytest.approx(tuple(theirs.transform)[:6])


def test_pictures_without_any_have_no_place(tmp_path: Path) -> None:
    draw(tmp_path / "a.png")
    (tmp_path / "b.pgw").write_text(WORLD)
    assert describe(tmp_path / "a.png").georef == NO_PLACE


@pytest.mark.parametrize("orientation", range(1, 9))
def test_upright_pixels_keep_their_ground(orientation: int) -> None:
    stored = np.arange(6 * 9).reshape(6, 9)
    turned = upright(stored, orientation)
    georef = GeoRef(None, (1.5, 0.25, 100.0, 0.5, -2.0, 900.0))
    there = placed(georef, orientation, *turned.shape)
    for row, col in np.ndindex(*turned.shape):
        at = np.argwhere(stored == turned[row, col])[0]
        wanted = georef.ground(at[0] + 0.5, at[1] + 0.5)
        assert there.ground(row + 0.5, col + 0.5) == pytest.approx(wanted)


def test_a_smaller_reading_covers_the_same_ground(tmp_path: Path) -> None:
    draw(tmp_path / "a.png", 8, 12)
    (tmp_path / "a.pgw").write_text(WORLD)
    small = describe(tmp_path / "a.png").shrunk(4)
    assert small.georef.transform == (8.0, 0.0, 500000.0, 0.0, -8.0, 6700000.0)
    with SceneReader(small) as reader:
        assert reader.read(small.window).georef == small.georef


@pytest.mark.parametrize(
    "text", ["", "1\n2\n3\n", "one two three four five six", "0\n0\n0\n0\n1\n1\n", "nan\n" * 6]
)
def test_what_is_no_world_file_is_refused(tmp_path: Path, text: str) -> None:
    draw(tmp_path / "a.png")
    (tmp_path / "a.pgw").write_text(text)
    with pytest.raises(DataError, match=r"a\.pgw"):
        describe(tmp_path / "a.png")


def test_entities_are_refused(tmp_path: Path) -> None:
    draw(tmp_path / "a.png")
    (tmp_path / "a.png.aux.xml").write_text('<!DOCTYPE x [<!ENTITY y "z">]><PAMDataset/>')
    with pytest.raises(UnsafeFileError, match="document type"):
        describe(tmp_path / "a.png")


def test_a_projection_that_is_none_is_refused(tmp_path: Path) -> None:
    draw(tmp_path / "a.png")
    (tmp_path / "a.pgw").write_text(WORLD)
    (tmp_path / "a.prj").write_text("somewhere")
    with pytest.raises(DataError, match="names no coordinate system"):
        describe(tmp_path / "a.png")


@pytest.mark.parametrize("name", ["a.pgw", "a.png.aux.xml", "a.prj"])
def test_a_pipe_beside_a_picture_is_told(tmp_path: Path, name: str) -> None:
    draw(tmp_path / "a.png")
    if name == "a.prj":
        (tmp_path / "a.pgw").write_text(WORLD)
    os.mkfifo(tmp_path / name)
    with pytest.raises(UnsafeFileError, match="a pipe"):
        describe(tmp_path / "a.png")
