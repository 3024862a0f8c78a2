import os
import socket
import struct
import threading
import zlib

import numpy as np
import pytest
import rasterio

from outsize.errors import DataError, UnsafeFileError
from outsize.raster.reading import Picture, SceneReader, describe
from outsize.raster.reading.picture import is_picture
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
    (folder / "scene.vrt").write_text('{"type": "STACIT"}')
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


@pytest.fixture
def asked():
    """A server that nobody should ask: its address, and who did."""
    server, who = socket.socket(), []
    server.bind(("127.0.0.1", 0))
    server.listen(8)

    def answer():
        while True:
            try:
                one, _ = server.accept()
            except OSError:
                return
            who.append(one.recv(100))
            one.close()

    threading.Thread(target=answer, daemon=True).start()
    yield f"http://127.0.0.1:{server.getsockname()[1]}/a.tif", who
    server.close()


ERS = """DatasetHeader Begin
  Version = "5.0"
  DataSetType = ERStorage
  DataType = Raster
  ByteOrder = LSBFirst
  RasterInfo Begin
    CellType = Unsigned8BitInteger
    NrOfLines = 1
    NrOfCellsPerLine = 8
    NrOfBands = 1
  RasterInfo End
  HeaderOffset = 0
  DataFile = "../secret"
DatasetHeader End
"""
PDS = """PDS_VERSION_ID = PDS3
RECORD_TYPE = FIXED_LENGTH
RECORD_BYTES = 8
^IMAGE = ("../secret", 1)
OBJECT = IMAGE
  LINES = 1
  LINE_SAMPLES = 8
  SAMPLE_TYPE = UNSIGNED_INTEGER
  SAMPLE_BITS = 8
END_OBJECT = IMAGE
END
"""


@pytest.mark.parametrize("name", ["a.tif", "a.ers", "a.lbl", "a"])
def test_no_other_file_is_read_whatever_stands_in_front(folder, asked, name):
    address, who = asked
    (folder.parent / "secret").write_bytes(b"secrets!")
    bodies = [vrt("../outside.tif"), vrt(f"/vsicurl/{address}", relative=0), ERS, PDS]
    for body in bodies:
        for front in ("", "x", " " * 64, "\n" * 200, "<!-- -->", "II*"):
            (folder / name).write_text(front + body)
            with pytest.raises(DataError) as caught:
                describe(folder / name)
            assert "\n" not in str(caught.value)
    assert who == []


def overviews(address):
    return f'<PAMDataset><Metadata domain="OVERVIEWS"><MDI key="OVERVIEW_FILE">{address}</MDI></Metadata></PAMDataset>'


def erdas(_):
    return "EHFA_HEADER_TAG and more"


def remote(address):
    return vrt(f"/vsicurl/{address}", relative=0)


@pytest.mark.parametrize(
    ("beside", "text"),
    [
        ("near.tif.aux.xml", overviews),
        ("near.tif.ovr", remote),
        ("near.tif.msk", remote),
        ("near.aux", erdas),
        ("near.tif.aux", erdas),
    ],
)
@pytest.mark.parametrize("by", ["near.tif", "scene.vrt"])
def test_what_lies_beside_an_image_names_no_other_file(folder, asked, beside, text, by):
    address, who = asked
    (folder / "scene.vrt").write_text(vrt("near.tif"))
    describe(folder / by)
    (folder / beside).write_text(text(address))
    with pytest.raises(DataError) as caught:
        describe(folder / by)
    assert beside in str(caught.value)
    assert who == []


def test_overviews_masks_and_places_beside_an_image_are_read(folder):
    path = folder / "near.tif"
    write_image(folder / "near.tif.ovr", np.zeros((1, 4, 4), np.uint8))
    write_image(
        folder / "near.tif.msk", np.full((1, 8, 8), 255, np.uint8) * (np.arange(8) > 3).astype(np.uint8)
    )
    with rasterio.open(folder / "near.tif.msk", "r+") as file:
        file.update_tags(INTERNAL_MASK_FLAGS_1=2)
    (folder / "near.tif.aux.xml").write_text(
        '<PAMDataset><PAMRasterBand band="1"><NoDataValue>7</NoDataValue></PAMRasterBand></PAMDataset>'
    )
    assert describe(path).nodata == 7
    (folder / "near.tif.aux.xml").unlink()
    with SceneReader(describe(path)) as reader:
        assert reader.read(Window(0, 0, 8, 8)).valid[0].tolist() == [False] * 4 + [True] * 4


def test_a_pipe_beside_an_image_does_not_hang(folder):
    for name in ("near.tif.aux.xml", "near.tif.ovr", "near.tfw"):
        os.mkfifo(folder / name)
        with pytest.raises(UnsafeFileError, match="a pipe"):
            describe(folder / "near.tif")
        (folder / name).unlink()


