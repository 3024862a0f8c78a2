"""Areas of interest: the same pixels whatever the coordinate system of the file, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyogrio
import pyproj
import pytest
import rasterio
import shapely
from numpy.typing import NDArray

from outsize.errors import DataError
from outsize.raster.polygons import open_aoi
from outsize.raster.reading import SceneInfo, describe
from outsize.tiles.window import Window

Write = Callable[..., Path]
TRANSFORM = rasterio.Affine(2, 0, 500_000, 0, -2, 6_650_000)  # 60 degrees north


@pytest.fixture
def info(tmp_path: Path) -> SceneInfo:
    path = tmp_path / "scene.tif"
    shape = {"count": 1, "height": 90, "width": 120, "dtype": "uint8"}
    with rasterio.open(path, "w", driver="GTiff", crs="EPSG:32632", transform=TRANSFORM, **shape) as file:
        file.write(np.ones((1, 90, 120), np.uint8))
    return describe(path)


def _ground(shape: Any) -> Any:
    return shapely.transform(shape, lambda at: np.column_stack(TRANSFORM @ at.T))


def _write(path: Path, shapes: list[Any], crs: str | None, **options: Any) -> Path:
    moved = np.array(shapes, object)
    if crs not in (None, "EPSG:32632"):
        to_crs = pyproj.Transformer.from_crs("EPSG:32632", crs, always_xy=True)
        moved = shapely.transform(
            shapely.segmentize(moved, 5), lambda at: np.column_stack(to_crs.transform(*at.T))
        )
    pyogrio.raw.write(path, shapely.to_wkb(moved), [], [], geometry_type="Unknown", crs=crs, **options)
    return path


def _expected() -> NDArray[np.bool_]:
    row, col = np.mgrid[0.5:90, 0.5:120]
    diamond = np.abs(row - 40.2) + np.abs(col - 60.3) < 30
    square = (row > 70.1) & (col < 20.2)
    return np.asarray(diamond | square)


SHAPES = [
    _ground(shapely.Polygon([(60.3, 10.2), (90.3, 40.2), (60.3, 70.2), (30.3, 40.2)])),
    _ground(shapely.box(-50, 70.1, 20.2, 200)),
]


@pytest.mark.parametrize(
    ("name", "crs"),
    [
        ("area.gpkg", "EPSG:32632"),
        ("area.gpkg", "EPSG:3857"),
        ("area.geojson", "EPSG:4326"),
        ("area.shp", "EPSG:32633"),
    ],
)
def test_pixels_inside_do_not_depend_on_the_file(
    tmp_path: Path, info: SceneInfo, name: str, crs: str
) -> None:
    area = open_aoi(_write(tmp_path / name, SHAPES, crs), info)
    assert area is not None
    np.testing.assert_array_equal(area.mask(info.window), _expected())


def test_windows_are_parts_of_the_whole(tmp_path: Path, info: SceneInfo) -> None:
    area = open_aoi(_write(tmp_path / "a.gpkg", SHAPES, "EPSG:32632"), info)
    assert area is not None
    window = Window(35, 20, 50, 60)
    np.testing.assert_array_equal(area.mask(window), _expected()[window.slices])
    empty = Window(0, 0, 10, 10)
    assert not area.meets(empty)
    assert not area.mask(empty).any()
    assert area.meets(Window(60, 0, 20, 20))


def test_areas_that_differ_have_other_keys(tmp_path: Path, info: SceneInfo) -> None:
    areas = [
        open_aoi(_write(tmp_path / f"{number}.gpkg", shapes, "EPSG:32632"), info)
        for number, shapes in enumerate((SHAPES, SHAPES[:1], SHAPES))
    ]
    keys = [area.key for area in areas if area is not None]
    assert keys[0] == keys[2] != keys[1]


def test_an_area_elsewhere_misses_the_scene(tmp_path: Path, info: SceneInfo) -> None:
    far = _ground(shapely.box(500, 500, 600, 600))
    assert open_aoi(_write(tmp_path / "far.gpkg", [far], "EPSG:4326"), info) is None


def test_what_is_no_area_is_refused(tmp_path: Path, info: SceneInfo) -> None:
    with pytest.raises(DataError, match=r"no\.gpkg cannot be read: found no such file"):
        open_aoi(tmp_path / "no.gpkg", info)
    (tmp_path / "broken.gpkg").write_bytes(b"nothing of the kind")
    with pytest.raises(DataError, match=r"broken\.gpkg cannot be read"):
        open_aoi(tmp_path / "broken.gpkg", info)
    (tmp_path / "outside.json").write_text("<OGRVRTDataSource/>")
    with pytest.raises(DataError, match=r"outside\.json cannot be read: found Failed to read GeoJSON"):
        open_aoi(tmp_path / "outside.json", info)
    with pytest.raises(DataError, match=r"line\.gpkg has no place: found no polygon"):
        open_aoi(_write(tmp_path / "line.gpkg", [shapely.LineString([(0, 0), (1, 1)])], "EPSG:32632"), info)
    with pytest.warns(UserWarning, match="crs"):
        path = _write(tmp_path / "nowhere.gpkg", SHAPES, None)
    with pytest.raises(DataError, match=r"nowhere\.gpkg has no place: found no coordinate system"):
        open_aoi(path, info)


def test_several_layers_are_not_guessed_at(tmp_path: Path, info: SceneInfo) -> None:
    path = _write(tmp_path / "two.gpkg", SHAPES, "EPSG:32632", layer="one")
    _write(path, SHAPES, "EPSG:32632", layer="two", append=True)
    with pytest.raises(DataError, match=r"two\.gpkg is not clear: found layers one, two, needed one layer"):
        open_aoi(path, info)


def test_a_scene_without_a_place_is_refused(tmp_path: Path) -> None:
    from PIL import Image

    Image.fromarray(np.zeros((20, 20, 3), np.uint8)).save(tmp_path / "picture.png")
    path = _write(tmp_path / "a.gpkg", SHAPES, "EPSG:32632")
    with pytest.raises(DataError, match=r"picture\.png: found no coordinate system in the scene"):
        open_aoi(path, describe(tmp_path / "picture.png"))


def test_a_shape_too_wide_to_be_laid_is_told(tmp_path: Path, info: SceneInfo) -> None:
    path = _write(tmp_path / "wide.gpkg", [shapely.box(0, 0, 1e308, 1e308)], "EPSG:32632")
    with pytest.raises(DataError, match=r"wide\.gpkg cannot be reprojected"):
        open_aoi(path, info)
