import numpy as np
import pyogrio
import pyproj
import pytest
import rasterio
import shapely

from outsize.errors import DataError, OutputError
from outsize.raster.vectors import features, write_polygons
from outsize.raster.vectors import region_layers as vectors

GRID = {"crs": "EPSG:32632", "transform": rasterio.Affine(10, 0.5, 500_000, 0.25, -10, 5_000_000)}
NAMES = {0: "water", 1: "forest", 2: "road"}


def write(path, pixels, **options):
    shape = {"count": 1, "height": pixels.shape[0], "width": pixels.shape[1]}
    with rasterio.open(path, "w", driver="GTiff", dtype=pixels.dtype, **{**shape, **GRID, **options}) as file:
        file.write(pixels, 1)
    return path


def read(path):
    meta, _, geometry, columns = pyogrio.raw.read(path)
    return meta, shapely.from_wkb(geometry), dict(zip(meta["fields"], columns, strict=True))


@pytest.fixture
def classes():
    rng = np.random.default_rng(0)
    coarse = np.kron(rng.integers(0, 3, (12, 12)), np.ones((9, 9), int)).astype(np.uint8)
    coarse[:20, :20] = 255
    coarse[31, 31] = (coarse[31, 31] + 1) % 3
    return coarse


def test_geopackage(tmp_path, classes):
    source = write(tmp_path / "classes.tif", classes, nodata=255)
    confidence = write(tmp_path / "confidence.tif", np.full(classes.shape, 125, np.uint8))
    summary = write_polygons(source, confidence, tmp_path / "out" / "map.gpkg", class_names=NAMES)
    meta, shapes, columns = read(tmp_path / "out" / "map.gpkg")
    assert list(columns) == ["id", "class", "value", "area_m2", "confidence"]
    assert meta["crs"] == "EPSG:32632"
    assert len(shapes) == summary.num_polygons
    assert shapely.is_valid(shapes).all()
    assert set(columns["class"]) == {"water", "forest", "road"}
    assert [NAMES[value] for value in columns["value"]] == list(columns["class"])
    np.testing.assert_allclose(columns["confidence"], 0.5)
    pixel_m2 = abs(GRID["transform"].determinant)
    assert shapely.area(shapes).sum() == pytest.approx((classes != 255).sum() * pixel_m2, rel=1e-9)
    assert columns["area_m2"].sum() == pytest.approx((classes != 255).sum() * pixel_m2, rel=2e-3)
    assert summary.area == pytest.approx(columns["area_m2"].sum())
    # Every polygon lies on the map's own, rotated grid.
    inverse = ~GRID["transform"]
    xy = shapely.get_coordinates(shapes)
    col, row = inverse @ (xy[:, 0], xy[:, 1])
    np.testing.assert_allclose(np.column_stack([row, col]), np.round(np.column_stack([row, col])), atol=1e-5)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["map.gpkg"]


@pytest.mark.parametrize("strip_px", [108, 1000])
def test_counts_and_areas_do_not_depend_on_strips_or_batches(tmp_path, classes, monkeypatch, strip_px):
    source = write(tmp_path / "classes.tif", classes, nodata=255)
    write_polygons(source, None, tmp_path / "whole.gpkg", class_names=NAMES)
    monkeypatch.setattr(vectors, "_STRIP_PX", strip_px)
    monkeypatch.setattr(features, "_BATCH_POINTS", 150)
    write_polygons(source, None, tmp_path / "parts.gpkg", class_names=NAMES)
    _, shapes, columns = read(tmp_path / "whole.gpkg")
    _, other_shapes, other_columns = read(tmp_path / "parts.gpkg")
    assert shapely.equals_exact(shapes, other_shapes).all()
    for name in columns:
        np.testing.assert_array_equal(columns[name], other_columns[name])


def test_geojson_is_in_longitude_and_latitude(tmp_path, classes):
    source = write(tmp_path / "classes.tif", classes, nodata=255)
    write_polygons(source, None, tmp_path / "map.geojson", class_names=NAMES)
    meta, shapes, _ = read(tmp_path / "map.geojson")
    west, south, east, north = shapely.total_bounds(shapes)
    assert meta["crs"] == "EPSG:4326"
    assert 8.9 < west < east < 9.1
    assert 45 < south < north < 46
    assert shapely.is_valid(shapes).all()