def test_a_vrt_is_read_as_it_was_when_it_was_looked_at(folder):
    (folder / "scene.vrt").write_text(vrt("near.tif"))
    info = describe(folder / "scene.vrt")
    (folder / "scene.vrt").write_text(vrt("../outside.tif"))
    assert "outside" not in info.source
    with SceneReader(info) as reader:
        assert reader.read(Window(0, 0, 8, 8)).pixels[0, 1, 1] == 9


@pytest.mark.parametrize(
    ("old", "new", "found"),
    [
        ("<VRTRasterBand ", '<VRTRasterBand subClass="VRTRawRasterBand" ', "VRTRawRasterBand"),
        ("<SourceBand>", "<OpenOptions><OOI key='a'>b</OOI></OpenOptions><SourceBand>", "OpenOptions"),
        ("SimpleSource>", "GDALWarpOptions>", "GDALWarpOptions"),
        ("<SimpleSource>", "<SourceFilename>/etc/hostname</SourceFilename><SimpleSource>", "VRTRasterBand"),
        ("<SimpleSource>", "<a>" * 100 + "</a>" * 100 + "<SimpleSource>", "levels"),
    ],
)
def test_what_a_vrt_may_hold_is_known(folder, old, new, found):
    text = vrt("near.tif").replace(old, new)
    (folder / "scene.vrt").write_text(text)
    with pytest.raises(UnsafeFileError, match=found):
        describe(folder / "scene.vrt")


def test_a_coordinate_system_is_no_address_and_no_file(folder, asked):
    address, who = asked
    wkt = rasterio.crs.CRS.from_epsg(32632).to_wkt()
    (folder / "wkt.txt").write_text(wkt)
    picture = np.zeros((1, 8, 8), np.uint8)
    with rasterio.open(
        folder / "a.png", "w", driver="PNG", height=8, width=8, count=1, dtype="uint8"
    ) as file:
        file.write(picture)
    (folder / "a.pgw").write_text("2\n0\n0\n-2\n5\n9\n")
    for text in (
        address,
        str(folder / "wkt.txt"),
        "+proj=utm +zone=32 +nadgrids=/etc/hostname",
        "[" * 10_000,
    ):
        (folder / "a.prj").write_text(text)
        with pytest.raises(DataError, match="names no coordinate system"):
            describe(folder / "a.png")
    assert who == []
    for text in (
        wkt,
        "EPSG:32632",
        "+proj=utm +zone=32 +datum=WGS84 +units=m +no_defs",
        "urn:ogc:def:crs:EPSG::32632",
    ):
        (folder / "a.prj").write_text(text)
        assert "500000" in describe(folder / "a.png").georef.crs_wkt


def test_one_strip_of_gigabytes_is_refused_before_it_is_taken(tmp_path):
    path = tmp_path / "bomb.tif"
    pixels = zlib.compress(b"\0" * 600)
    numbers = {
        256: 100_000,
        257: 100_000,
        258: 16,
        259: 8,
        262: 1,
        273: 8,
        277: 1,
        278: 100_000,
        279: len(pixels),
    }
    tags = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in numbers.items())
    header = struct.pack("<2sHI", b"II", 42, 8 + len(pixels))
    path.write_bytes(header + pixels + struct.pack("<H", len(numbers)) + tags + bytes(4))
    with pytest.raises(UnsafeFileError, match=r"blocks of 100,000 x 100,000 px"):
        describe(path)


def test_names_that_are_no_text_are_told_in_one_line(folder):
    whole = (folder / "near.tif").read_bytes()
    for name in (b"a\xff.tif", b"a\nb;c.tif"):
        path = folder / os.fsdecode(name)
        path.write_bytes(whole)
        if b"\xff" not in name:
            assert describe(path).width == 8
        path.write_bytes(b"spoilt")
        with pytest.raises(DataError) as caught:
            describe(path)
        assert "\n" not in str(caught.value)
        assert ("no UTF-8" in str(caught.value)) == (b"\xff" in name)
        str(caught.value).encode()


@pytest.mark.parametrize("start", [b"II*\0\xff\xff\xff\xff", b"MM\0+\0\x08\0\0" + b"\xff" * 8])
def test_a_directory_behind_the_end_is_told(folder, start):
    path = folder / "near.tif"
    path.write_bytes(start + path.read_bytes()[len(start) :])
    with pytest.raises(DataError, match="is truncated"):
        describe(path)


def test_a_pipe_named_as_a_picture_does_not_hang(tmp_path):
    path = tmp_path / "a.png"
    os.mkfifo(path)
    with pytest.raises(UnsafeFileError, match="a pipe"):
        Picture(path)
    with pytest.raises(UnsafeFileError, match="a pipe"):
        is_picture(path)
    with pytest.raises(UnsafeFileError, match="a pipe"):
        describe(path)
