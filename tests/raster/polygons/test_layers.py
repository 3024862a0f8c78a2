"""A vector file is read by the one driver its name stands for; it opens no other file and asks no network."""

from __future__ import annotations

import json
import os
import socket
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pyogrio
import pytest
import shapely
from pyproj import CRS

from outsize.errors import DataError, UnsafeFileError
from outsize.raster.georef import GeoRef
from outsize.raster.polygons import attribute_values, list_attributes, open_aoi
from outsize.raster.polygons.layers import are_finite, layer_names, opened, read_layer
from outsize.raster.reading import SceneInfo

_DRIVERS = {
    ".gpkg": "GPKG",
    ".geojson": "GeoJSON",
    ".json": "GeoJSON",
    ".shp": "ESRI Shapefile",
    ".fgb": "FlatGeobuf",
}


def draw(path: Path, shapes: list[Any] | None = None) -> Path:
    shapes = [shapely.box(8, 49, 9, 50), shapely.box(9, 49, 10, 50)] if shapes is None else shapes
    kinds = np.array(["a"] * len(shapes), object)
    form = {"driver": _DRIVERS[path.suffix.lower()], "geometry_type": "Polygon", "crs": "EPSG:4326"}
    pyogrio.raw.write(path, np.array(shapely.to_wkb(shapes), object), [kinds], ["kind"], **form)
    return path


@pytest.fixture
def asked() -> Iterator[tuple[str, list[bytes]]]:
    """A server that nobody should ask: its address, and who did."""
    server, who = socket.socket(), list[bytes]()
    server.bind(("127.0.0.1", 0))
    server.listen(8)

    def answer() -> None:
        while True:
            try:
                one, _ = server.accept()
            except OSError:
                return
            who.append(one.recv(100))
            one.close()

    threading.Thread(target=answer, daemon=True).start()
    yield f"http://127.0.0.1:{server.getsockname()[1]}/a.geojson", who
    server.close()


