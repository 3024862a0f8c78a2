import numpy as np
import pyproj
import pytest

from outsize.errors import DataError
from outsize.raster.georef import GeoRef
from outsize.raster.pixel_area import measure_pixels, pixel_sides_m

SIZE = (800, 1000)
GEOD = pyproj.Geod(ellps="WGS84")
CASES = {
    "utm": (32632, (10.0, 0.0, 600_000.0, 0.0, -10.0, 5_400_000.0)),
    "rotated utm": (32632, (7.0, 3.0, 600_000.0, 3.0, -7.0, 5_400_000.0)),
    "degrees": (4326, (0.01, 0.0, 5.0, 0.0, -0.01, 60.0)),
    "web mercator": (3857, (100.0, 0.0, 1e6, 0.0, -100.0, 7e6)),
    "polar, over the date line": (3413, (1000.0, 0.0, -1.2e6, 0.0, -1000.0, 2.1e6)),
    "centimetres": (25832, (0.02, 0.0, 600_000.0, 0.0, -0.02, 5_400_000.0)),
}


def geodesic_m2(epsg, georef, rows, cols):
    """Measure a rectangle of the map with many points on each side."""
    (top, bottom), (left, right) = rows, cols
    t = np.linspace(0, 1, 2001)[:-1]
    row = np.concatenate(
        [np.full_like(t, top), top + t * (bottom - top), np.full_like(t, bottom), bottom - t * (bottom - top)]
    )
    col = np.concatenate(
        [left + t * (right - left), np.full_like(t, right), right - t * (right - left), np.full_like(t, left)]
    )
    x, y = georef.ground(row, col)
    lon, lat = pyproj.Transformer.from_crs(epsg, 4326, always_xy=True).transform(x, y)
    return abs(GEOD.polygon_area_perimeter(lon, lat)[0])


@pytest.mark.parametrize("case", CASES)
def test_rectangles_agree_with_the_geodesic_polygon(case):
    epsg, transform = CASES[case]
    georef = GeoRef(pyproj.CRS.from_epsg(epsg).to_wkt(), transform)
    area = measure_pixels(georef, *SIZE)
    for rows, cols in [((0, 800), (0, 1000)), ((100, 220), (700, 990)), ((780, 800), (0, 40))]:
        corner_rows, corner_cols = np.array([0, 0, 1, 1]), np.array([0, 1, 0, 1])
        at = area.integral_m2(np.array(rows)[corner_rows], np.array(cols)[corner_cols])
        found = at[3] - at[2] - at[1] + at[0]
        if found < 1000 * 0.02:  # the reference rounds to some square centimetres
            continue
        assert found == pytest.approx(geodesic_m2(epsg, georef, rows, cols), rel=2e-5)


def test_pixels_beyond_the_projection_are_an_error():
    georef = GeoRef(
        pyproj.CRS.from_proj4("+proj=geos +h=35785831 +ellps=WGS84").to_wkt(), (3e4, 0, -8e6, 0, -3e4, 8e6)
    )
    with pytest.raises(DataError, match="reproject"):
        measure_pixels(georef, 534, 534)


def test_sides_of_pixels_are_those_on_earth():
    y = pyproj.Transformer.from_crs(4326, 3857, always_xy=True).transform(10, 60)[1]
    cases = {
        32632: ((10.0, 0.0, 500_000.0, 0.0, -20.0, 5_400_000.0), (20, 10)),
        4326: ((1e-4, 0.0, 10.0, 0.0, -1e-4, 60.0), (11.14, 5.58)),
        3857: ((20.0, 0.0, 1e6, 0.0, -20.0, y), (10.008, 10.025)),
        32633: ((6.0, 8.0, 500_000.0, 8.0, -6.0, 5_400_000.0), (10, 10)),
    }
    for epsg, (transform, sides) in cases.items():
        georef = GeoRef(pyproj.CRS.from_epsg(epsg).to_wkt(), transform)
        assert pixel_sides_m(georef, 8, 8) == pytest.approx(sides, rel=2e-3), epsg


def test_sides_are_not_known_off_earth():
    away = pyproj.CRS.from_proj4("+proj=geos +h=35785831 +ellps=WGS84").to_wkt()
    assert pixel_sides_m(GeoRef(None, (1, 0, 0, 0, 1, 0)), 8, 8) is None
    assert pixel_sides_m(GeoRef(away, (3e4, 0, -8e6, 0, -3e4, 8e6)), 8, 8) is None
