"""Polygons become class values on the scene's grid, wherever and in whatever system they were drawn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyogrio
import pyproj
import pytest
import rasterio
import shapely

from outsize.errors import DataError
from outsize.raster.polygons import PolygonLabels, attribute_values, burn_labels, is_vector, list_attributes
from outsize.raster.reading import SceneInfo, describe

ORIGIN = (500_000.0, 5_500_000.0)
Draw = Callable[..., Path]


@pytest.fixture
def scene(tmp_path: Path) -> SceneInfo:
    path = tmp_path / "scene.tif"
    grid = rasterio.Affine(2, 0, ORIGIN[0], 0, -2, ORIGIN[1])
    shape = {"count": 1, "height": 1100, "width": 300, "dtype": "uint8"}
    with rasterio.open(path, "w", driver="GTiff", crs="EPSG:32632", transform=grid, **shape):
        pass
    return describe(path)


def box(row: int, col: int, row_end: int, col_end: int) -> shapely.Polygon:
    x, y = ORIGIN
    return shapely.box(x + 2 * col, y - 2 * row_end, x + 2 * col_end, y - 2 * row)


@pytest.fixture
def draw(tmp_path: Path) -> Draw:
    def write(
        name: str,
        shapes: list[shapely.Geometry],
        kinds: list[object],
        crs: str = "EPSG:32632",
        **options: object,
    ) -> Path:
        there = pyproj.Transformer.from_crs("EPSG:32632", crs, always_xy=True)
        moved = shapely.transform(
            np.array(shapes), lambda points: np.column_stack(there.transform(*points.T))
        )
        kind = {"geometry_type": shapes[0].geom_type, "crs": crs}
        column = np.array(kinds, dtype=object if isinstance(kinds[0], str) else None)
        pyogrio.raw.write(tmp_path / name, shapely.to_wkb(moved), [column], ["kind"], **kind, **options)
        return tmp_path / name

    return write


def labels_of(path: Path, **changes: object) -> PolygonLabels:
    return replace(PolygonLabels(path, None, "kind", {"house": 1, "road": 2}, 0), **changes)


def burnt(labels: PolygonLabels, scene: SceneInfo) -> np.ndarray:
    target = scene.path.with_name("burnt.tif")
    target.unlink(missing_ok=True)  # labels made of the same key stay
    burn_labels(labels, scene, target, ignore_value=255, key="k")
    with rasterio.open(target) as file:
        assert file.transform == rasterio.Affine(*scene.georef.transform)
        assert file.nodata == 255
        found: np.ndarray = file.read(1)
    return found


@pytest.mark.parametrize(
    ("name", "crs"), [("l.gpkg", "EPSG:32632"), ("l.geojson", "EPSG:4326"), ("l.shp", "EPSG:3857")]
)
def test_any_file_and_system_gives_the_same_pixels(scene: SceneInfo, draw: Draw, name: str, crs: str) -> None:
    shapes = [box(10, 20, 40, 60), box(1000, 100, 1060, 150), box(30, 50, 50, 80)]
    found = burnt(labels_of(draw(name, shapes, ["house", "house", "road"], crs)), scene)
    wanted = np.zeros((1100, 300), np.uint8)
    wanted[10:40, 20:60] = wanted[1000:1060, 100:150] = 1
    wanted[30:50, 50:80] = 2  # the later polygon counts; 1000 to 1060 lies across two windows
    assert (found == wanted).all()


def test_pixels_outside_are_ignored_unless_they_have_a_class(scene: SceneInfo, draw: Draw) -> None:
    path = draw("l.gpkg", [box(0, 0, 5, 5)], ["house"])
    found = burnt(labels_of(path, outside_value=None), scene)
    assert np.unique(found).tolist() == [1, 255]


def test_numbers_name_classes_too(scene: SceneInfo, draw: Draw) -> None:
    path = draw("l.gpkg", [box(0, 0, 5, 5), box(9, 9, 19, 19)], [3.0, 7.0])
    found = burnt(labels_of(path, values={"3": 4, "7": 5}), scene)
    assert np.unique(found).tolist() == [0, 4, 5]


def test_polygons_without_attribute_are_one_class(scene: SceneInfo, draw: Draw) -> None:
    path = draw("l.gpkg", [box(0, 0, 5, 5)], ["whatever"])
    assert burnt(labels_of(path, attribute=None, values={"": 9}), scene).sum() == 25 * 9


def test_labels_that_miss_the_scene_are_refused(scene: SceneInfo, draw: Draw) -> None:
    path = draw("l.gpkg", [box(5000, 5000, 5050, 5050)], ["house"], "EPSG:4326")
    with pytest.raises(DataError, match=r"l\.gpkg miss the scene .*scene\.tif: found no polygon on it"):
        burnt(labels_of(path), scene)
    assert not scene.path.with_name("burnt.tif").exists()


def test_an_empty_part_of_a_large_map_is_all_outside(scene: SceneInfo, draw: Draw) -> None:
    around = [box(-500, -500, -400, -400), box(2000, 2000, 2100, 2100)]
    path = draw("l.gpkg", around, ["house", "house"])
    assert not burnt(labels_of(path), scene).any()
    with pytest.raises(DataError, match="miss the scene"):
        burnt(labels_of(path, outside_value=None), scene)


def test_a_missing_attribute_names_the_nearest(scene: SceneInfo, draw: Draw) -> None:
    path = draw("l.gpkg", [box(0, 0, 5, 5)], ["house"])
    with pytest.raises(DataError, match=r"no such attribute: found 'kinds', needed one of kind; .*'kind'"):
        burnt(labels_of(path, attribute="kinds"), scene)


def test_values_in_no_class_are_counted(scene: SceneInfo, draw: Draw) -> None:
    path = draw("l.gpkg", [box(0, 0, 5, 5)] * 3, ["house", "barn", "barn"])
    with pytest.raises(
        DataError, match=r"'kind' of .*l\.gpkg has values in no class: found 'barn' in 2 polygons"
    ):
        burnt(labels_of(path), scene)


def test_lines_are_no_areas(scene: SceneInfo, draw: Draw) -> None:
    path = draw("l.gpkg", [shapely.LineString([ORIGIN, (ORIGIN[0] + 50, ORIGIN[1] - 50)])], ["road"])
    with pytest.raises(DataError, match="found LineString, needed polygons"):
        burnt(labels_of(path), scene)


def test_layers_are_named(scene: SceneInfo, draw: Draw) -> None:
    draw("l.gpkg", [box(0, 0, 5, 5)], ["house"], layer="a")
    path = draw("l.gpkg", [box(0, 0, 9, 9)], ["house"], layer="b", append=True)
    with pytest.raises(DataError, match="several layers: found a, b"):
        burnt(labels_of(path), scene)
    with pytest.raises(DataError, match="no such layer: found 'c', needed one of a, b"):
        burnt(labels_of(path, layer="c"), scene)
    assert burnt(labels_of(path, layer="b"), scene).sum() == 81


def test_files_that_are_no_polygons_are_refused(scene: SceneInfo, tmp_path: Path) -> None:
    missing, empty, xml, text = (tmp_path / f"{name}.geojson" for name in ("missing", "empty", "xml", "text"))
    empty.touch()
    xml.write_text("<OGRVRTDataSource/>")
    text.write_text("{}")
    for path, message in (
        (missing, "no such file"),
        (empty, "an empty file"),
        (xml, "Failed to read GeoJSON"),
        (text, "cannot be read"),
    ):
        with pytest.raises(DataError, match=message):
            burnt(labels_of(path), scene)


def test_no_coordinate_system_on_one_side_is_refused(scene: SceneInfo, draw: Draw, tmp_path: Path) -> None:
    path = draw("l.shp", [box(0, 0, 5, 5)], ["house"])
    path.with_suffix(".prj").unlink()
    with pytest.raises(DataError, match=r"l\.shp has no place on Earth"):
        burnt(labels_of(path), scene)


def test_what_init_asks(draw: Draw) -> None:
    path = draw("l.gpkg", [box(0, 0, 5, 5)] * 3, ["a", "b", "a"])
    assert list_attributes(path, None) == ("kind",)
    assert attribute_values(path, None, "kind") == {"a": 2, "b": 1}
    assert is_vector("A.GPKG")
    assert not is_vector("a.tif")