@pytest.mark.parametrize("suffix", [*_DRIVERS, ".GPKG", ".SHP", ".FGB"])
def test_each_kind_is_read(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a{suffix}"
    draw(tmp_path / f"a{suffix.lower()}")
    for each in list(tmp_path.iterdir()):
        each.rename(each.with_suffix(each.suffix.upper() if suffix.isupper() else each.suffix))
    assert list_attributes(path, None) == ("kind",)
    assert attribute_values(path, "a" if suffix != ".GPKG" else None, "kind") == {"a": 2}
    with opened(path, "labels") as source:
        crs, shapes, columns = read_layer(source, None)
    assert (crs, len(shapes), columns) == ("EPSG:4326", 2, [])


@pytest.mark.parametrize("suffix", _DRIVERS)
@pytest.mark.parametrize("front", ["", "x", " " * 64, "\n" * 2000, "\0", "\ufeff"])
def test_no_other_file_is_opened_whatever_stands_in_front(
    tmp_path: Path, suffix: str, front: str, asked: tuple[str, list[bytes]]
) -> None:
    address, who = asked
    secret = draw(tmp_path / "secret.geojson")
    sources = (secret, f"/vsicurl/{address}")
    bodies = [
        f'<OGRVRTDataSource><OGRVRTLayer name="secret"><SrcDataSource>{source}</SrcDataSource></OGRVRTLayer>'
        "</OGRVRTDataSource>"
        for source in sources
    ]
    bodies += [
        json.dumps({"type": "gdal_streamed_alg", "command_line": f"gdal vector pipeline ! read {source}"})
        for source in sources
    ]
    for body in bodies:
        path = tmp_path / f"secret{suffix}" if suffix != ".geojson" else tmp_path / "other.geojson"
        path.write_text(front + body)
        with pytest.raises(DataError) as caught:
            list_attributes(path, None)
        assert str(path) in str(caught.value)
        assert "\n" not in str(caught.value)
    assert who == []


@pytest.mark.parametrize("spelt", ["link", "url", "LINK", "l\\u0069nk", "'link'"])
def test_geojson_asks_nobody_for_its_coordinate_system(
    tmp_path: Path, spelt: str, asked: tuple[str, list[bytes]]
) -> None:
    address, who = asked
    path = draw(tmp_path / "a.geojson")
    kind = spelt if spelt[0] == "'" else f'"{spelt}"'
    crs = f'"crs": {{"type": {kind}, "properties": {{"href": "{address}", "url": "{address}"}}}}'
    text = path.read_text()
    start = text.index('"crs"')
    end = text.index('"features"')
    for spoilt in (
        f"{text[:start]}{crs}, {text[end:]}",
        text.replace('"type": "Polygon"', f'"type": "Polygon", {crs}', 1),
    ):
        assert spoilt != text
        path.write_text(spoilt)
        with pytest.raises(DataError):
            list_attributes(path, None)
    assert who == []


def test_a_link_that_is_a_value_is_no_address(tmp_path: Path) -> None:
    path = draw(tmp_path / "a.geojson")
    path.write_text(path.read_text().replace('"kind": "a"', '"kind": "link", "type": "\\u0075rl"'))
    assert attribute_values(path, None, "kind") == {"link": 2}


@pytest.mark.parametrize("name", ["a;b", "a\nb", "a!b", "a?b=1#c", "GPKG:a", "ä", os.fsdecode(b"a\xff")])
@pytest.mark.parametrize("suffix", _DRIVERS)
def test_odd_names_are_read_or_told_in_one_line(tmp_path: Path, suffix: str, name: str) -> None:
    draw(tmp_path / f"plain{suffix}")
    for each in list(tmp_path.iterdir()):
        each.rename(tmp_path / (name + each.suffix))
    path = tmp_path / (name + suffix)
    assert attribute_values(path, None, "kind") == {"a": 2}
    path.write_bytes(b"spoilt")
    with pytest.raises(DataError) as caught:
        list_attributes(path, None)
    assert "\n" not in str(caught.value)
    str(caught.value).encode()


def test_pipes_do_not_hang(tmp_path: Path) -> None:
    for suffix in _DRIVERS:
        os.mkfifo(tmp_path / f"a{suffix}")
        with pytest.raises(UnsafeFileError, match="a pipe"):
            list_attributes(tmp_path / f"a{suffix}", None)
    path = draw(tmp_path / "b.shp")
    path.with_suffix(".prj").unlink()
    os.mkfifo(path.with_suffix(".prj"))
    with pytest.raises(UnsafeFileError, match="a pipe"):
        list_attributes(path, None)


def test_shapes_that_are_nowhere_are_left_out(tmp_path: Path) -> None:
    nowhere = shapely.Polygon([(0, 0), (np.nan, 1), (1, 1)])
    far = shapely.Polygon([(0, 0), (np.inf, 1), (1, 1)])
    assert are_finite(np.array([nowhere, shapely.box(0, 0, 1, 1), far, None], object)).tolist() == [
        False,
        True,
        False,
        True,
    ]
    place = GeoRef(CRS.from_epsg(4326).to_wkt(), (1, 0, 8, 0, -1, 50))
    info = SceneInfo(Path("a.tif"), 8, 8, 1, "uint8", None, ("",), (8, 8), place)
    path = draw(tmp_path / "a.fgb", [shapely.box(8, 49, 9, 50)])
    assert open_aoi(path, info) is not None
    for shape in (nowhere, far):
        path.unlink()
        draw(path, [shape])
        with pytest.raises(DataError, match="no polygon"):
            open_aoi(path, info)
    path.unlink()
    assert open_aoi(draw(path, [shapely.Polygon([(20, 49)] * 4)]), info) is None


def test_layers_have_the_name_of_their_file(tmp_path: Path) -> None:
    for suffix in _DRIVERS:
        with opened(draw(tmp_path / f"my fields-1.b{suffix}"), "labels") as source:
            assert layer_names(source) == ["my fields-1.b"]


@pytest.mark.parametrize("layers", ["the view alone", "both"])
def test_a_view_that_never_ends_is_told(tmp_path: Path, layers: str) -> None:
    path = draw(tmp_path / "a.gpkg")
    endless = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c)"
    with closing(sqlite3.connect(path)) as file:
        file.execute(
            f"CREATE VIEW v AS {endless} SELECT x AS fid, CAST(NULL AS BLOB) AS geom, 'a' AS kind FROM c"
        )
        file.execute(
            "INSERT INTO gpkg_contents (table_name, data_type, srs_id) VALUES ('v', 'features', 4326)"
        )
        file.execute("INSERT INTO gpkg_geometry_columns VALUES ('v', 'geom', 'POLYGON', 4326, 0, 0)")
        if layers == "the view alone":
            file.execute("DELETE FROM gpkg_contents WHERE table_name = 'a'")
            file.execute("DELETE FROM gpkg_geometry_columns WHERE table_name = 'a'")
            file.execute("DROP TABLE a")
        file.commit()
    with pytest.raises(DataError, match="layer v, which is view and no table"):
        attribute_values(path, "v", "kind")
    with pytest.raises(DataError, match="layer v, which is view and no table"):
        list_attributes(path, "v")
    if layers == "both":
        assert attribute_values(path, "a", "kind") == {"a": 2}
        assert attribute_values(path, None, "kind") == {"a": 2}
    else:
        with pytest.raises(DataError, match="layer v, which is view and no table"):
            attribute_values(path, None, "kind")


def test_a_system_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    path = draw(tmp_path / "a.shp")
    place = path.with_suffix(".prj")
    place.write_bytes(place.read_bytes().replace(b"WGS_1984", b"WGS\xff\x81", 1))
    with pytest.raises(DataError, match="found a coordinate system that cannot be read, needed"):
        list_attributes(path, None)


def test_a_bug_of_ours_is_no_broken_file(tmp_path: Path) -> None:
    path = draw(tmp_path / "a.gpkg")
    with pytest.raises(UnboundLocalError, match="ours"), opened(path, "labels"):
        raise UnboundLocalError("local variable 'ours' referenced before assignment")
