"""Objects as layers of a GIS: what columns say, where shapes lie, and areas on the ellipsoid."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyogrio
import pyproj
import pytest
import rasterio
import shapely
from affine import Affine
from numpy.typing import NDArray

from outsize.errors import OutputError
from outsize.raster.pixel_area import measure_pixels
from outsize.raster.reading import SceneInfo, describe
from outsize.raster.vectors import outline, write_objects
from outsize.raster.vectors.object_shapes import areas
from outsize.tiles.window import Window

NAMES = ("house", "tree-top", "well")


@dataclass(frozen=True)
class Thing:
    class_id: int
    window: Window
    mask: NDArray[np.bool_]
    score: float = 0.5


def scene(path: Path, crs: str | None, transform: Affine, size: tuple[int, int] = (60, 80)) -> SceneInfo:
    place = {"crs": crs, "transform": transform} if crs else {}
    form = {"driver": "GTiff", "height": size[0], "width": size[1], "count": 1, "dtype": "uint8"}
    with rasterio.open(path, "w", **form, **place) as file:
        file.write(np.ones((1, *size), np.uint8))
    return describe(path)


@pytest.fixture
def things() -> list[Thing]:
    ring = np.ones((9, 11), np.bool_)
    ring[3:6, 4:7] = False
    corner = np.eye(4, dtype=np.bool_)
    return [
        Thing(0, Window(5, 7, 9, 11), ring, 0.9),
        Thing(1, Window(30, 40, 4, 4), corner, 0.25),
        Thing(0, Window(50, 60, 10, 20), np.ones((10, 20), np.bool_)),
    ]


UTM = Affine(0.5, 0, 400_000, 0, -0.5, 5_800_000)


def test_there_is_a_layer_for_every_class_with_all_columns(tmp_path: Path, things: list[Thing]) -> None:
    info = scene(tmp_path / "scene.tif", "EPSG:32633", UTM)
    target = tmp_path / "objects.gpkg"
    written = write_objects(target, things, info, class_names=NAMES)
    assert [name for name, _ in pyogrio.list_layers(target)] == list(NAMES)
    assert written.counts == {"house": 2, "tree-top": 1, "well": 0}
    meta, _, wkb, columns = pyogrio.raw.read(target, layer="house")
    table = dict(zip(meta["fields"], columns, strict=True))
    assert table["id"].tolist() == [1, 3]
    assert table["class"].tolist() == ["house", "house"]
    assert table["score"].tolist() == [0.9, 0.5]
    assert table["source"].tolist() == ["scene.tif"] * 2
    assert (table["x_min"][0], table["y_max"][0]) == (400_003.5, 5_799_997.5)
    assert (table["x_max"][0], table["y_min"][0]) == (400_009.0, 5_799_993.0)
    shapes = shapely.from_wkb(wkb)
    assert shapely.is_valid(shapes).all()
    assert shapely.area(shapes).tolist() == [(99 - 9) / 4, 50.0]
    assert table["area_m2"] == pytest.approx([(99 - 9) / 4, 50.0], rel=2e-3)
    assert meta["crs"] == "EPSG:32633"


def test_points_are_the_middles_of_boxes(tmp_path: Path, things: list[Thing]) -> None:
    info = scene(tmp_path / "scene.tif", "EPSG:32633", UTM)
    write_objects(tmp_path / "o.gpkg", things, info, class_names=NAMES, shape="point")
    meta, _, wkb, _ = pyogrio.raw.read(tmp_path / "o.gpkg", layer="house")
    assert meta["geometry_type"] == "Point"
    assert shapely.get_coordinates(shapely.from_wkb(wkb))[0].tolist() == [400_006.25, 5_799_995.25]


def test_areas_are_geodesic_at_sixty_degrees_north_in_web_mercator(tmp_path: Path) -> None:
    x, y = pyproj.Transformer.from_crs(4326, 3857, always_xy=True).transform(25.0, 60.0)
    info = scene(tmp_path / "north.tif", "EPSG:3857", Affine(1, 0, x, 0, -1, y))
    thing = Thing(0, Window(10, 10, 40, 50), np.ones((40, 50), np.bool_))
    target = tmp_path / "o.gpkg"
    write_objects(target, [thing], info, class_names=("house",))
    meta, _, wkb, columns = pyogrio.raw.read(target, layer="house")
    area_m2 = dict(zip(meta["fields"], columns, strict=True))["area_m2"][0]
    flat = shapely.from_wkb(wkb)[0]
    assert flat.area == pytest.approx(2000.0)  # of the map, four times that of the ground
    to_degrees = pyproj.Transformer.from_crs(3857, 4326, always_xy=True)
    round_earth = shapely.transform(flat, lambda at: np.column_stack(to_degrees.transform(*at.T)))
    expected = abs(pyproj.Geod(ellps="WGS84").geometry_area_perimeter(round_earth)[0])
    assert area_m2 == pytest.approx(expected, rel=1e-4)
    assert area_m2 == pytest.approx(2000 * 0.2509, rel=2e-3)


def test_geojson_is_one_layer_in_degrees(tmp_path: Path, things: list[Thing]) -> None:
    info = scene(tmp_path / "scene.tif", "EPSG:32633", UTM)
    write_objects(tmp_path / "o.geojson", things, info, class_names=NAMES)
    meta, _, wkb, columns = pyogrio.raw.read(tmp_path / "o.geojson")
    assert dict(zip(meta["fields"], columns, strict=True))["class"].tolist() == ["house", "tree-top", "house"]
    assert shapely.total_bounds(shapely.from_wkb(wkb))[0] == pytest.approx(13.5, abs=0.1)


def test_without_a_place_pixels_are_the_unit(tmp_path: Path, things: list[Thing]) -> None:
    info = scene(tmp_path / "scene.tif", None, UTM)
    written = write_objects(tmp_path / "o.gpkg", things, info, class_names=NAMES)
    assert (written.area_unit, written.area) == ("px", 90 + 4 + 200)
    meta, _, wkb, _ = pyogrio.raw.read(tmp_path / "o.gpkg", layer="house")
    assert "area_px" in meta["fields"].tolist()
    assert shapely.bounds(shapely.from_wkb(wkb))[0].tolist() == [7, 5, 18, 14]
    with pytest.raises(OutputError, match=r"GeoJSON.*GeoPackage"):
        write_objects(tmp_path / "o.geojson", things, info, class_names=NAMES)
    assert not (tmp_path / "o.geojson").exists()


def test_no_objects_are_empty_layers(tmp_path: Path) -> None:
    info = scene(tmp_path / "scene.tif", "EPSG:32633", UTM)
    assert write_objects(tmp_path / "o.gpkg", [], info, class_names=NAMES).counts == dict.fromkeys(NAMES, 0)
    assert [name for name, _ in pyogrio.list_layers(tmp_path / "o.gpkg")] == list(NAMES)
    for shape in ("area", "point"):
        write_objects(tmp_path / "o.geojson", [], info, class_names=NAMES, shape=shape)  # type: ignore[arg-type]


def test_straighter_outlines_stay_valid(tmp_path: Path) -> None:
    rows, cols = np.ogrid[:41, :41]
    disc = (rows - 20) ** 2 + (cols - 20) ** 2 <= 400
    info = scene(tmp_path / "scene.tif", "EPSG:32633", UTM)
    sizes = []
    for simplify_px in (0.0, 1.5):
        write_objects(
            tmp_path / "o.gpkg",
            [Thing(0, Window(3, 3, 41, 41), disc)],
            info,
            class_names=NAMES,
            simplify_px=simplify_px,
        )
        shape = shapely.from_wkb(pyogrio.raw.read(tmp_path / "o.gpkg", layer="house")[2])[0]
        assert shape.is_valid
        sizes.append(shapely.get_num_coordinates(shape))
    assert sizes[1] < sizes[0] / 2


def test_outlines_and_areas_of_many_batches_are_those_of_one(
    tmp_path: Path, things: list[Thing], monkeypatch: pytest.MonkeyPatch
) -> None:
    info = scene(tmp_path / "scene.tif", "EPSG:32633", UTM)
    size = measure_pixels(info.georef, info.height, info.width)
    whole, whole_m2 = outline(things, info.georef), areas(things, size)
    monkeypatch.setattr("outsize.raster.vectors.object_shapes._AT_ONCE_PX", 50)
    assert shapely.equals(outline(things, info.georef), whole).all()
    assert areas(things, size).tolist() == whole_m2.tolist()
    assert shapely.get_num_geometries(whole).tolist() == [1, 4, 1]