def test_small_regions_are_left_out(tmp_path, classes):
    source = write(tmp_path / "classes.tif", classes, nodata=255)
    summary = write_polygons(source, None, tmp_path / "map.gpkg", class_names=NAMES, min_area_m2=150)
    _, shapes, columns = read(tmp_path / "map.gpkg")
    assert summary.num_too_small == 1
    assert columns["area_m2"].min() > 150
    assert len(shapes) == summary.num_polygons
    assert list(columns["id"]) == list(range(1, len(shapes) + 1))


def test_simplified_neighbours_still_meet(tmp_path):
    row, col = np.indices((100, 100))
    classes = (row + col > 100).astype(np.uint8)
    source = write(tmp_path / "classes.tif", classes)
    plain = write_polygons(source, None, tmp_path / "plain.gpkg", class_names=NAMES)
    simple = write_polygons(source, None, tmp_path / "simple.gpkg", class_names=NAMES, simplify_m=20)
    _, shapes, _ = read(tmp_path / "simple.gpkg")
    assert simple.num_points < plain.num_points / 5
    assert simple.area == plain.area
    assert shapely.is_valid(shapes).all()
    assert shapely.area(shapely.intersection(*shapes)) == pytest.approx(0, abs=1e-6)
    assert shapely.area(shapely.union_all(shapes)) == pytest.approx(shapely.area(shapes).sum())


def test_map_without_a_place_counts_pixels(tmp_path, classes):
    source = write(
        tmp_path / "classes.tif", classes, nodata=255, crs=None, transform=rasterio.Affine.identity()
    )
    summary = write_polygons(source, None, tmp_path / "map.gpkg", class_names=NAMES)
    _, _, columns = read(tmp_path / "map.gpkg")
    assert summary.area_unit == "px"
    assert columns["area_px"].sum() == (classes != 255).sum()
    with pytest.raises(OutputError, match="gpkg"):
        write_polygons(source, None, tmp_path / "map.geojson", class_names=NAMES)
    assert not (tmp_path / "map.geojson").exists()


def test_empty_map_gives_an_empty_layer(tmp_path):
    source = write(tmp_path / "classes.tif", np.full((20, 20), 255, np.uint8), nodata=255)
    assert write_polygons(source, None, tmp_path / "map.gpkg", class_names=NAMES).num_polygons == 0
    assert len(read(tmp_path / "map.gpkg")[1]) == 0


def test_wrong_inputs_and_outputs(tmp_path, classes):
    source = write(tmp_path / "classes.tif", classes)
    with pytest.raises(OutputError, match=r"\.shp"):
        write_polygons(source, None, tmp_path / "map.shp", class_names=NAMES)
    shares = write(tmp_path / "shares.tif", classes.astype(np.float32))
    with pytest.raises(DataError, match="float32"):
        write_polygons(shares, None, tmp_path / "map.gpkg", class_names=NAMES)
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match="file"):
        write_polygons(source, None, tmp_path / "file" / "map.gpkg", class_names=NAMES)


@pytest.mark.parametrize("strip_px", [2000, 10**6])
def test_areas_are_those_on_earth_where_the_plane_shows_four_times_as_much(tmp_path, monkeypatch, strip_px):
    monkeypatch.setattr(vectors, "_STRIP_PX", strip_px)
    north = pyproj.Transformer.from_crs(4326, 3857, always_xy=True).transform(10, 60)[1]
    grid = {"crs": "EPSG:3857", "transform": rasterio.Affine(10, 0, 1.1e6, 0, -10, north + 500)}
    classes = np.zeros((100, 120), np.uint8)
    classes[30:60, 20:90], classes[40:45, 30:40], classes[80:82, 100:103] = 1, 2, 2
    summary = write_polygons(
        write(tmp_path / "classes.tif", classes, **grid),
        None,
        tmp_path / "map.gpkg",
        class_names=NAMES,
        min_area_m2=160,
    )
    assert summary.num_too_small == 1  # 600 square metres on the plane, 150 on Earth
    _, shapes, columns = read(tmp_path / "map.gpkg")
    dense = shapely.segmentize(shapes, 10)
    to_degrees = pyproj.Transformer.from_crs(3857, 4326, always_xy=True)
    on_earth = shapely.transform(dense, lambda xy: np.column_stack(to_degrees.transform(*xy.T)))
    geod = pyproj.Geod(ellps="WGS84")
    expected = [abs(geod.geometry_area_perimeter(each)[0]) for each in on_earth]
    np.testing.assert_allclose(columns["area_m2"], expected, rtol=1e-6)
    np.testing.assert_allclose(shapely.area(shapes) / columns["area_m2"], 4, rtol=0.01)
