import struct
import zlib

import numpy as np
import pytest
import rasterio

from outsize.errors import DataError, UnsafeFileError
from outsize.raster.read import SceneReader, describe
from outsize.tiles.window import Window


def write_image(path, pixels=None):
    pixels = np.arange(64, dtype=np.uint8).reshape(1, 8, 8) if pixels is None else pixels
    grid = {"crs": "EPSG:32632", "transform": rasterio.Affine(10, 0, 0, 0, -10, 0)}
    shape = {"count": pixels.shape[0], "height": pixels.shape[1], "width": pixels.shape[2]}
    with rasterio.open(path, "w", driver="GTiff", dtype=pixels.dtype, **shape, **grid) as file:
        file.write(pixels)
    return path


def vrt(source, *, relative=1, band="", head=""):
    return (
        f'{head}<VRTDataset rasterXSize="8" rasterYSize="8"><VRTRasterBand dataType="Byte" band="1"{band}>'
        f'<SimpleSource><SourceFilename relativeToVRT="{relative}">{source}</SourceFilename>'
        "<SourceBand>1</SourceBand></SimpleSource></VRTRasterBand></VRTDataset>"
    )


@pytest.fixture
def folder(tmp_path):
    inside = tmp_path / "inside"
    (inside / "sub").mkdir(parents=True)
    write_image(tmp_path / "outside.tif")
    write_image(inside / "near.tif")
    write_image(inside / "sub" / "below.tif")
    return inside


@pytest.mark.parametrize("source", ["near.tif", "sub/below.tif"])
def test_vrt_of_its_own_folder_is_read(folder, source):
    (folder / "scene.vrt").write_text(vrt(source))
    info = describe(folder / "scene.vrt")
    with SceneReader(info) as reader:
        assert reader.read(Window(0, 0, 8, 8)).pixels[0, 1, 1] == 9


@pytest.mark.parametrize(
    ("text", "part"),
    [
        (vrt("../outside.tif"), "outside.tif"),
        (vrt("/vsicurl/http://example.com/a.tif", relative=0), "/vsicurl/"),
        (vrt("https://example.com/a.tif", relative=0), "https://"),
        (vrt("/etc/hostname", relative=0), "/etc/hostname"),
        (vrt("other.vrt"), "other.vrt"),
        (vrt("near.tif", head='<!DOCTYPE a [<!ENTITY b "c">]>'), "document type"),
        ('<VRTDataset subClass="VRTWarpedDataset"/>', "VRTWarpedDataset"),
        (
            vrt("near.tif").replace(
                "<SimpleSource>", "<PixelFunctionLanguage>Python</PixelFunctionLanguage><SimpleSource>"
            ),
            "Python",
        ),
        ("<GDAL_WMS><Service/></GDAL_WMS>", "GDAL_WMS"),
        ('{"type": "STACIT"}', "JSON"),
    ],
)
def test_references_are_refused_by_name(folder, text, part):
    (folder / "other.vrt").write_text(vrt("near.tif"))
    (folder / "scene.vrt").write_text(text)
    with pytest.raises(UnsafeFileError) as caught:
        describe(folder / "scene.vrt")
    assert part in str(caught.value)
    assert "scene.vrt" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_link_that_leaves_the_folder_is_refused(folder):
    (folder / "link.tif").symlink_to(folder.parent / "outside.tif")
    (folder / "scene.vrt").write_text(vrt("link.tif"))
    with pytest.raises(UnsafeFileError, match=r"outside\.tif"):
        describe(folder / "scene.vrt")


def test_outside_source_is_read_when_allowed(folder):
    (folder / "scene.vrt").write_text(vrt("../outside.tif"))
    with SceneReader(describe(folder / "scene.vrt", allow_references=True)) as reader:
        assert reader.read(Window(0, 0, 8, 8)).pixels[0, 0, 5] == 5


@pytest.mark.parametrize("name", ["/vsicurl/http://a/b.tif", "http://a/b.tif", "s3://bucket/b.tif"])
def test_addresses_are_refused(name):
    with pytest.raises(UnsafeFileError, match="not a local file"):
        describe(name)


def test_broken_xml_and_missing_source_are_data_errors(folder):
    (folder / "scene.vrt").write_text("<VRTDataset>")
    with pytest.raises(DataError, match="not readable XML"):
        describe(folder / "scene.vrt")
    (folder / "scene.vrt").write_text(vrt("gone.tif"))
    with pytest.raises(DataError, match=r"gone\.tif"):
        describe(folder / "scene.vrt")


def test_tiff_that_claims_too_many_pixels(tmp_path):
    path = tmp_path / "bomb.tif"
    size = {"width": 1_000_000, "height": 1_000_000, "count": 1, "dtype": "uint8"}
    tiles = {"tiled": True, "blockxsize": 32768, "blockysize": 32768}
    with rasterio.open(path, "w", driver="GTiff", SPARSE_OK=True, BIGTIFF="YES", **size, **tiles):
        pass
    with pytest.raises(UnsafeFileError, match=r"1,000,000 x 1,000,000 px"):
        describe(path)


def test_picture_that_claims_too_many_pixels(tmp_path):
    def part(kind, body):
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", 10**6, 10**6, 8, 0, 0, 0, 0)
    path = tmp_path / "bomb.png"
    path.write_bytes(
        b"\x89PNG\r\n\x1a\n" + part(b"IHDR", header) + part(b"IDAT", zlib.compress(b"")) + part(b"IEND", b"")
    )
    with pytest.raises(UnsafeFileError, match=r"bomb\.png"):
        describe(path)
